"""The functions that a JAX script may import from Understudy. Needs no torch, and does nothing outside a job.

snapshot    load() and save(): the training's state in memory that outlives the workers; needs jax only in a job

step() is in understudy_torch, which needs no torch.
"""
