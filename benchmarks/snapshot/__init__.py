"""Snapshots: how long save() blocks a training, what copies cost it, and what is lost with a worker or a node."""
