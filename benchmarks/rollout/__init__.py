"""The cost of a weight update beyond the engines' own work, the time to undo one, and the gateway next to nginx.

engine   a process with many simulated inference servers: each call takes as long as configured
updates  updates of 64 replicas, as a transaction and as the bare calls, and one that fails
servers  a process with inference servers that answer requests at once or as a stream
proxies  the gateways and the nginx processes in front of these servers
load     requests at a steady rate, directly and through the proxies
"""
