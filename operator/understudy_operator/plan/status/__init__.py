"""Status, conditions and events: what users read.

Start with status.py: all fields of a job's status.
"""
