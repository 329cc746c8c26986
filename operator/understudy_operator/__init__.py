"""The operator: reconciles the pods, Services and status of TrainingJobs with their specs and coordinators.

handlers.py (thin kopf) -> observe/ (the current state) -> plan/ (pure: the intents, with reasons) -> apply/ (executes
them). The operator is not on the recovery path: without it, surviving pods restart and spares are promoted. It replaces
used spares, and reports status and events.
"""
