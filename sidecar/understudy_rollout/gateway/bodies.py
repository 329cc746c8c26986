"""The body of a request of an unauthenticated client, on its way to the server.

Rules:
- It has at most `most` bytes. A larger Content-Length is rejected before the body is read, and so is any body of a
  request that only reads.
- A body of at most SMALL bytes is buffered. Any other is forwarded in parts, under the client's Content-Length.
- It has to arrive within BODY_S, or the connection is closed.
- Compressed bodies are forwarded unchanged.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Optional, Union

from aiohttp import web

from understudy_rollout.gateway.connections import HEAD_BYTES

MAX_BYTES = 64 << 20
SMALL = 64 << 10
BODY_S = 30.0
Body = Union[bytes, AsyncIterator[bytes], None]


class TooLarge(Exception):
    """The client has sent more bytes than a body may have."""


def refusal(request: web.Request, most: int) -> Optional[web.Response]:
    """An error answer if the request's head breaks a limit."""
    if sum(len(name) + len(value) for name, value in request.raw_headers) > HEAD_BYTES:
        return web.Response(status=431, text=f"the header fields of the request have more than {HEAD_BYTES} bytes\n")
    if request.method in ("GET", "HEAD") and request.body_exists:
        return web.Response(status=413, text=f"{request.method} requests may have no body here\n")
    if (request.content_length or 0) > most:
        return web.Response(status=413, text=too_large(most))
    return None


def too_large(most: int) -> str:
    return f"the body has more than {most} bytes (raise --most-body of the gateway)\n"


async def body_of(request: web.Request, most: int) -> Body:
    """None if there is no body. A body in parts may raise TooLarge."""
    if not request.body_exists:
        return None
    length = request.content_length
    if length is None or length > SMALL:
        return _parts(request, most)
    if request.content.is_eof():
        return await request.read()
    with _in_time(request):
        return await request.read()


async def _parts(request: web.Request, most: int) -> AsyncIterator[bytes]:
    received = 0
    with _in_time(request):
        async for part in request.content.iter_any():
            received += len(part)
            if received > most:
                raise TooLarge(too_large(most))
            yield part


@contextmanager
def _in_time(request: web.Request) -> Iterator[None]:
    timer = asyncio.get_running_loop().call_later(BODY_S, _hang_up, request)
    try:
        yield
    finally:
        timer.cancel()


def _hang_up(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
