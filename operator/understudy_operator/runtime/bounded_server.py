"""An HTTP server for untrusted callers: requests of one address delay those of other addresses by one turn at most.

Rules:
- The server accepts a connection at once. The connection gets a slot in turn with other addresses (fair_semaphore.py).
  Until then it costs a socket with a small buffer: no TLS, no parser.
- A connection in a slot has `request_s` for TLS and headers, and then `body_s` for the body. After these times, or
  `idle_s` after the last answer, the server closes it.
- If no slot is free, an address whose network has fewer slots than another network gets a slot of that network at once.
  The server closes a connection without a pending answer: of a network with more than its share, or else the longest
  idle one of any address.
- A body has a Content-Length of at most `body` bytes, checked before it is read. Bodies of more than SMALL bytes are
  read in turn: addresses that send slowly wait for addresses that send fast.
- Answers are computed one at a time, in turn: addresses with slow answers wait for unknown ones, and these for
  addresses with fast answers. After a slow answer the server only reads for PAUSE_S. A new connection has four or five
  steps (TCP, TLS, headers, body), and without the pause each of them could wait for another slow answer.
- Callers are never logged. They are counted (`on_drop`).
"""

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from aiohttp import web

from understudy_operator.runtime import all_addresses
from understudy_operator.runtime.fair_semaphore import Crowded, FairSemaphore
from understudy_protocol.addresses import network_of, plain

#: A body of this size is read without waiting for a turn: pods and jobs have about 10 KB.
SMALL = 64 << 10
#: For each connection, in the kernel. Its pages count as this container's memory, and a sender can fill them before
#: the server reads anything.
_RECEIVE_BUFFER = 32 << 10
_BACKLOG = 1024
#: An answer that has taken this CPU time is slow.
_SLOW_S = 0.02
#: Longer than the steps of a connection take in a cluster's network.
PAUSE_S = 0.05
_ACCEPT_AGAIN_S = 0.1
_QUIET = logging.Logger("aiohttp of a bounded server", logging.CRITICAL + 1)


class Drop(Enum):
    """Why a connection ended, or a request was not answered."""

    CROWDED = "Crowded"  # too many connections wait, or an address with fewer slots needed the slot
    SLOW = "Slow"  # the request did not arrive in time
    HANDSHAKE = "Handshake"  # no TLS, or no trusted client certificate
    TOO_LARGE = "TooLarge"


@dataclass(frozen=True)
class ServerLimits:
    slots: int = 32
    per_address: int = 8
    waiting: int = 512
    large_bodies: int = 4
    large_bodies_per_address: int = 2
    body: int = 0
    request_s: float = 5.0  # for TLS and the headers
    body_s: float = 2.0
    #: Longer than the 90 s after which Go's HTTP client closes an idle connection, so the server never closes a
    #: connection first while the client may use it.
    idle_s: float = 120.0


Answer = Callable[[web.BaseRequest, bytes], web.Response]
OnDrop = Callable[[Drop], None]


class _State(Enum):
    READING = auto()
    ANSWERING = auto()
    IDLE = auto()


@dataclass(eq=False)
class _Connection:
    socket: socket.socket
    address: str
    since: float  # when it entered the state
    state: _State = _State.READING
    transport: asyncio.Transport | None = None  # None during the TLS handshake
    timer: asyncio.TimerHandle | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class _Http(web.Server):
    """Reports which protocol has lost its connection."""

    on_lost: Callable[[asyncio.BaseProtocol], None]

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self.on_lost(handler)


class BoundedServer:
    def __init__(
        self,
        answer: Answer,
        limits: ServerLimits,
        tls: ssl.SSLContext | None = None,
        on_drop: OnDrop = lambda _: None,
    ) -> None:
        self._answer, self._limits, self._tls, self._on_drop = answer, limits, tls, on_drop
        self._slots = FairSemaphore(limits.slots, limits.per_address, limits.waiting)
        # An address that has been fast goes before unknown ones, and these before slow ones.
        self._large = FairSemaphore(
            limits.large_bodies, limits.large_bodies_per_address, limits.slots, unknown_cost=limits.body_s / 2
        )
        self._work = FairSemaphore(1, 1, limits.slots, unknown_cost=_SLOW_S)
        self._connections: dict[asyncio.BaseProtocol, _Connection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._http: _Http
        self._listener: socket.socket | None = None

    async def listen(self, port: int) -> int:
        """Return the port. Port 0 chooses a free one."""
        self._http = _Http(
            self._handle,
            handler_cancellation=True,
            access_log=None,
            logger=_QUIET,
            auto_decompress=False,
            lingering_time=0,
            keepalive_timeout=self._limits.idle_s,
            max_line_size=1024,
            max_field_size=2048,
            max_headers=32,
        )
        self._http.on_lost = self._lost
        listener = all_addresses.bind_all_addresses(port, _RECEIVE_BUFFER)
        listener.listen(_BACKLOG)
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)
        return self.port

    @property
    def port(self) -> int:
        assert self._listener is not None
        return int(self._listener.getsockname()[1])

    async def close(self, grace_s: float = 0.1) -> None:
        """Requests in progress have grace_s to finish."""
        if self._listener is None:
            return
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        self._http.pre_shutdown()
        await self._http.shutdown(grace_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Connections -----------------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_BACKLOG):
            try:
                accepted, (address, *_) = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no file descriptor is left: retry once some connections have ended
                loop.remove_reader(listener)
                loop.call_later(_ACCEPT_AGAIN_S, self._accept_again, listener)
                return
            accepted.setblocking(False)
            task = loop.create_task(self._serve(accepted, plain(address)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _accept_again(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0:  # else the server is closed
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    async def _serve(self, accepted: socket.socket, address: str) -> None:
        with contextlib.closing(accepted):
            if self._slots.is_full:
                self._make_room(address)
            try:
                await self._slots.acquire(address)
            except Crowded:
                self._on_drop(Drop.CROWDED)
                return
            try:
                await self._serve_in_slot(accepted, address)
            finally:
                self._slots.release(address)

    async def _serve_in_slot(self, accepted: socket.socket, address: str) -> None:
        loop = asyncio.get_running_loop()
        connection = _Connection(accepted, address, loop.time())
        protocol = self._http()
        self._connections[protocol] = connection
        self._enter(connection, _State.READING, self._limits.request_s)
        try:
            connection.transport, _ = await loop.connect_accepted_socket(lambda: protocol, accepted, ssl=self._tls)
            if not connection.transport.is_closing():
                await connection.ended.wait()
        except OSError:  # also an ssl.SSLError or a TimeoutError
            self._on_drop(Drop.HANDSHAKE)
        finally:
            del self._connections[protocol]
            self._stop_timer(connection)
            connection.ended.set()
            if connection.transport is not None:
                connection.transport.abort()

    def _lost(self, protocol: asyncio.BaseProtocol) -> None:
        if connection := self._connections.get(protocol):
            connection.ended.set()

    def _make_room(self, address: str) -> None:
        """Close a connection of a network with more than its share, or an idle one. None if all are answering."""
        taken, by_network = self._slots.taken, self._slots.taken_by_network
        if taken[address] >= self._limits.per_address:
            return
        closable = [x for x in self._connections.values() if x.state is not _State.ANSWERING and not x.ended.is_set()]
        if not closable:
            return
        chosen = max(closable, key=lambda x: (by_network[network_of(x.address)], taken[x.address], -x.since))
        network = network_of(address)
        share = self._limits.slots / len({*by_network, network})
        if by_network[network_of(chosen.address)] <= max(by_network[network] + 1, share):
            idle = [x for x in closable if x.state is _State.IDLE and x.address != address]
            if not idle:
                return
            chosen = min(idle, key=lambda x: x.since)
        self._drop(chosen, Drop.CROWDED)

    def _enter(self, connection: _Connection, state: _State, limit_s: float | None = None) -> None:
        self._stop_timer(connection)
        if connection.ended.is_set():
            return
        loop = asyncio.get_running_loop()
        connection.state, connection.since = state, loop.time()
        if limit_s is not None:
            connection.timer = loop.call_later(limit_s, self._drop, connection, Drop.SLOW)

    def _stop_timer(self, connection: _Connection) -> None:
        if connection.timer is not None:
            connection.timer.cancel()
            connection.timer = None

    def _drop(self, connection: _Connection, reason: Drop) -> None:
        if connection.state is not _State.IDLE:
            self._on_drop(reason)
        if connection.transport is not None:
            connection.transport.abort()
        else:
            with contextlib.suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)  # this makes the handshake fail
        connection.ended.set()

    # Requests --------------------------------------------------------------------------------------------------------

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = self._connections.get(request.protocol)
        if connection is None:
            raise ConnectionResetError("the connection has ended")
        if refusal := self._refusal(request):
            self._on_drop(Drop.TOO_LARGE)
            refusal.force_close()
            return refusal
        length = request.content_length or 0
        if length <= SMALL:
            return await self._read_and_answer(connection, request, length)
        self._stop_timer(connection)  # the server waits for a turn, not for the caller
        try:
            async with self._large.slot(connection.address):
                return await self._read_and_answer(connection, request, length)
        except Crowded as error:
            self._on_drop(Drop.CROWDED)
            return web.Response(status=503, text=f"{error}\n")

    def _refusal(self, request: web.BaseRequest) -> web.Response | None:
        most = self._limits.body
        if "Transfer-Encoding" in request.headers or "Content-Encoding" in request.headers:
            return web.Response(status=411, text="send the body as it is, with its Content-Length\n")
        if (request.content_length or 0) > most:
            text = f"the body has {request.content_length} bytes; at most {most} are accepted\n"
            return web.Response(status=413, text=text)
        return None

    async def _read_and_answer(self, connection: _Connection, request: web.BaseRequest, length: int) -> web.Response:
        self._enter(connection, _State.READING, self._limits.body_s)
        try:
            body = await request.content.readexactly(length) if length else b""
        except (asyncio.IncompleteReadError, web.RequestPayloadError) as error:
            raise ConnectionResetError("the body has ended early") from error
        finally:
            if length > SMALL:
                self._large.note_cost(connection.address, asyncio.get_running_loop().time() - connection.since)
        self._enter(connection, _State.ANSWERING)
        try:
            async with self._work.slot(connection.address):
                began = time.thread_time()
                response = self._answer(request, body)
                cpu_s = time.thread_time() - began
                self._work.note_cost(connection.address, cpu_s)
                await asyncio.sleep(PAUSE_S if cpu_s > _SLOW_S else 0)  # read other connections before the next answer
                return response
        finally:
            self._enter(connection, _State.IDLE, self._limits.idle_s)
