"""A copy of the sidecar's connection to its coordinator, which the launcher only keeps open.

The kernel ends a connection when the last process with its socket ends. With a copy here, a crash of the sidecar alone
ends no membership, and the coordinator still sees the end of the whole pod at once.

Rules: at most one socket; a newer one replaces it. The launcher never reads from it, and no worker inherits it
(close-on-exec from the start). A socket that arrives with any other line than HoldSocket is closed. The kernel delivers
a socket with the first byte that it was sent with, and then ends the read. So a socket that has arrived belongs to the
newest line, or to the line that is still incomplete.
"""

import os
import socket
import struct
from typing import Callable, Optional

_FD = struct.Struct("i")


class KeptSocket:
    """Owns its file descriptors from their arrival to their close."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._arrived: Optional[int] = None  # its line has not arrived yet
        self._kept: Optional[int] = None

    def recv(self, source: socket.socket, size: int) -> bytes:
        """Read from the unix socket. A socket in the message waits for its line; only one can wait at a time."""
        chunk, ancillary, _, _ = source.recvmsg(size, socket.CMSG_LEN(_FD.size), socket.MSG_CMSG_CLOEXEC)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS and len(data) >= _FD.size:
                self.no_line_to_come()
                (self._arrived,) = _FD.unpack_from(data)
        return chunk

    def hold(self) -> None:
        """A HoldSocket has arrived: its socket replaces the older one."""
        self.drop()
        self._kept, self._arrived = self._arrived, None
        if self._kept is None:
            self._log("the sidecar sent a HoldSocket without a socket: the launcher keeps no socket for it")

    def drop(self) -> None:
        if self._kept is not None:
            os.close(self._kept)
        self._kept = None

    def no_line_to_come(self) -> None:
        """Close a socket that came without a HoldSocket."""
        if self._arrived is not None:
            os.close(self._arrived)
            self._log("the sidecar sent a socket without a HoldSocket: the launcher closed the socket")
        self._arrived = None
