"""Reserves a free TCP port for the store of a later round: bound here, so that no other process gets it, until rank 0
binds it.

The socket never listens and does not set SO_REUSEADDR, with which a second socket could bind the port as well. A bound
socket that never had a connection leaves no TIME_WAIT, so the port is free as soon as the socket is closed. Between the
close and rank 0's bind (rank 0 imports torch first) the port is unprotected: another bind(0) in the same network
namespace could take it. Then rank 0 fails, and the next round gets another port.
"""

import contextlib
import socket
from typing import Optional


class PortReservation:
    """At most one port at a time."""

    def __init__(self) -> None:
        self._socket: Optional[socket.socket] = None

    def reserve(self) -> int:
        """Reserve another free port, on all addresses of IPv6 and IPv4 if the machine has both."""
        self.release()
        self._socket = _bound()
        return int(self._socket.getsockname()[1])

    def release(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _bound() -> socket.socket:
    with contextlib.suppress(OSError):  # a kernel without IPv6
        both = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        try:
            both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            both.bind(("::", 0))
        except OSError:
            both.close()
            raise
        return both
    only_v4 = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    only_v4.bind(("0.0.0.0", 0))
    return only_v4
