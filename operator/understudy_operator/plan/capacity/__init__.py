"""How many pods a job needs now, and whether a queue or a scheduler has room for them.

Start with gang.py: the pods that train.
"""
