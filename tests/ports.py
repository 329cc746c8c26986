"""Ports for servers that tests start."""

import random
import socket

#: Below the ports that Linux gives to outgoing connections (32768 to 60999), because Linux may reuse one of these as
#: soon as a test has closed it. Also below Kubernetes' node ports.
PORTS = range(12_000, 30_000)


def free_port() -> int:
    """A TCP port on which no process listens, on any address. Each call draws at random, so that two processes that
    call at the same time hardly ever get the same port.
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
