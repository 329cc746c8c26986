"""A gateway in front of one inference server: it lets a request through only while the weights are known to be whole.

    flights  what is under way, and how it is ended when an update begins (no HTTP)
    keeper   what is known of the weights, in a file for the gateway that comes after this one
    watch    whether the server is the one that was there; listener: who listens at its port
    proxy    one request to the server and its answer back, streamed
    app      the routes: what clients may ask, and what an update tells
    client   the trainer's end of that: `Replica(…, admission=Gateway(url, token))`

The trainer talks to the server itself, past the gateway; clients must not be able to (a NetworkPolicy, or a server that
listens on 127.0.0.1 beside its gateway and is updated through the pod's network alone).
"""

from understudy_rollout.gateway.client import Gateway

__all__ = ["Gateway"]
