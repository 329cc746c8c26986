"""The unix socket in the shared emptyDir between the pod's launcher and its sidecar: JSON lines.

A pod has one launcher: a newer connection replaces an older one. Any process of the pod may connect (shared_socket.py).
A connection has HELLO_S for its LauncherHello. Of the connections without a LauncherHello, only the newest WAITING
stay.

HoldSocket passes a duplicate of a socket to the launcher, as ancillary data of the bytes of its line. The stream's
buffer cannot do this, so an outbox of our own writes the lines one by one. A launcher that does not read is
disconnected.
"""

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from pathlib import Path

from understudy_protocol import launcher, shared_socket, wire
from understudy_protocol.launcher import DropSocket, HoldSocket, LauncherHello
from understudy_sidecar.waiting_connections import WaitingConnections

LINE_BYTES = 64 * 1024
UNSENT_BYTES = 1024 * 1024
HELLO_S = 5.0
WAITING = 64
_MESSAGES = wire.message_types(launcher)
log = logging.getLogger(__name__)


class LauncherLink:
    """Callbacks: on_up(hello), on_message(message), on_down() when the connected launcher has disconnected."""

    def __init__(
        self,
        on_up: Callable[[LauncherHello], None],
        on_message: Callable[[object], None],
        on_down: Callable[[], None],
    ) -> None:
        self._on_up, self._on_message, self._on_down = on_up, on_message, on_down
        self._outbox: _Outbox | None = None  # to the connected launcher
        self._holds_socket = False  # the launcher has a duplicate from this process
        self._waiting = WaitingConnections(WAITING, WAITING, HELLO_S)

    async def listen(self, path: Path) -> asyncio.Server:
        return await asyncio.start_unix_server(self._serve, sock=shared_socket.bound(path), limit=LINE_BYTES)

    def send(self, message: object) -> None:
        if self._outbox is not None:
            self._outbox.put(message)

    def hold_socket(self, fd: int) -> None:
        """Have the launcher keep a duplicate of this connection, so that it outlives this process. `fd` stays ours.

        Before it closes the connection, the caller calls drop_socket() too: otherwise the peer does not see the close.
        Both are sent only to the connected launcher; repeat them for one that connects later.
        """
        if self._outbox is not None:
            self._outbox.put(HoldSocket(), fd)
            self._holds_socket = True

    def drop_socket(self) -> None:
        """Have the launcher close the duplicate. A duplicate from an earlier sidecar stays: it keeps the membership."""
        if self._outbox is not None and self._holds_socket:
            self._outbox.put(DropSocket())
            self._holds_socket = False

    def hang_up(self) -> None:
        """Disconnect the launcher; it connects again."""
        if self._outbox is not None:
            self._outbox.hang_up()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        outbox = _Outbox(writer.get_extra_info("socket").fileno())
        self._waiting.add(outbox)
        try:
            await self._read(reader, outbox)
        except (ConnectionError, wire.WireError, ValueError) as error:
            log.warning("the launcher's connection broke: %s", error)
        finally:
            self._waiting.remove(outbox)
            outbox.close()
            writer.close()
            if self._outbox is outbox:
                self._outbox = None
                self._on_down()

    async def _read(self, reader: asyncio.StreamReader, outbox: "_Outbox") -> None:
        while line := await reader.readline():
            message = wire.decode(line, _MESSAGES)
            if outbox.hung_up:
                return  # it sent this before it saw the end of the connection
            if isinstance(message, LauncherHello) and self._outbox is not outbox:
                self._waiting.remove(outbox)
                self._outbox, previous = outbox, self._outbox
                if previous is not None:
                    previous.hang_up()
                self._on_up(message)
            elif isinstance(message, wire.Unknown):
                log.info("ignored a message from the launcher of the unknown type %s", message.type[:64])
            elif self._outbox is outbox:
                self._on_message(message)
            else:
                raise wire.WireError("the first line of a launcher has to be a LauncherHello")


class _Outbox:
    """Lines to one launcher, each sent separately, with its socket if it has one."""

    peer = ""  # all connections come from this pod

    def __init__(self, connection: int) -> None:
        # A descriptor of our own: an event loop allows no other writer on a stream's descriptor.
        self._socket = socket.socket(fileno=os.dup(connection))
        self._socket.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[tuple[bytes, int | None]] = deque()
        self._is_over = False
        self.hung_up = False

    def put(self, message: object, fd: int | None = None) -> None:
        if self._is_over:
            return
        self._unsent.append((wire.encode(message).encode() + b"\n", None if fd is None else os.dup(fd)))
        self._flush()
        if sum(len(line) for line, _ in self._unsent) > UNSENT_BYTES:
            log.warning("the launcher does not read: closed the connection after %d unsent bytes", UNSENT_BYTES)
            self.hang_up()

    def evict(self, reason: str) -> None:
        self.hang_up()

    def hang_up(self) -> None:
        """End the connection: both readers see its end. No callback before that."""
        self.hung_up = True
        self._drop_unsent()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._drop_unsent()
        self._socket.close()

    def _drop_unsent(self) -> None:
        if not self._is_over:
            self._loop.remove_writer(self._socket)
        self._is_over = True
        for _, fd in self._unsent:
            _close(fd)
        self._unsent.clear()

    def _flush(self) -> None:
        try:
            while self._unsent:
                line, fd = self._unsent[0]
                sent = self._socket.sendmsg([line], _rights(fd))
                self._unsent.popleft()
                _close(fd)  # it was sent with the first byte
                if sent < len(line):
                    self._unsent.appendleft((line[sent:], None))
        except BlockingIOError:
            self._loop.add_writer(self._socket, self._flush)
        except OSError as error:
            log.info("cannot send to the launcher: %s", error)
            self._drop_unsent()  # the launcher's last messages may still be unread
        else:
            self._loop.remove_writer(self._socket)


def _rights(fd: int | None) -> list[tuple[int, int, bytes]]:
    return [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd))]


def _close(fd: int | None) -> None:
    if fd is not None:
        os.close(fd)
