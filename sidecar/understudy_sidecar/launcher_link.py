"""The unix socket in the shared emptyDir over which the pod's launcher talks to its sidecar: JSON lines.

One launcher a pod: a newer connection takes over from an older one. The trainer runs as any uid, so the socket is open
to all of the pod (0666); a stale one of a former sidecar is unlinked first.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

from understudy_protocol import launcher, wire
from understudy_protocol.launcher import LauncherHello

LINE_BYTES = 64 * 1024
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
        self._writer: asyncio.StreamWriter | None = None

    async def listen(self, path: Path) -> asyncio.Server:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        server = await asyncio.start_unix_server(self._serve, path, limit=LINE_BYTES)
        os.chmod(path, 0o666)  # noqa: S103 — the trainer runs as any uid
        return server

    def send(self, message: object) -> None:
        if self._writer is not None:
            self._writer.write(wire.encode(message).encode() + b"\n")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._read(reader, writer)
        except (ConnectionError, wire.WireError, ValueError) as error:
            log.warning("the launcher's connection broke: %s", error)
        finally:
            writer.close()
            if self._writer is writer:
                self._writer = None
                self._on_down()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            message = wire.decode(line, _MESSAGES)
            if isinstance(message, LauncherHello) and self._writer is not writer:
                self._writer, former = writer, self._writer
                if former is not None:
                    former.close()
                self._on_up(message)
            elif isinstance(message, wire.Unknown):
                log.info("the launcher sent the unknown type %s: dropped", message.type[:64])
            elif self._writer is writer:
                self._on_message(message)
            else:
                raise wire.WireError("the first line of a launcher is its LauncherHello")
