"""One request to the server behind the gateway, and its answer: streams are forwarded unbuffered.

Rules: hop-by-hop headers are not forwarded. If an answer is cut off, because the server disconnects or the request is
aborted, the client's connection is closed, so that no client takes a part for the whole. If a client disconnects, its
request ends at the server. An answer of more than SMALL bytes is forwarded in parts, no faster than its client reads.
The buffers of a connection to the server are limited too, in the kernel as well: otherwise an answer that no client
reads would take megabytes.
"""

import socket
from collections.abc import Collection, Mapping
from typing import Any, Optional

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from understudy_rollout.gateway.bodies import SMALL, Body, TooLarge
from understudy_rollout.gateway.connections import READ_BYTES

#: Buffers of a connection to the server in the kernel, which doubles them. With smaller ones to send, bodies stall.
_RECEIVE_BYTES, _SEND_BYTES = 32 << 10, 64 << 10
VERSION_HEADER = "Understudy-Weight-Version"
_OF_THE_CONNECTION = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding"),
    *("upgrade", "host", "content-length"),
}


class EngineGone(Exception):
    """No process listens at the server's address."""


class Proxy:
    def __init__(self, engine_url: str) -> None:
        self.url = engine_url.rstrip("/")
        self._session: Optional[aiohttp.ClientSession] = None

    async def start(self) -> None:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3.0, socket_factory=_socket)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            read_bufsize=READ_BYTES,
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def pass_on(self, request: web.Request, body: Body, answer: "ClientAnswer", version: str) -> None:
        """Raises EngineGone, TooLarge, or aiohttp's errors. answer: the client's answer so far."""
        assert self._session is not None
        passed = _passed(request.headers)
        if body is not None and request.content_length is not None:
            passed["Content-Length"] = str(request.content_length)
        try:
            upstream = await self._session.request(
                request.method, self.url + request.raw_path, data=body, headers=passed
            )
        except aiohttp.ClientConnectorError as error:
            raise EngineGone(str(error)) from error
        except aiohttp.ClientError as error:
            if isinstance(error.__cause__, TooLarge):
                raise error.__cause__ from error
            raise
        try:
            headers = _passed(upstream.headers)
            if version:
                headers[VERSION_HEADER] = version
            length = upstream.content_length if request.method != "HEAD" else None
            if length is not None and length <= SMALL:
                answer.whole = web.Response(
                    status=upstream.status, reason=upstream.reason, headers=headers, body=await upstream.read()
                )
                return
            response = web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=headers)
            response.content_length = length
            answer.begun = response
            await response.prepare(request)
            async for chunk in upstream.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
        finally:
            if upstream.content.is_eof():
                upstream.release()
            else:
                upstream.close()


async def ask(method: str, url: str, headers: Mapping[str, str], body: bytes, dropped: Collection[str]) -> web.Response:
    """One call of an update, over its own connection, with a buffered answer. Raises as pass_on does."""
    passed = _passed(headers)
    for name in dropped:
        passed.popall(name, None)
    connector, no_limit = aiohttp.TCPConnector(force_close=True), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=no_limit, auto_decompress=False) as session:
        try:
            async with session.request(
                method, url, data=body or None, headers=passed, allow_redirects=False
            ) as upstream:
                answer = await upstream.read()
        except aiohttp.ClientConnectorError as error:
            raise EngineGone(str(error)) from error
    return web.Response(status=upstream.status, reason=upstream.reason, headers=_passed(upstream.headers), body=answer)


class ClientAnswer:
    """The client's answer so far: nothing, a beginning, or all of it."""

    def __init__(self) -> None:
        self.begun: Optional[web.StreamResponse] = None
        self.whole: Optional[web.Response] = None


def _socket(address: "tuple[Any, ...]") -> socket.socket:
    """address: as socket.getaddrinfo() returns it."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
    return made


def _passed(headers: Mapping[str, str]) -> "CIMultiDict[str]":
    passed = CIMultiDict(headers)
    for name in _OF_THE_CONNECTION:
        passed.popall(name, None)
    return passed
