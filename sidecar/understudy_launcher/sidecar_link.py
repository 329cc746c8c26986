"""The launcher's end of the unix socket to its sidecar: JSON lines; reconnects forever.

Rules: connection attempts start RETRY_FROM_S apart and grow to RETRY_TO_S apart. One log line reports that the sidecar
has been unreachable for LOG_AFTER_S. Messages sent while disconnected are dropped: on each connect the supervisor
reports its whole state again. A line that is no message is logged and dropped. A sidecar that does not read, or sends
an endless line, is disconnected: no buffer may grow without bound. The socket that the launcher keeps for the sidecar
survives the end of this connection.
"""

import os
import selectors
import socket
from typing import Any, Callable, Optional

from understudy_launcher.events import Connected
from understudy_launcher.kept_socket import KeptSocket
from understudy_protocol import wire
from understudy_protocol.launcher import TO_LAUNCHER, DropSocket, HoldSocket
from understudy_protocol.pauses import growing_pause_s

RETRY_FROM_S = 0.05
RETRY_TO_S = 1.0
LOG_AFTER_S = 10.0
BUFFER_LIMIT = 1 << 20
_CHUNK = 1 << 16
_KNOWN: dict[str, type[Any]] = {cls.__name__: cls for cls in TO_LAUNCHER}


class LinkSelection:
    """Keeps a link's socket registered in a selector for the events that it waits for. key: the data of its events."""

    def __init__(self, selector: selectors.BaseSelector, key: str) -> None:
        self._selector, self._key = selector, key
        self._selected: Optional[socket.socket] = None

    def update(self, link: "SidecarLink") -> None:
        """Call before each select."""
        current = link.socket
        if current is None:
            return
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.wants_to_write() else 0)
        if self._selected is not current:
            self._selector.register(current, mask, self._key)
            self._selected = current
        else:
            self._selector.modify(current, mask, self._key)

    def forget(self, closing: socket.socket) -> None:
        """Unregister at once, because another file may get the socket's number before the next select."""
        if self._selected is closing:
            self._selector.unregister(closing)
            self._selected = None


class SidecarLink:
    """At most one connection. `closing` gets its socket just before it is closed and its number becomes free."""

    def __init__(
        self, path: str, log: Callable[[str], None], closing: Callable[[socket.socket], None], now: float
    ) -> None:
        self.socket: Optional[socket.socket] = None
        self._path, self._log, self._closing = path, log, closing
        self._unsent, self._unread = b"", b""
        self._kept_socket = KeptSocket(log)
        self._lost_at, self._has_logged = now, False
        self._failures, self._retry_at = 0, now  # failures in a row

    def deadline(self) -> Optional[float]:
        """When to reconnect; None while connected."""
        return None if self.socket is not None else self._retry_at

    def wants_to_write(self) -> bool:
        return self.socket is not None and bool(self._unsent)

    def connect(self, now: float) -> list[Any]:
        """Try to connect if that is due. Return [Connected()] on success."""
        if self.socket is not None or now < self._retry_at:
            return []
        attempt = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        attempt.setblocking(False)
        try:
            attempt.connect(self._path)
        except OSError as error:  # missing, refused, or its backlog is full
            attempt.close()
            self._not_connected(error, now)
            return []
        self.socket = attempt
        self._log("connected to the sidecar")
        return [Connected()]

    def send(self, message: Any, now: float) -> None:
        if self.socket is None:
            return
        self._unsent += wire.encode(message).encode() + b"\n"
        self.flush(now)

    def flush(self, now: float) -> None:
        """Write as much as the socket accepts."""
        if self.socket is None:
            return
        try:
            self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError as error:
            self._hang_up(f"writing failed: {error}", now)
            return
        if len(self._unsent) > BUFFER_LIMIT:
            self._hang_up("it does not read its socket", now)

    def receive(self, now: float) -> list[Any]:
        """The orders for the supervisor that have arrived."""
        if self.socket is None:
            return []
        try:
            chunk = self._kept_socket.recv(self.socket, _CHUNK)
        except BlockingIOError:
            return []
        except OSError as error:
            self._hang_up(f"reading failed: {error}", now)
            return []
        if not chunk:
            self._hang_up("it closed the connection", now)
            return []
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        orders = [message for message in map(self._order, lines) if message is not None]
        if not self._unread:
            self._kept_socket.no_line_to_come()
        if len(self._unread) > BUFFER_LIMIT:
            self._hang_up(f"it sent a line of more than {BUFFER_LIMIT} bytes", now)
        return orders

    def close(self) -> None:
        """Close for good, also the socket that is kept for the sidecar."""
        if self.socket is not None:
            self._closing(self.socket)
            self.socket.close()
        self.socket = None
        self._kept_socket.drop()

    def keep_open(self) -> None:
        """Leave the connection open until the process has exited: the sidecar takes the end of the connection for the
        end of the launcher.
        """
        if self.socket is not None:
            self._closing(self.socket)
            self.socket.detach()
        self.socket = None
        self._kept_socket.drop()

    def _order(self, line: bytes) -> Any:
        try:
            message = wire.decode(line, _KNOWN)
        except wire.WireError as error:
            self._log(f"ignored a line from the sidecar: {error}")
            return None
        if isinstance(message, wire.Unknown):
            self._log(f"ignored a message from the sidecar of the unknown type {message.type}")
            return None
        if isinstance(message, HoldSocket):
            self._kept_socket.hold()
        elif isinstance(message, DropSocket):
            self._kept_socket.drop()
        else:
            return message
        return None

    def _not_connected(self, error: OSError, now: float) -> None:
        self._failures += 1
        self._retry_at = now + growing_pause_s(RETRY_FROM_S, RETRY_TO_S, self._failures)
        if not self._has_logged and now - self._lost_at >= LOG_AFTER_S:
            self._has_logged = True
            what = f"{os.strerror(error.errno)}" if error.errno else str(error)
            self._log(f"no sidecar at {self._path} for {now - self._lost_at:.0f} s ({what}); retrying")

    def _hang_up(self, why: str, now: float) -> None:
        if self.socket is not None:
            self._closing(self.socket)
            self.socket.close()
        self.socket = None
        self._unsent, self._unread = b"", b""
        self._kept_socket.no_line_to_come()
        self._lost_at, self._has_logged = now, False
        self._failures, self._retry_at = 0, now + RETRY_FROM_S
        self._log(f"lost the connection to the sidecar: {why}; the workers keep running, and the launcher reconnects")
