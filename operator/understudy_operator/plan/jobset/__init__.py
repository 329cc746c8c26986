"""The parts of a TrainingJob that a JobSet has, too: child Jobs, and the policies for start, success and failure.

The rules are JobSet v1alpha2's, restated; docs/reference/jobset.md has them field by field. Pure, as all of plan/.
Start with outcome.py: how a job ends, or restarts.
"""
