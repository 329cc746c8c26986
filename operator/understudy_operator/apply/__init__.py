"""Executes plans: all writes to the API server, and all connections to sidecars. It decides nothing.

A connection to a sidecar goes both ways. It is here because it appoints, supersedes and ends (coordinator_link.py), or
sends a spare its job (adoption_link.py). A received message becomes a fact through plan/leadership/search.py.

Start with executor.py: it executes the intents of one reconcile.
"""
