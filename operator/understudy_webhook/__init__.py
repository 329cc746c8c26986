"""The admission webhooks: injection into pods of plain Jobs, and checks that a CRD's rules cannot say.

review.py (pure) answers an AdmissionReview by the operator's own rules (understudy_operator.plan); serving.py serves
it. Nothing is asked of the API server on the way: what a pod says of itself is enough.
"""
