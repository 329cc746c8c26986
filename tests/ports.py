"""Ports for servers that tests start."""

import random
import socket

#: Below those that Linux gives to outgoing connections (32768 to 60999): one of these may be in use again in the moment
#: in which a test has closed it. And below Kubernetes' node ports.
PORTS = range(12_000, 30_000)


def free_port() -> int:
    """A TCP port on which nothing listens, on any address. Each call draws at random, so that two processes that ask
    at the same time hardly ever get the same one.
    """
    while True:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
