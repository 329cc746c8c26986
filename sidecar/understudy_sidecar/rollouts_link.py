"""The unix socket for workers' reports about weight updates: one connection for each membership.Replicas, as a line.

The answer is a line too. With `taken` the sidecar has the report and sends it to its coordinator, even if the worker
ends right after. Otherwise the answer has the error. A worker runs as any uid, like its launcher (launcher_link.py); a
silent connection is ended after a moment, and only the newest CONNECTIONS stay.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path

from understudy_protocol import membership as m
from understudy_protocol import shared_socket, wire

LINE_BYTES = 64 * 1024
READ_LIMIT_S = 5.0
CONNECTIONS = 64
ACCEPTED = b"taken\n"
log = logging.getLogger(__name__)


class RolloutsLink:
    def __init__(self, on_replicas: Callable[[m.Replicas], None]) -> None:
        self._on_replicas = on_replicas
        self._connections: deque[asyncio.StreamWriter] = deque()  # the oldest first

    async def listen(self, path: Path) -> asyncio.Server:
        return await asyncio.start_unix_server(self._serve, sock=shared_socket.bound(path), limit=LINE_BYTES)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.append(writer)
        if len(self._connections) > CONNECTIONS:
            self._connections.popleft().transport.abort()
        try:
            async with asyncio.timeout(READ_LIMIT_S):
                line = await reader.readline()
                writer.write(self._answer(line))
                await writer.drain()
        except (ConnectionError, TimeoutError, ValueError) as error:
            log.warning("lost a worker's report about rollouts: %r", error)
        finally:
            writer.close()
            with contextlib.suppress(ValueError):
                self._connections.remove(writer)

    def _answer(self, line: bytes) -> bytes:
        try:
            report = wire.decode(line, {"Replicas": m.Replicas})
        except wire.WireError as error:
            log.warning("rejected a worker's report about rollouts: %s", error)
            return f"refused: {error}\n".encode()
        if not isinstance(report, m.Replicas):
            return f"refused: expected a message Replicas, got {report.type[:64]}\n".encode()
        self._on_replicas(report)
        return ACCEPTED
