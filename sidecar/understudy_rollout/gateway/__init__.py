"""A gateway in front of one inference server: it lets a request through only while the weights are known to be whole.

    flights  what is under way, and how it is ended when an update begins (no HTTP)
    keeper   what is known of the weights, in a file for the gateway that comes after this one
    watch    whether the server is the one that was there; listener: who listens at its port
    proxy    one request to the server and its answer back, streamed
    connections, bodies   what a client, which proves nothing, can make the gateway keep
    messages what an update tells, checked
    app      the routes: what clients may ask, what an update tells, and its calls to the server
    client   the trainer's end of that: `Replica(…, admission=Gateway(url, token))`

The trainer calls the server through the gateway, which passes on the calls of the update that runs. So the server
listens where only its gateway reaches it: on 127.0.0.1 in the same pod.
"""

from understudy_rollout.gateway.client import Gateway

__all__ = ["Gateway"]
