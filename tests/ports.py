"""Ports for servers that tests start."""

import os
import random
import socket

#: Below the ports that Linux gives to outgoing connections (32768 to 60999), because Linux may reuse one of these as
#: soon as a test has closed it. Also below Kubernetes' node ports.
#: Each process of pytest-xdist has its own: another one may draw before a server listens.
PROCESSES = 8
PORTS = range(12_000 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % PROCESSES, 30_000, PROCESSES)
_drawn: set[int] = set()


def free_port() -> int:
    """A TCP port on which no process listens, on any address, and that this process has not got before."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        if port in _drawn and len(_drawn) < len(PORTS):
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            _drawn.add(port)
            return port
