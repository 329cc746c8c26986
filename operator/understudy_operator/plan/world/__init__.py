"""The pods that train, and the objects that they need: what is created, deleted, and retried after a rejection.

Start with members.py: which pods are created, replaced and deleted.
"""
