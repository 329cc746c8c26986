"""What a weight update costs over the engines' own work, what undoing one takes, and what the gateway adds.

engine   a process with many inference servers, all of them stand-ins: each call takes as long as it is told to
updates  updates of 64 replicas, as a transaction and as the bare calls, and one that fails
load     requests to one server at a steady rate, straight and through the gateway
"""
