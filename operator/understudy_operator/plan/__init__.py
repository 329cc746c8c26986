"""Decisions only: `reconcile(observed, now) -> Plan`. No I/O, no clock, no randomness, no Kubernetes client here.

One decision a file; each returns intents that carry their reason, which becomes the event, the condition or the log.
"""
