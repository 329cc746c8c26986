"""`python -m benchmarks.rollout.servers N`: N inference servers for the load of the gateway. Prints their ports.

A request with `"stream": true` is answered with TOKENS chunks, one each TOKEN_S, with the time at which each was
written. Any other request is answered at once. Without an HTTP library, because 2,000 requests a second come in.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from typing import cast

import uvloop

TOKENS = 8
TOKEN_S = 0.01
#: A body that begins so is answered with a stream.
STREAM = b'{"stream": true'
#: The ends of both kinds of answers.
WHOLE_END, STREAM_END = b'x"}', b"0\r\n\r\n"
_GENERATED = b'{"text": "' + b"x" * 500 + b'"}'
_WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
    len(_GENERATED),
    _GENERATED,
)
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
TIME = re.compile(rb"data: (\d{20})\n\n")


class Server(asyncio.Protocol):
    def __init__(self) -> None:
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, _, body = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if length is None or len(body) < int(length[1]):
            return
        self._received = b""
        if body.startswith(STREAM):
            self._transport.write(_STREAM_HEAD)
            asyncio.get_running_loop().call_later(TOKEN_S, self._write_token, TOKENS)
        else:
            self._transport.write(_WHOLE)

    def _write_token(self, left: int) -> None:
        token = b"data: %020d\n\n" % time.monotonic_ns()
        end = b"" if left > 1 else STREAM_END
        self._transport.write(b"%x\r\n%s\r\n%s" % (len(token), token, end))
        if left > 1:
            asyncio.get_running_loop().call_later(TOKEN_S, self._write_token, left - 1)


async def serve(number: int) -> None:
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Server, "127.0.0.1", 0, backlog=1024) for _ in range(number)]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
