"""The operator's knowledge: frozen values that observe/ reads from raw objects. Nothing here decides.

Start with observed.py: all facts of one reconcile.
"""
