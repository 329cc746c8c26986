"""Nodes that failed: remembered across jobs, avoided by new pods, and annotated. Pure, as all of plan/.

Start with avoidance.py: which nodes a job avoids, and why.
"""
