"""Executes plans: the only folder that creates, changes or deletes objects of jobs and pools. It decides nothing.

Start with gateway.py: it executes the intents of one reconcile.
"""
