"""A launcher's link that a test drives, with a real socket and the test's own clock."""

from __future__ import annotations

import socket

from understudy_launcher.events import Connected
from understudy_launcher.sidecar_link import SidecarLink


class Linked:
    """A connected link, the other end, and the log."""

    def __init__(self, path: str, server: socket.socket) -> None:
        self.log: list[str] = []
        self.closing: list[int] = []  # the socket's number, before it is closed
        self.link = SidecarLink(path, self.log.append, lambda socket: self.closing.append(socket.fileno()), 0.0)
        assert self.link.connect(0.0) == [Connected()]
        self.other = server.accept()[0]
        self.other.settimeout(10)

    def close(self) -> None:
        self.other.close()
        if self.link.socket is not None:
            self.link.socket.close()
