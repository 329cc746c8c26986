"""The cost of a weight update beyond the engines' own work, the time to undo one, and the latency of the gateway.

engine   a process with many simulated inference servers: each call takes as long as configured
updates  updates of 64 replicas, as a transaction and as the bare calls, and one that fails
load     requests to one server at a steady rate, directly and through the gateway
"""
