"""HotSparePools: pods that several jobs share as spares. Pure; two halves that meet in the labels of the pool's pods.

holding.py is the pool's half: it keeps the number of pods. claiming.py is the job's half: which pods a job claims, and
how its own pod replaces a claimed one. Start with reconcile_pool.py.
"""
