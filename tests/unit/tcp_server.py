"""A TCP server made of a handler, which leaves no task and no connection for the next test."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@asynccontextmanager
async def tcp_server(
    handler: Handler, host: str = "127.0.0.1", port: int = 0, *, listener: socket.socket | None = None
) -> AsyncIterator[tuple[str, int]]:
    """Its address. listener: a bound socket instead of an address.

    At the end, handlers that still run are canceled, and all connections are closed. Raises the errors of handlers.
    """
    calls, writers = list[asyncio.Task[None]](), list[asyncio.StreamWriter]()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        calls.append(asyncio.create_task(handler(reader, writer)))

    if listener is None:
        server = await asyncio.start_server(accept, host, port)
    else:
        server = await asyncio.start_server(accept, sock=listener)
    try:
        yield server.sockets[0].getsockname()[:2]
    finally:
        server.close()
        for task in calls:
            task.cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)
    if errors := [result for result in results if isinstance(result, Exception)]:
        raise ExceptionGroup("the handlers of a server", errors)
