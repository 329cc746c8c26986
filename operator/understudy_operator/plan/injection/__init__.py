"""Injection: pods of a plain Job, JobSet or PyTorchJob that are to train under Understudy. The webhook and the operator
both decide by what is here, and neither asks the other: a pod's labels and annotations say all that its birth needs.
"""
