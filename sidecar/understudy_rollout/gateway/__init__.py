"""A gateway in front of one inference server: it admits requests only while the weights are known to be whole.

    flights        running requests, and their end when an update begins (no HTTP)
    weights_file   the state of the weights, in a file for a restarted gateway
    server_watch   detects a restart of the server; listener: the process that listens at its port
    proxy          one request to the server and its answer, streamed
    connections, bodies   limit the resources that an unauthenticated client can use
    messages       the messages of an update, checked
    app            the routes for clients, for messages of an update, and for its calls to the server
    update_client  the trainer's side: `Replica(…, admission=Gateway(url, token))`

The trainer calls the server through the gateway, which forwards the calls of the running update. So the server listens
where only its gateway reaches it: on 127.0.0.1 in the same pod.
"""

from understudy_rollout.gateway.update_client import Gateway

__all__ = ["Gateway"]
