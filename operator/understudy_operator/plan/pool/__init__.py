"""HotSparePools: pods that several jobs share as spares. Pure; two halves that meet in the labels of the pool's pods.

holding.py keeps a pool's pods there; claiming.py is a job's half: which of them it takes, and how its own pod comes to
stand in the place of one.
"""
