"""The unix socket in the shared emptyDir over which the pod's launcher talks to its sidecar: JSON lines.

One launcher a pod: a newer connection takes over from an older one. Any process of the pod may connect
(shared_socket.py).

The launcher can be handed a copy of a socket (HoldSocket), which goes with the bytes of its line: so lines are written
one by one, by an outbox of our own and not by the stream, whose buffer knows no such thing. A launcher that does not
read is hung up on.
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

from understudy_protocol import launcher, wire
from understudy_protocol.launcher import DropSocket, HoldSocket, LauncherHello
from understudy_sidecar import shared_socket

LINE_BYTES = 64 * 1024
UNSENT_BYTES = 1024 * 1024
_MESSAGES = wire.message_types(launcher)
log = logging.getLogger(__name__)


class LauncherLink:
    """Callbacks: on_up(hello), on_message(message), on_down() when the connected launcher has gone."""

    def __init__(
        self,
        on_up: Callable[[LauncherHello], None],
        on_message: Callable[[object], None],
        on_down: Callable[[], None],
    ) -> None:
        self._on_up, self._on_message, self._on_down = on_up, on_message, on_down
        self._outbox: _Outbox | None = None  # to the launcher that is connected
        self._holds_socket = False  # the launcher, a copy from this process

    async def listen(self, path: Path) -> asyncio.Server:
        return await asyncio.start_unix_server(self._serve, sock=shared_socket.bound(path), limit=LINE_BYTES)

    def send(self, message: object) -> None:
        if self._outbox is not None:
            self._outbox.put(message)

    def hold_socket(self, fd: int) -> None:
        """Have the launcher keep a copy of this connection open, so that it outlives this process. `fd` stays ours.

        Who hangs up says drop() too: a close alone is not seen by the peer any more. Both are for the launcher that is
        connected; for one that connects later they are to be said again.
        """
        if self._outbox is not None:
            self._outbox.put(HoldSocket(), fd)
            self._holds_socket = True

    def drop_socket(self) -> None:
        """Have it close the copy. What a sidecar before this one had it keep stays: that membership is to go on."""
        if self._outbox is not None and self._holds_socket:
            self._outbox.put(DropSocket())
            self._holds_socket = False

    def hang_up(self) -> None:
        """On the launcher that is connected: it connects again."""
        if self._outbox is not None:
            self._outbox.hang_up()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        outbox = _Outbox(writer.get_extra_info("socket").fileno())
        try:
            await self._read(reader, outbox)
        except (ConnectionError, wire.WireError, ValueError) as error:
            log.warning("the launcher's connection broke: %s", error)
        finally:
            outbox.close()
            writer.close()
            if self._outbox is outbox:
                self._outbox = None
                self._on_down()

    async def _read(self, reader: asyncio.StreamReader, outbox: "_Outbox") -> None:
        while line := await reader.readline():
            message = wire.decode(line, _MESSAGES)
            if outbox.hung_up:
                return  # what it had said before it heard of that
            if isinstance(message, LauncherHello) and self._outbox is not outbox:
                self._outbox, former = outbox, self._outbox
                if former is not None:
                    former.hang_up()
                self._on_up(message)
            elif isinstance(message, wire.Unknown):
                log.info("ignored a message from the launcher of the unknown type %s", message.type[:64])
            elif self._outbox is outbox:
                self._on_message(message)
            else:
                raise wire.WireError("the first line of a launcher has to be a LauncherHello")


class _Outbox:
    """Lines to one launcher, each sent by itself, with its socket if it has one."""

    def __init__(self, connection: int) -> None:
        # A descriptor of our own: event loops let nobody else wait for that of a stream.
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

    def hang_up(self) -> None:
        """Whoever reads from the connection sees its end, here too; nobody is called back before that."""
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
                _close(fd)  # it went with the first byte
                if sent < len(line):
                    self._unsent.appendleft((line[sent:], None))
        except BlockingIOError:
            self._loop.add_writer(self._socket, self._flush)
        except OSError as error:
            log.info("cannot send to the launcher: %s", error)
            self._drop_unsent()  # its last words may still be unread
        else:
            self._loop.remove_writer(self._socket)


def _rights(fd: int | None) -> list[tuple[int, int, bytes]]:
    return [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd))]


def _close(fd: int | None) -> None:
    if fd is not None:
        os.close(fd)
