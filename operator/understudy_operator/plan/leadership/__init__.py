"""The coordinator of a job, and the leader among the operator's replicas.

Start with coordination.py: the operator's part in a job's elections.
"""
