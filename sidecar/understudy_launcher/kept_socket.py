"""A copy of the sidecar's connection to its coordinator: kept open, and nothing else.

The kernel ends a connection when the last process that has its socket is gone, so with a copy here a sidecar's crash
alone ends no membership, and the end of both (a pod's) is seen at once.

Rules: at most one; a newer one closes the older. Nobody reads from it, and no worker inherits it (close-on-exec from
its first moment). A socket that arrives with other lines than HoldSocket is closed. The kernel gives one to who reads
the first byte that it was sent with, and then ends the read: so what has arrived belongs to the newest line, or to
the one that is still incomplete.
"""

import os
import socket
import struct
from typing import Callable, Optional

_FD = struct.Struct("i")


class KeptSocket:
    """File descriptors, ours alone from their arrival to their close."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._arrived: Optional[int] = None  # its line is still to come
        self._kept: Optional[int] = None

    def recv(self, source: socket.socket, size: int) -> bytes:
        """Read from the unix socket; a socket that came along waits for its line. There is room for one at a time."""
        chunk, ancillary, _, _ = source.recvmsg(size, socket.CMSG_LEN(_FD.size), socket.MSG_CMSG_CLOEXEC)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS and len(data) >= _FD.size:
                self.no_line_to_come()
                (self._arrived,) = _FD.unpack_from(data)
        return chunk

    def hold(self) -> None:
        """A HoldSocket has come: what it came with takes the older one's place."""
        self.drop()
        self._kept, self._arrived = self._arrived, None
        if self._kept is None:
            self._log("the sidecar sent a HoldSocket without a socket: the launcher keeps no socket for it")

    def drop(self) -> None:
        if self._kept is not None:
            os.close(self._kept)
        self._kept = None

    def no_line_to_come(self) -> None:
        """Whoever sent it meant something else."""
        if self._arrived is not None:
            os.close(self._arrived)
            self._log("the sidecar sent a socket without a HoldSocket: the launcher closed the socket")
        self._arrived = None
