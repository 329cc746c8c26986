"""The operator: keeps the pods, Services and status of TrainingJobs as their specs and their coordinators say.

handlers.py (thin kopf) -> observe/ (what is there) -> plan/ (pure: what to do, and why) -> apply/ (does it). It is
not on the recovery path: survivors restart and spares are promoted without it. It replenishes, and it tells.
"""
