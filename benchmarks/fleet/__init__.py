"""The operator with a whole fleet: thousands of nodes and hundreds of jobs, on one API server, with nodes that kwok
simulates.

plan, table   the fleets, their rates and their faults; the costs and what they extrapolate to (pure)
fleet         one fleet with its operator, and the cases
"""
