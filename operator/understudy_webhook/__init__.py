"""The admission webhooks: injection into pods of plain Jobs, and checks that CRD rules cannot express.

review.py (pure) answers an AdmissionReview with the operator's own rules (understudy_operator.plan); serving.py serves
it. An answer needs no request to the API server: the pod's own fields are enough.
"""
