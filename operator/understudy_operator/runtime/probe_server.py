"""Serves GET to kubelet and Prometheus on ports that every pod can reach. A caller that sends its request at once
always gets its answer.

Rules:
- The server answers a connection when its request head has arrived, and closes it. No connection waits for a slot or a
  turn: a kubelet sends its request with its first packet, so connections that send nothing do not delay it.
- A connection without a whole head is closed after HEAD_S. One that does not read its answer is closed after ANSWER_S.
- At most MOST connections are open, at most MOST_PER_ADDRESS of one address. One more closes the oldest: of its
  address if that has too many, else of all. The server accepts at most ACCEPTED before it reads the others, so a new
  connection is not closed before its request could be read.
- The server logs nothing and reads no bodies.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import cast

from understudy_operator.runtime import all_addresses
from understudy_protocol.frames import ProtocolError
from understudy_protocol.upgrade import take_head

HEAD_S, ANSWER_S = 2.0, 10.0
MOST, MOST_PER_ADDRESS = 256, 64
ACCEPTED = 32
#: For each connection, in the kernel.
_RECEIVE_BUFFER = 4096
_BACKLOG = 1024


@dataclass(frozen=True)
class Reply:
    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


#: The reply for a path.
Answer = Callable[[str], Reply]


class ProbeServer:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._open: dict[_Question, None] = {}  # the oldest first
        self._server: asyncio.Server

    async def listen(self, port: int) -> int:
        """Return the port. Port 0 chooses a free one."""
        listener = all_addresses.bind_all_addresses(port, _RECEIVE_BUFFER)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Question(self), sock=listener, backlog=ACCEPTED)
        listener.listen(_BACKLOG)  # the kernel's; asyncio accepts ACCEPTED at a time
        return self.port

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        self._server.close()
        for question in list(self._open):
            question.end()

    def reply_to(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("ascii", "replace")
        reply = self._answer(path) if method == b"GET" else Reply(b"GET alone\n", HTTPStatus.METHOD_NOT_ALLOWED)
        fields = f"Content-Type: {reply.content_type}\r\nContent-Length: {len(reply.body)}\r\nConnection: close"
        return f"HTTP/1.1 {reply.status} {reply.status.phrase}\r\n{fields}\r\n\r\n".encode() + reply.body

    def add(self, question: "_Question") -> None:
        self._open[question] = None
        of_address = [each for each in self._open if each.address == question.address]
        if len(of_address) > MOST_PER_ADDRESS:
            of_address[0].end()
        elif len(self._open) > MOST:
            next(iter(self._open)).end()

    def remove(self, question: "_Question") -> None:
        self._open.pop(question, None)


class _Question(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: ProbeServer) -> None:
        self._server = server
        self.address = ""
        self._received = bytearray()
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.address = str((transport.get_extra_info("peername") or ("",))[0])
        self._timer = asyncio.get_running_loop().call_later(HEAD_S, self.end)
        self._server.add(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        try:
            head = take_head(self._received)
        except ProtocolError:
            self.end()
            return
        if head is not None:
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(ANSWER_S, self.end)
            self._transport.pause_reading()
            self._transport.write(self._server.reply_to(head))
            self._transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        self._timer.cancel()
        self._server.remove(self)

    def end(self) -> None:
        self._server.remove(self)
        self._transport.abort()
