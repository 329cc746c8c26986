"""What a TrainingJob has in common with a JobSet: child Jobs, and the policies about when they start, succeed and fail.

The rules are JobSet v1alpha2's, restated; docs/reference/jobset.md has them field by field. Pure, as all of plan/.
"""
