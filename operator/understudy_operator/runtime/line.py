"""One WebSocket from the operator to one sidecar: a handshake, and then encrypted messages both ways.

The pod at the other end may belong to any user, and even a pod of the job is not trusted. Rules:
- The operator connects to the given address. It speaks no HTTP beyond the upgrade, so no answer can redirect it.
- Before the peer has proved the key, it may send UNPROVEN_BYTES in all, including the answer to the upgrade, and the
  operator waits CONNECT_S for all of it. After that the caller sets the limit of a message. A message may also have
  only one value for every BYTES_PER_VALUE bytes of this limit, because values take more memory than their JSON.
- At most CALLS peers are called at once (CALLS_OF_A_NAMESPACE of a namespace), until they have proved the key. Further
  calls wait, and their CONNECT_S has not begun. An operator that starts beside thousands of jobs would otherwise begin
  all calls at once, and finish almost none of them in time.
- A line keeps up to KEPT_BYTES of an incomplete message. A longer message needs room, which all lines share
  (ROOM_BYTES, of which a namespace may have NAMESPACE_BYTES). Until there is room, the line reads nothing, and the
  peer's time does not run.
- The line reads bytes only after it has handled all messages before them. Reading the messages of a job takes at most
  SHARE of this process's CPU time, however few bytes arrive at a time: if a peer sends more, its messages wait. A job
  may use the unused share of the last CREDIT_S at once, so an ordinary message does not wait.
- Only messages that open with the session's key show that the peer responds. Every PING_S the operator sends an empty
  message, which the peer answers. If no whole message arrives for SILENT_S, the line ends. It also ends FRESH_S after
  the operator has sent the newest answered empty message, even if others arrive: a relay may have delayed them. While
  the operator receives a long message, it allows the time that the message takes at FRAME_BYTES_PER_S. A relay that
  knows no key can send bytes, too. So both times are extended at most by the time of the longest message (`limit`).
  WebSocket pings and pongs end the line: an attacker between the two sides could send them, and a sidecar sends none.
- `enqueue` never waits. If more than UNSENT_BYTES wait when the next message comes, the line is cut off.
"""

import asyncio
import ipaddress
import socket
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from understudy_operator.runtime.fair_semaphore import FairSemaphore
from understudy_operator.runtime.json_size import values_in
from understudy_protocol import compiled, handshake, observer, wire
from understudy_protocol import pod as names
from understudy_protocol.addresses import split_port
from understudy_protocol.frames import Frames, Opcode, ProtocolError, frame
from understudy_protocol.handshake import Call, HandshakeCaller, NotProven, Role
from understudy_protocol.sessions import NotAuthentic, Session
from understudy_protocol.upgrade import check_answer, request, take_head

CONNECT_S = 3.0
UNPROVEN_BYTES = 1024
UNSENT_BYTES = 1 << 20
READ_BYTES = 1 << 16
BYTES_PER_VALUE = 32
KEPT_BYTES = 16 << 10
ROOM_BYTES, NAMESPACE_BYTES = 64 << 20, 32 << 20
CALLS, CALLS_OF_A_NAMESPACE = 128, 64
#: For each line, in the kernel, which doubles it. Its pages count as the operator's memory.
RECEIVE_BUFFER = 64 << 10
SHARE = 0.05
CREDIT_S = 2.0
#: The event loop's CPU time for one read or one message. A peer that sends a byte at a time costs little else.
TURN_CPU_S = 0.0003
#: How often an empty message is sent. A peer that sends nothing for SILENT_S is unreachable, or its process hangs.
PING_S = 2.0
SILENT_S = 3.0
FRESH_S = 6.0
FRAME_BYTES_PER_S = 1 << 20
#: This process's timers may be late. So the peer gets this much more time, once a message.
LATE_S = 0.25
#: Errors that end a line and are not bugs of the operator.
FAILURES = (OSError, ProtocolError, wire.WireError, NotProven, TimeoutError)

_HANDSHAKE = wire.message_types(handshake)
_OBSERVER = wire.message_types(observer)


@dataclass(frozen=True)
class Keys:
    """The keys with which the two sides of a line authenticate each other."""

    membership: bytes  # of the job, or of the pool; 32 bytes
    operator: bytes  # the operator's private X25519 key, 32 bytes


@dataclass(frozen=True)
class LineLimits:
    """What the lines of all jobs share. The addresses are namespaces.

    room: for long messages, in bytes. calls: of peers that have not proved the key yet.
    """

    room: FairSemaphore = field(default_factory=lambda: FairSemaphore(ROOM_BYTES, NAMESPACE_BYTES, sys.maxsize))
    calls: FairSemaphore = field(default_factory=lambda: FairSemaphore(CALLS, CALLS_OF_A_NAMESPACE, sys.maxsize))


class Share:
    """The share of this process's CPU time and memory for all lines of one job.

    CPU time and not elapsed time, because on a busy node this process sometimes does not run. limits: shared by the
    lines of all jobs.
    """

    def __init__(self, namespace: str = "", limits: LineLimits | None = None) -> None:
        self._free_at = 0.0
        self._namespace, self._limits = namespace, LineLimits() if limits is None else limits

    def calling(self) -> AbstractAsyncContextManager[None]:
        """The body calls a peer, until it has proved the key."""
        return self._limits.calls.slot(self._namespace)

    async def take_room(self, count: int) -> None:
        await self._limits.room.acquire(self._namespace, count)

    def leave_room(self, count: int) -> None:
        self._limits.room.release(self._namespace, count)

    def spent(self, cpu_s: float) -> None:
        self._free_at = max(self._free_at, _now() - CREDIT_S) + cpu_s / SHARE

    async def wait(self) -> None:
        await asyncio.sleep(max(0.0, self._free_at - _now()))

    @contextmanager
    def spending(self) -> Iterator[None]:
        """The body reads messages. It must not await, because it is charged for all of this thread's CPU time.

        The body is charged for a turn of the event loop, too.
        """
        began = time.thread_time()
        try:
            yield
        finally:
            self.spent(time.thread_time() - began + TURN_CPU_S)


@dataclass(frozen=True)
class _Mark:
    """The state of a line at one moment: the seconds that it had waited for bytes, and the bytes that had arrived."""

    waited_s: float = 0.0
    received: int = 0


class Line:
    """peer: a connected socket that does not block."""

    def __init__(self, peer: socket.socket, share: Share) -> None:
        self._peer, self._share = peer, share
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self.unsent = 0  # bytes that are enqueued and have not reached the kernel
        self._cut_off = False
        self._received = bytearray()
        self._frames = Frames(self._received, masked=False, limit=UNPROVEN_BYTES)
        self._unproven_left: int | None = UNPROVEN_BYTES  # bytes; None: the peer has proved the key
        self._room = 0  # bytes of the long message that is being received
        self._session: Session | None = None
        self._waited_s = 0.0  # in all, without the current wait
        self._wait: tuple[float, float] | None = None  # the current wait: when it began, and its limit
        self._received_bytes = 0  # in all
        self._whole = _Mark()  # when the last whole message was read
        self._pings = deque[_Mark]()  # when each empty message without an answer was sent
        self._answered = _Mark()  # when the newest answered one was sent

    # Before the proof -------------------------------------------------------------------------------------------------

    async def upgrade(self, ip: str, port: int) -> None:
        head, token = request(ip, port, names.MEMBERSHIP_PATH)
        await self._send(head)
        while (answer := take_head(self._received)) is None:
            await self._read()
        check_answer(answer, token)

    async def begin(self, caller: HandshakeCaller, pod_uid: str, message_bytes: int) -> None:
        """The handshake with this pod. From then on messages are encrypted, and may have message_bytes bytes."""
        await self._send(frame(Opcode.TEXT, compiled.encode(caller.hello), masked=True))
        answered_by, session = caller.finish(await self.receive(_HANDSHAKE))
        if answered_by != pod_uid:
            raise NotProven(f"pod {answered_by[:64]!r} answers at the address of pod {pod_uid}")
        self._session, self._unproven_left = session, None
        self._frames.message = Opcode.BINARY
        self.limit(message_bytes)
        self._answered = self._mark()
        await self._send(self._sealed(b""))

    # After it ---------------------------------------------------------------------------------------------------------

    def limit(self, message_bytes: int) -> None:
        """From now on a message of the peer may have message_bytes bytes."""
        self._frames.limit = message_bytes

    async def send(self, message: object) -> None:
        """Send it at once, on a line without a writer."""
        await self._send(self._sealed(compiled.encode(message)))

    def enqueue(self, message: object) -> None:
        if self.unsent > UNSENT_BYTES:
            self._cut_off = True
            with suppress(OSError):
                self._peer.shutdown(socket.SHUT_RDWR)
        if not self._cut_off:
            self._put(compiled.encode(message))

    async def flush(self, limit_s: float) -> None:
        """Wait until all enqueued messages have reached the kernel, or the limit has passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._outbox.join()

    async def write(self) -> None:
        """Send enqueued messages, and an empty one every PING_S, until canceled or the line ends."""
        ping_at = _now() + PING_S
        while not self._cut_off:
            try:
                async with asyncio.timeout_at(ping_at):
                    data = await self._outbox.get()
            except TimeoutError:
                self._pings.append(self._mark())
                self._put(b"")
                ping_at = _now() + PING_S
                continue
            await self._send(data)
            self.unsent -= len(data)
            self._outbox.task_done()

    async def messages(self) -> AsyncIterator[object]:
        """The peer's messages, until the line ends. The caller's work on a message counts as reading it: the caller
        must not await before it asks for the next one.
        """
        with suppress(EOFError):
            while True:
                message = await self.receive(_OBSERVER)
                with self._share.spending():
                    yield message

    async def receive(self, types: Mapping[str, type[Any]]) -> Any:
        """The peer's next message. Raises EOFError if the peer ends the line."""
        while True:
            await self._share.wait()
            with self._share.spending():
                taken = self._frames.take()
                if taken is not None:
                    self.leave_room()
                if taken is not None and taken[0] == self._frames.message and (text := self._opened(taken[1])):
                    return self._decoded(text, types)
            if taken is None:
                if self._frames.announced > KEPT_BYTES and not self._room:
                    await self._share.take_room(self._frames.announced)
                    self._room = self._frames.announced
                await self._read()
            elif taken[0] != self._frames.message:
                self._on_control(taken[0])

    def leave_room(self) -> None:
        if self._room:
            self._share.leave_room(self._room)
            self._room = 0

    # Bytes ------------------------------------------------------------------------------------------------------------

    def _decoded(self, text: bytes, types: Mapping[str, type[Any]]) -> Any:
        most = self._frames.limit // BYTES_PER_VALUE
        if (values := values_in(text)) > most:
            raise ProtocolError(f"expected at most {most} values, got a message of {values}")
        return compiled.decode_untrusted(text, types)

    def _on_control(self, opcode: int) -> None:
        if opcode == Opcode.CLOSE:
            raise EOFError
        raise ProtocolError(f"expected a message, got a control frame ({opcode})")

    def _opened(self, message: bytes) -> bytes:
        if self._session is not None:
            try:
                message = self._session.open(message)
            except NotAuthentic as error:
                raise ProtocolError(str(error)) from error
        self._whole = self._mark()
        if not message and self._pings:
            self._answered = self._pings.popleft()
        return message

    def _sealed(self, text: bytes) -> bytes:
        assert self._session is not None, "the handshake came first"
        return frame(Opcode.BINARY, self._session.seal(text), masked=True)

    def _put(self, text: bytes) -> None:
        data = self._sealed(text)
        self.unsent += len(data)
        self._outbox.put_nowait(data)

    async def _send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._peer, data)

    async def _read(self) -> None:
        """Receive more bytes. Raises EOFError, TimeoutError, or ProtocolError if the peer may not send more."""
        most = min(READ_BYTES, max(self._room, KEPT_BYTES) - len(self._received))
        if self._unproven_left is not None:
            most = min(most, self._unproven_left)
        if not most:
            raise ProtocolError(f"expected the proof of the key within {UNPROVEN_BYTES} bytes")
        reading = asyncio.ensure_future(asyncio.get_running_loop().sock_recv(self._peer, most))
        try:
            await self._wait_for(reading)
            data = reading.result()
        finally:
            reading.cancel()
            await asyncio.wait({reading})  # before the socket is closed, and the kernel reuses its number
        if not data:
            raise EOFError
        if self._unproven_left is not None:
            self._unproven_left -= len(data)
        self._received_bytes += len(data)
        self._received += data

    async def _wait_for(self, reading: asyncio.Future[bytes]) -> None:
        """Raises TimeoutError when the time for one whole message, or for an answer, has passed."""
        until_whole_s = SILENT_S - self._since(self._whole)
        until_answer_s = FRESH_S - self._since(self._answered)
        left_s = min(until_whole_s, until_answer_s)
        for patience_s in (max(0.0, left_s), LATE_S + min(0.0, left_s)):
            self._wait = (_now(), patience_s)
            await asyncio.wait({reading}, timeout=patience_s)
            self._waited_s, self._wait = self._mark().waited_s, None
            if reading.done():
                return
        if until_answer_s < until_whole_s:
            raise TimeoutError(f"no message that was sent in the last {FRESH_S:g} s has been answered")
        raise TimeoutError(f"no complete message arrived for {SILENT_S:g} s")

    def _mark(self) -> _Mark:
        began, most_s = self._wait or (0.0, 0.0)
        # A timer that fires late does not shorten the peer's time.
        return _Mark(self._waited_s + min(_now() - began, most_s), self._received_bytes)

    def _since(self, mark: _Mark) -> float:
        """The seconds of its time that the peer has used since then."""
        received = min(self._received_bytes - mark.received, self._frames.limit)
        return self._waited_s - mark.waited_s - received / FRAME_BYTES_PER_S


@asynccontextmanager
async def dialed(address: str, share: Share) -> AsyncIterator[Line]:
    """A line whose peer has not proved the key yet. address: IP or IP:PORT. Raises one of FAILURES."""
    ip, port = split_port(address)
    try:
        family = socket.AF_INET if ipaddress.ip_address(ip).version == 4 else socket.AF_INET6
    except ValueError as error:
        raise ProtocolError(f"expected an IP address, got {ip[:80]!r}") from error
    with socket.socket(family, socket.SOCK_STREAM) as peer:
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        await asyncio.get_running_loop().sock_connect(peer, (ip, port))
        line = Line(peer, share)
        try:
            await line.upgrade(ip, port)
            yield line
        except EOFError as error:
            raise ConnectionError("it closed the connection before it answered") from error
        finally:
            line.leave_room()
            with suppress(OSError):
                peer.shutdown(socket.SHUT_WR)


@asynccontextmanager
async def open_line(
    address: str, pod_uid: str, job_uid: str, keys: Keys, message_bytes: int, share: Share | None = None
) -> AsyncIterator[Line]:
    """A line to that pod of the job, after the pod has proved the key. Raises one of FAILURES."""
    caller = HandshakeCaller(keys.membership, Role.OBSERVER, job_uid, Call("", address), keys.operator)
    share = share or Share()
    async with AsyncExitStack() as stack:
        async with share.calling(), asyncio.timeout(CONNECT_S):
            line = await stack.enter_async_context(dialed(address, share))
            await line.begin(caller, pod_uid, message_bytes)
        writer = asyncio.create_task(line.write(), name=f"line {address}")
        try:
            yield line
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)


def _now() -> float:
    return asyncio.get_running_loop().time()
