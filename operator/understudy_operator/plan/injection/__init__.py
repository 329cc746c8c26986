"""Injection: pods of a plain Job, JobSet or PyTorchJob that train under Understudy. The webhook and the operator both
use these rules, without asking each other: a pod's labels and annotations contain all that its creation needs.

Start with injected_pods.py: the changes to a pod at its creation.
"""
