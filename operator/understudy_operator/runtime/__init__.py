"""The parts that all processes of the operator use: clock, HTTP client and servers, limits. Nothing here knows a
job.
"""
