"""Who coordinates a job, and which replica of the operator leads.

Start with coordination.py: the operator's part in a job's elections.
"""
