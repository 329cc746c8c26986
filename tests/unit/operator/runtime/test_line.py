"""The operator's line to a hostile or broken pod: no answer affects other jobs."""

import asyncio
import os
import socket
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from tests.integration.operator.coordinator import KEYS, OPERATOR_PUBLIC, FakeSidecar, loopback_address
from tests.integration.operator.training import a_snapshot
from tests.unit.tcp_server import tcp_server
from tests.unit.virtual_time import in_virtual_time
from understudy_operator.runtime import line as lines
from understudy_operator.runtime.fair_semaphore import FairSemaphore
from understudy_operator.runtime.line import FAILURES, Line, LineLimits, Share, open_line
from understudy_protocol import compiled, handshake, observer, wire
from understudy_protocol import pod as names
from understudy_protocol.enums import Term
from understudy_protocol.frames import Frames, Opcode, ProtocolError, frame
from understudy_protocol.handshake import Call, HandshakeCalled, HandshakeCaller, Hello, Role
from understudy_protocol.observer import NodeFact, Nodes, Refused, Snapshot
from understudy_protocol.sessions import Session
from understudy_protocol.upgrade import accept
from understudy_sidecar.link import Link
from understudy_sidecar.server import Server, SidecarIdentity

COORDINATOR_PORT = 8478

JOB_UID, POD_UID = "job-uid", "pod-uid"
LIMIT_S = 10.0
MESSAGE_BYTES = 1 << 20
_HANDSHAKE = wire.message_types(handshake)
_OBSERVER = wire.message_types(observer)
Do = Callable[["Peer"], Awaitable[None]]


class Peer:
    """The other end of one line, as bytes. The test decides how far the peer goes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ip: str) -> None:
        self._reader, self._writer, self._ip = reader, writer, ip
        self._session: Session | None = None
        self._received = bytearray()
        self._frames = Frames(self._received, masked=True, limit=1 << 22)

    async def accept(self) -> None:
        head = await self._reader.readuntil(b"\r\n\r\n")
        await self.send(accept(head[:-4], names.MEMBERSHIP_PATH))

    async def prove(self, pod_uid: str = POD_UID) -> None:
        """The handshake of a peer that knows the key: a pod of the job."""
        await self.accept()
        hello = wire.decode(await self.message(), _HANDSHAKE)
        assert isinstance(hello, Hello)
        called = HandshakeCalled(KEYS.membership, Role.OBSERVER, JOB_UID, pod_uid, self._ip, OPERATOR_PUBLIC)
        answer, _, session = called.answer(hello)
        await self.send_message(wire.encode(answer).encode())
        self._session, self._frames.message = session, Opcode.BINARY
        assert await self.message() == b""

    async def message(self) -> bytes:
        """The operator's next message, decrypted after the handshake."""
        message = await self.sealed_message()
        return message if self._session is None else self._session.open(message)

    async def sealed_message(self) -> bytes:
        while True:
            taken = self._frames.take()
            if taken is not None and taken[0] == self._frames.message:
                return taken[1]
            if taken is None:
                data = await self._reader.read(1 << 16)
                if not data:
                    raise ConnectionError
                self._received += data

    def framed(self, text: bytes) -> bytes:
        """The next message to the operator, encrypted after the handshake."""
        payload = text if self._session is None else self._session.seal(text)
        return frame(self._frames.message, payload, masked=False)

    async def send_message(self, text: bytes) -> None:
        await self.send(self.framed(text))

    def socket(self) -> socket.socket:
        """A duplicate of its socket, for another thread."""
        duplicate = socket.socket(fileno=os.dup(self._writer.get_extra_info("socket").fileno()))
        duplicate.settimeout(LIMIT_S)  # not setblocking(True), which would make the original block, too
        return duplicate

    def end(self) -> None:
        self._writer.close()

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()
        await asyncio.sleep(0)  # drain() alone does not let the operator run while the kernel takes all


@asynccontextmanager
async def peer(do: Do) -> AsyncIterator[str]:
    """The address of a pod at which `do` serves each caller."""
    ip = loopback_address()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await do(Peer(reader, writer, ip))
                await asyncio.Event().wait()
        finally:
            writer.transport.abort()

    async with tcp_server(answer, ip, COORDINATOR_PORT):
        yield ip


async def failure_of(do: Do, message_bytes: int = MESSAGE_BYTES) -> str:
    """The error that ends the line to such a peer."""
    async with asyncio.timeout(LIMIT_S), peer(do) as ip:
        try:
            async with open_line(ip, POD_UID, JOB_UID, KEYS, message_bytes) as line:
                await listen(line)
        except FAILURES as error:
            return f"{type(error).__name__}: {error}"
        return "the peer ended it"


@asynccontextmanager
async def a_line_to(do: Do) -> AsyncIterator[Line]:
    limit = asyncio.timeout(LIMIT_S)
    async with limit, peer(do) as ip, open_line(ip, POD_UID, JOB_UID, KEYS, MESSAGE_BYTES) as line:
        yield line


async def listen(line: Line) -> None:
    async for _ in line.messages():
        pass


async def is_open_after(seconds: float, line: Line) -> bool:
    listening = asyncio.create_task(listen(line))
    await asyncio.wait({listening}, timeout=seconds)
    is_open = not listening.done()
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    return is_open


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 (the fake has a plain attribute)
        await asyncio.sleep(0)


async def _forever(peer: Peer, data: bytes | Callable[[], bytes]) -> None:
    while True:
        await peer.send(data if isinstance(data, bytes) else data())


# Before the proof ----------------------------------------------------------------------------------------------------


async def endless_head(peer: Peer) -> None:
    await _forever(peer, b"HTTP/1.1 101 Switching Protocols\r\nX: " + b"x" * 8000)


async def endless_noise(peer: Peer) -> None:
    await _forever(peer, b"\xff" * 8000)


async def long_message(peer: Peer) -> None:
    await peer.accept()
    await peer.send(frame(Opcode.TEXT, b"x" * 2_000_000, masked=False))


async def fragment(peer: Peer) -> None:
    await peer.accept()
    await peer.send(b"\x01\x01x")


async def pings(peer: Peer) -> None:
    await peer.accept()
    await _forever(peer, frame(Opcode.PING, b"", masked=False) * 1000)


@pytest.mark.attack(
    "B2",
    "a pod that has not proved the key sends without end",
    before="the operator kept up to 64 MiB of it",
)
@pytest.mark.parametrize(
    ("do", "expected"),
    [
        (endless_head, "expected the proof of the key within 1024 bytes"),
        (endless_noise, "expected the proof of the key within 1024 bytes"),
        (long_message, "expected at most 1024 bytes, got a message of 2000000 or more"),
        (fragment, "expected a message in one frame, got a frame that begins with 0x01"),
        (pings, "expected a message, got a control frame (9)"),
    ],
)
async def test_a_peer_may_send_1_kib_before_the_proof(do: Do, expected: str):
    assert expected in await failure_of(do)


async def slow_head(peer: Peer) -> None:
    while True:
        await peer.send(b"H")
        await asyncio.sleep(0.05)


async def slow_answer(peer: Peer) -> None:
    await peer.accept()
    for byte in frame(Opcode.TEXT, b"x" * 900, masked=False):
        await peer.send(bytes([byte]))
        await asyncio.sleep(0.05)


async def silence(peer: Peer) -> None:
    await peer.accept()


@pytest.mark.attack(
    "B2",
    "a pod answers a byte at a time, or not at all",
    before="the operator waited for the answer to the upgrade without a limit",
)
@pytest.mark.parametrize("do", [slow_head, slow_answer, silence])
async def test_a_peer_has_one_deadline_for_everything_before_the_proof(do: Do, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lines, "CONNECT_S", 0.5)
    assert await failure_of(do) == "TimeoutError: "


async def test_a_peer_has_three_seconds_for_everything_before_the_proof():
    began = asyncio.get_running_loop().time()
    assert await failure_of(slow_answer) == "TimeoutError: "
    assert asyncio.get_running_loop().time() - began == pytest.approx(3.0, abs=0.5)


async def test_a_peer_that_ends_before_its_proof_breaks_no_rule_of_the_protocol():
    """Pods of a job end at any moment, for example after the training has succeeded."""

    async def closes(peer: Peer) -> None:
        await peer.accept()
        peer.end()

    assert await failure_of(closes) == "ConnectionError: it closed the connection before it answered"


# The address ----------------------------------------------------------------------------------------------------------


@pytest.mark.attack(
    "B3",
    "a pod that the operator calls redirects it to another host",
    before="the operator sent a GET to any URL that the pod named",
)
@pytest.mark.parametrize("status", ["301 Moved Permanently", "302 Found", "307 Temporary Redirect"])
async def test_a_redirect_is_not_followed(status: str):
    received = asyncio.Event()

    async def target(peer: Peer) -> None:
        received.set()
        await peer.prove()

    async with peer(target) as elsewhere:

        async def redirect(peer: Peer) -> None:
            url = f"http://{elsewhere}:{COORDINATOR_PORT}{names.MEMBERSHIP_PATH}"
            await peer.send(f"HTTP/1.1 {status}\r\nLocation: {url}\r\nContent-Length: 0\r\n\r\n".encode())

        assert f"ProtocolError: expected status 101, got b'HTTP/1.1 {status}'" == await failure_of(redirect)
        assert not received.is_set()


@pytest.mark.parametrize(
    "ip", ["", "metadata.google.internal", "10.0.0.1/x", "127.1", "10.0.0.1:99999", "localhost:8478"]
)
async def test_only_an_ip_address_is_called(ip: str):
    with pytest.raises(ProtocolError, match="expected an IP address"):
        async with open_line(ip, POD_UID, JOB_UID, KEYS, MESSAGE_BYTES):
            pass


async def test_a_port_of_a_node_gets_the_head_of_a_request_and_nothing_else():
    # given a program of a node, on a port that a pod's variable names
    received, ip = list[bytes](), loopback_address()

    async def program(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-program\r\n\r\n")
        received.append(await reader.read())
        writer.close()

    async with tcp_server(program, ip) as (_, port):
        # when the operator calls this port
        with pytest.raises(ProtocolError):
            async with open_line(f"{ip}:{port}", POD_UID, JOB_UID, KEYS, MESSAGE_BYTES):
                pass
        await until(lambda: bool(received))
    # then the program receives a request for one path, which the pod cannot choose
    (head,) = received
    assert head.startswith(b"GET /v1/membership HTTP/1.1\r\n")
    assert head.count(b"\r\n\r\n") == 1
    assert head.endswith(b"\r\n\r\n")


async def test_a_pod_with_another_uid_than_the_called_one_is_rejected():
    """The key proves that the peer is a pod of the job, and not which one."""
    assert await failure_of(lambda peer: peer.prove("uid-of-a-later-pod")) == (
        "NotProven: pod 'uid-of-a-later-pod' answers at the address of pod pod-uid"
    )


# After the proof -----------------------------------------------------------------------------------------------------


async def oversized(peer: Peer) -> None:
    await peer.prove()
    await peer.send(b"\x82\x7f" + (MESSAGE_BYTES + 1).to_bytes(8, "big"))
    await _forever(peer, b"x" * 8000)


async def deeply_nested(peer: Peer) -> None:
    await peer.prove()
    await peer.send_message(b'{"type":"Refused","reason":"","x":' + b"[" * 20_000 + b"]" * 20_000 + b"}")


async def deeply_nested_type(peer: Peer) -> None:
    await peer.prove()
    await peer.send_message(b'{"x":' * 20_000 + b"1" + b"}" * 20_000)


async def wrong_lists(peer: Peer) -> None:
    await peer.prove()
    await peer.send_message(b'{"type":"Snapshot","members":[' + b"[]," * 10_000 + b"[]]}")


async def many_values(peer: Peer) -> None:
    await peer.prove()
    await peer.send_message(b'{"type":"Snapshot","standby_coordinators":[' + b'"h",' * 40_000 + b'"h"]}')


async def huge_number(peer: Peer) -> None:
    await peer.prove()
    await peer.send_message(b'{"type":"Refused","reason":"","config_epoch":' + b"9" * 100_000 + b"}")


@pytest.mark.attack(
    "B2",
    "a pod that knows the key of its job sends messages that are too long, or nested, or no messages",
    before="messages of up to 64 MiB were parsed into Python objects, twice",
)
@pytest.mark.parametrize(
    ("do", "expected"),
    [
        (oversized, "ProtocolError: expected at most 1048576 bytes, got a message of 1048577 or more"),
        (deeply_nested, "WireError: invalid message: maximum recursion depth exceeded"),
        (deeply_nested_type, "WireError: invalid message: "),
        (wrong_lists, "WireError: invalid message: Expected `object`, got `array` - at `$.members[0]`"),
        (many_values, "ProtocolError: expected at most 32768 values, got a message of 40003"),
        (huge_number, "WireError: expected numbers of at most 18 digits, got a longer one"),
    ],
)
async def test_a_message_that_breaks_a_limit_ends_the_line(do: Do, expected: str):
    assert expected in await failure_of(do)


async def test_a_message_may_be_as_long_as_the_limit_states():
    message = Refused("x" * 900_000)

    async def report(peer: Peer) -> None:
        await peer.prove()
        await peer.send_message(wire.encode(message).encode())

    async with a_line_to(report) as line:
        assert await anext(line.messages()) == message


@pytest.mark.attack(
    "B2",
    "6 MB of `[],` from the coordinator of a job of 10,000 pods",
    before="152 MB of memory, and a loop that stood still for 0.86 s",
)
@pytest.mark.parametrize("known", [b'{"type":"Refused","reason":"r","x":', b'{"type":"Later","x":'])
def test_values_that_no_field_accepts_are_never_built(known: bytes):
    junk = known + b"[" + b"[]," * 2_000_000 + b"[]]}"
    tracemalloc.start()
    try:
        assert compiled.decode_untrusted(junk, _OBSERVER) in (Refused("r"), wire.Unknown("Later"))
        # Other threads of this process may allocate too. The attack took 152 MB.
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@in_virtual_time
async def test_the_messages_of_a_job_take_a_twentieth_of_the_time():
    share, loop = Share(), asyncio.get_running_loop()
    # given a job that has sent no message for long
    await asyncio.sleep(1000.0)
    # when the operator needs 0.1 s of CPU time to read its messages
    for _ in range(5):
        share.spent(0.02)
    await share.wait()
    # then the next one is read at once
    assert loop.time() == pytest.approx(1000.0)
    # and each further 0.01 s of CPU time delays the next message by 0.2 s
    for after in (1000.2, 1000.4):
        share.spent(0.01)
        await share.wait()
        assert loop.time() == pytest.approx(after)


@in_virtual_time
async def test_time_in_which_the_operator_gets_no_cpu_is_not_charged_to_a_job():
    """On a busy node a job's status was 3.4 s late: reading took 0.2 s, in which other processes had the CPU."""
    share, loop = Share(), asyncio.get_running_loop()
    await asyncio.sleep(1000.0)
    with share.spending():
        time.sleep(0.2)  # noqa: ASYNC251 (the process stands still)
    await share.wait()
    assert loop.time() == pytest.approx(1000.0)


async def endless_messages(peer: Peer) -> None:
    await peer.prove()
    text = b'{"type":"Refused","reason":"r","x":[' + b"[]," * 10_000 + b"[]]}"
    await _forever(peer, lambda: peer.framed(text))


async def endless_small_messages(peer: Peer) -> None:
    await peer.prove()
    await _forever(peer, lambda: b"".join(peer.framed(b'{"type":"X"}') for _ in range(100)))


async def endless_empty_messages(peer: Peer) -> None:
    await peer.prove()
    await _forever(peer, lambda: b"".join(peer.framed(b"") for _ in range(100)))


async def one_byte_a_time(peer: Peer) -> None:
    await peer.prove()
    await peer.send(b"\x82\x7e\xff\xff")
    while True:
        await peer.send(b"x")
        await asyncio.sleep(0.01)


@pytest.mark.attack(
    "B2",
    "a coordinator sends messages without end, or a byte at a time",
    before="the operator read and parsed them as fast as they came, and all jobs waited",
)
@pytest.mark.parametrize(
    "do",
    [
        endless_messages,
        endless_small_messages,
        endless_empty_messages,
        one_byte_a_time,
    ],
)
async def test_a_hostile_coordinator_costs_another_job_nothing(do: Do):
    # given a job with a hostile coordinator, and one with an honest coordinator
    honest = FakeSidecar(POD_UID)
    await honest.start(KEYS.membership, OPERATOR_PUBLIC, JOB_UID)
    async with a_line_to(do) as hostile:
        flood = asyncio.create_task(listen(hostile))

        # when the honest one reports
        async with open_line(honest.ip, POD_UID, JOB_UID, KEYS, MESSAGE_BYTES) as line:
            messages, received = line.messages(), list[object]()
            await until(lambda: bool(honest.observers))
            for number in range(20):
                await honest.report(a_snapshot(number, (), leadership_term=Term(1, 1), pod_uid="uid-s"))
                received.append(await anext(messages))

        # then the operator receives all reports
        assert [x.token.round for x in received if isinstance(x, Snapshot)] == list(range(20))
        flood.cancel()
        await asyncio.gather(flood, return_exceptions=True)
    await honest.stop()


def sent_by_a_thread(flood: Callable[[Peer], Iterator[bytes]]) -> Do:
    """A peer that sends from a thread of its own, so that its CPU time is not that of the operator's thread."""

    async def do(peer: Peer) -> None:
        await peer.prove()
        with peer.socket() as sock:

            def send() -> None:
                with suppress(OSError):
                    for data in flood(peer):
                        sock.sendall(data)

            await asyncio.get_running_loop().run_in_executor(None, send)

    return do


def messages_without_end(peer: Peer) -> Iterator[bytes]:
    while True:
        yield b"".join(peer.framed(b'{"type":"X"}') for _ in range(1000))


def empty_messages_without_end(peer: Peer) -> Iterator[bytes]:
    while True:
        yield b"".join(peer.framed(b"") for _ in range(1000))


def bytes_without_end(peer: Peer) -> Iterator[bytes]:
    """Pieces of valid messages. The sender pauses after each byte, so that the operator reads few at a time."""
    while True:
        for byte in peer.framed(b'{"type":"X","x":"' + b"x" * 5000 + b'"}'):
            time.sleep(0.00005)
            yield bytes([byte])


@pytest.mark.attack(
    "B2",
    "a coordinator sends messages without end, or a few bytes at a time without end",
    before="a few bytes at a time took all of the operator's time, because reading them was not charged",
)
@pytest.mark.parametrize("flood", [messages_without_end, empty_messages_without_end, bytes_without_end])
async def test_the_bytes_of_a_job_take_a_twentieth_of_the_operators_cpu_time(flood: Callable[[Peer], Iterator[bytes]]):
    async with peer(sent_by_a_thread(flood)) as ip, open_line(ip, POD_UID, JOB_UID, KEYS, MESSAGE_BYTES) as line:
        before = time.thread_time()
        with suppress(TimeoutError):
            await asyncio.wait_for(listen(line), 2.5)
        spent_s = time.thread_time() - before
    # A twentieth of 2.5 s, and of the last 2 s before it.
    assert spent_s <= 0.225 + 0.3  # without the limit: 2.5


# Calls of many peers --------------------------------------------------------------------------------------------------


@pytest.mark.attack(
    "B2",
    "the pods of 70 jobs of a namespace accept the operator's calls and say nothing",
    before="an operator called the pods of 2,000 new jobs at once: most calls took too long, and were repeated",
)
async def test_a_namespace_is_called_64_times_at_once_and_delays_no_call_to_another_one():
    # given 70 silent pods of one namespace
    limits, begun = LineLimits(), 0

    async def silent(_: Peer) -> None:
        nonlocal begun
        begun += 1

    async def call(ip: str, namespace: str) -> None:
        async with open_line(ip, POD_UID, JOB_UID, KEYS, MESSAGE_BYTES, Share(namespace, limits)):
            pass

    async with asyncio.timeout(LIMIT_S), peer(silent) as ip, peer(Peer.prove) as honest:
        # when the operator calls all of them
        calls = [asyncio.create_task(call(ip, "evil")) for _ in range(70)]
        await until(lambda: begun == 64)
        # then a call to a pod of another namespace succeeds at once
        await call(honest, "research")
        assert begun == 64
        # and a call that has failed makes room for the next one
        calls[0].cancel()
        await until(lambda: begun == 65)
        for task in calls:
            task.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    assert not limits.calls.taken


async def test_the_time_of_a_call_begins_with_its_turn(monkeypatch: pytest.MonkeyPatch):
    # given room for one call, and two pods that answer after 60 % of the time that they have
    monkeypatch.setattr(lines, "CONNECT_S", 2.0)
    limits = LineLimits(calls=FairSemaphore(1, 1, 1000))

    async def late(peer: Peer) -> None:
        await asyncio.sleep(1.2)
        await peer.prove()

    async def call(ip: str) -> None:
        async with open_line(ip, POD_UID, JOB_UID, KEYS, MESSAGE_BYTES, Share("research", limits)):
            pass

    # when the operator calls both, then both calls succeed
    async with asyncio.timeout(LIMIT_S), peer(late) as one, peer(late) as two:
        await asyncio.gather(call(one), call(two))


# Long messages of many lines ------------------------------------------------------------------------------------------

MIB = 1 << 20


async def one_byte_less(peer: Peer) -> None:
    """A message of 1 MiB without its last byte."""
    await peer.prove()
    await peer.send(peer.framed(b"x" * (MIB - 100))[:-1])


async def a_long_message(peer: Peer) -> None:
    await peer.prove()
    await peer.send_message(wire.encode(Refused("r" * 500_000)).encode())


@pytest.mark.attack(
    "B2",
    "pods of many jobs each send a long message without its end",
    before="the operator kept all of them: 1 GiB of 130 jobs with 8 pods, and again after each restart",
)
async def test_the_memory_of_unfinished_messages_of_all_lines_is_limited():
    # given room for 4 MiB, 2 MiB of which are the limit of a namespace, and 12 pods of one namespace
    limits = LineLimits(room=FairSemaphore(4 * MIB, 2 * MIB, 1000))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(LIMIT_S))
        listening = list[asyncio.Task[None]]()
        lines = list[Line]()

        async def a_line(do: Do, namespace: str) -> Line:
            ip = await stack.enter_async_context(peer(do))
            share = Share(namespace, limits)
            return await stack.enter_async_context(open_line(ip, POD_UID, JOB_UID, KEYS, MESSAGE_BYTES, share))

        def kept() -> list[int]:
            return [len(line._received) for line in lines]

        # when each pod sends 1 MiB without its end
        for _ in range(12):
            lines.append(await a_line(one_byte_less, "evil"))
            listening.append(asyncio.create_task(listen(lines[-1])))
        await until(lambda: sum(size > MIB - 200 for size in kept()) == 2 and min(kept()) >= 16 << 10)

        # then all lines together keep two messages, and the beginning of each of the others
        assert sum(kept()) <= 2 * MIB + 10 * (16 << 10)
        # and a long message of another namespace is received at once
        honest = await a_line(a_long_message, "research")
        assert await anext(honest.messages()) == Refused("r" * 500_000)
        # and a line that has ended gives its room back
        for task in listening:
            task.cancel()
        await asyncio.gather(*listening, return_exceptions=True)
    assert not limits.room.taken


async def never_reads(peer: Peer) -> None:
    await peer.prove()


@pytest.mark.attack(
    "B2",
    "a coordinator never reads what the operator sends",
    before="the operator kept every message for it, without a limit",
)
async def test_a_peer_that_does_not_read_is_cut_off():
    facts = Nodes(tuple(NodeFact(f"node-{number}", "x" * 100) for number in range(5000)))
    async with a_line_to(never_reads) as line:
        for _ in range(100):
            line.enqueue(facts)
            await asyncio.sleep(0)
        assert line.unsent < 4 << 20
        assert [message async for message in line.messages()] == []


# Messages that a relay has changed ------------------------------------------------------------------------------------

NEWS = b'{"type":"Refused","reason":"r"}'


async def changed_bit(peer: Peer) -> None:
    await peer.prove()
    sealed = peer.framed(NEWS)
    await peer.send(sealed[:-1] + bytes((sealed[-1] ^ 1,)))


async def repeated_message(peer: Peer) -> None:
    await peer.prove()
    await peer.send(peer.framed(NEWS) * 2)


async def lost_message(peer: Peer) -> None:
    await peer.prove()
    peer.framed(NEWS)
    await peer.send_message(NEWS)


async def message_of_the_operators_own(peer: Peer) -> None:
    await peer.prove()
    await peer.send(frame(Opcode.BINARY, await peer.sealed_message(), masked=False))


async def message_in_clear(peer: Peer) -> None:
    await peer.prove()
    await peer.send(frame(Opcode.TEXT, NEWS, masked=False))


async def ping_in_clear(peer: Peer) -> None:
    await peer.prove()
    await peer.send(frame(Opcode.PING, b"", masked=False))


async def pong_in_clear(peer: Peer) -> None:
    await peer.prove()
    await peer.send(frame(Opcode.PONG, b"", masked=False))


async def message_in_fragments(peer: Peer) -> None:
    await peer.prove()
    await peer.send(b"\x02" + peer.framed(NEWS)[1:])


@pytest.mark.attack(
    "C1",
    "a relay between the operator and a sidecar changes, repeats, drops, or adds messages",
    before="messages were neither encrypted nor authenticated",
)
@pytest.mark.parametrize(
    ("do", "expected"),
    [
        (changed_bit, "ProtocolError: a message cannot be opened with the session's key"),
        (repeated_message, "ProtocolError: a message cannot be opened with the session's key"),
        (lost_message, "ProtocolError: a message cannot be opened with the session's key"),
        (message_of_the_operators_own, "ProtocolError: a message cannot be opened with the session's key"),
        (message_in_clear, "ProtocolError: expected a binary frame, got a text one"),
        (ping_in_clear, "ProtocolError: expected a message, got a control frame (9)"),
        (pong_in_clear, "ProtocolError: expected a message, got a control frame (10)"),
        (message_in_fragments, "ProtocolError: expected a message in one frame, got a frame that begins with 0x02"),
    ],
)
async def test_a_message_that_a_relay_has_forged_or_changed_ends_the_line(
    do: Do, expected: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lines, "PING_S", 0.05)
    assert await failure_of(do) == expected


# Keepalives -----------------------------------------------------------------------------------------------------------


class SilentHandler:
    """The handler of a sidecar that has nothing to report."""

    def add(self, link: Link) -> None: ...
    def on_message(self, link: Link, message: object) -> None: ...
    def on_dropped(self, link: Link, silent: bool) -> None: ...
    def add_observer(self, link: Link) -> None: ...
    def on_observer_message(self, link: Link, message: object) -> None: ...
    def on_observer_dropped(self, link: Link) -> None: ...


IP = "10.0.0.1"


@asynccontextmanager
async def an_ended_line(near: socket.socket, message_bytes: int = MESSAGE_BYTES) -> AsyncIterator[Line]:
    """One end of a socket pair, on which bytes arrive at once: virtual time passes only while both sides wait."""
    near.setblocking(False)
    line, call = Line(near, Share()), Call("", IP)
    await line.upgrade(IP, COORDINATOR_PORT)
    await line.begin(
        HandshakeCaller(KEYS.membership, Role.OBSERVER, JOB_UID, call, KEYS.operator), POD_UID, message_bytes
    )
    writing = asyncio.create_task(line.write())
    try:
        yield line
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


@asynccontextmanager
async def a_line_in_virtual_time(do: Do, message_bytes: int = MESSAGE_BYTES) -> AsyncIterator[Line]:
    near, far = socket.socketpair()
    with near, far:
        doing = asyncio.create_task(_do(do, far))
        try:
            async with an_ended_line(near, message_bytes) as line:
                yield line
        finally:
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)


async def _do(do: Do, far: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=far)
    try:
        await do(Peer(reader, writer, IP))
        await asyncio.Event().wait()
    finally:
        writer.transport.abort()


@in_virtual_time
async def test_the_line_to_a_sidecar_with_nothing_to_report_lasts():
    # given a real sidecar's server that has nothing to report
    near, far = socket.socketpair()
    server = Server(SilentHandler(), SidecarIdentity(POD_UID, IP, OPERATOR_PUBLIC), KEYS.membership, JOB_UID)
    await asyncio.get_running_loop().connect_accepted_socket(server._caller, far)
    with near:
        async with an_ended_line(near) as line:
            # when ten minutes pass,
            # then the server has answered all empty messages, and the line is open
            assert await is_open_after(600.0, line)
    await server.close(0.0)


@in_virtual_time
async def test_an_empty_message_is_sent_every_two_seconds():
    loop, times = asyncio.get_running_loop(), list[float]()

    async def answer(peer: Peer) -> None:
        await peer.prove()
        while True:
            assert await peer.message() == b""
            times.append(loop.time())
            await peer.send_message(b"")

    async with a_line_in_virtual_time(answer) as line:
        assert await is_open_after(7.0, line)
    assert times == pytest.approx([2.0, 4.0, 6.0], abs=0.01)


async def silent_after_the_proof(peer: Peer) -> None:
    await peer.prove()


async def dripping(peer: Peer) -> None:
    await peer.prove()
    for byte in peer.framed(b"x" * 1000):
        await asyncio.sleep(0.1)
        await peer.send(bytes((byte,)))


@pytest.mark.parametrize("do", [silent_after_the_proof, dripping])
@in_virtual_time
async def test_a_line_ends_if_the_peer_sends_no_whole_message_for_3_seconds(do: Do):
    loop = asyncio.get_running_loop()
    async with a_line_in_virtual_time(do) as line:
        with pytest.raises(TimeoutError, match="no complete message arrived for 3 s"):
            await listen(line)
    assert loop.time() == pytest.approx(3.25, abs=0.11)


async def _reporting(peer: Peer) -> None:
    while True:
        await asyncio.sleep(1.0)
        await peer.send_message(NEWS)


async def reports_that_come_late(peer: Peer) -> None:
    """The pod is dead. A relay forwards one of its reports each second."""
    await peer.prove()
    await _reporting(peer)


def answers_that_come_late(delay_s: float) -> Do:
    """A relay forwards reports at once, and each answer to an empty message after this delay."""

    async def do(peer: Peer) -> None:
        loop = asyncio.get_running_loop()
        await peer.prove()
        reports = asyncio.create_task(_reporting(peer))
        answers = set[asyncio.Task[None]]()

        async def answer(at: float) -> None:
            await asyncio.sleep(at - loop.time())
            await peer.send_message(b"")

        try:
            while True:
                assert await peer.message() == b""
                answers.add(asyncio.create_task(answer(loop.time() + delay_s)))
        finally:
            for task in (reports, *answers):
                task.cancel()
            await asyncio.gather(reports, *answers, return_exceptions=True)

    return do


@pytest.mark.attack(
    "C1",
    "a relay holds back messages of a pod that is dead by now, and lets them through one by one",
    before="the pod seemed to be alive for as long as they lasted",
)
@pytest.mark.parametrize(
    ("do", "ended_at_s"),
    [
        (reports_that_come_late, 6.0),
        # The answer to the message of 2.0 s arrives at 7.0 s, 7 s after the handshake.
        (answers_that_come_late(5.0), 6.0),
    ],
)
@in_virtual_time
async def test_a_line_ends_when_a_message_of_the_operator_has_no_answer_for_six_seconds(do: Do, ended_at_s: float):
    loop = asyncio.get_running_loop()
    async with a_line_in_virtual_time(do) as line:
        with pytest.raises(TimeoutError, match="no message that was sent in the last 6 s has been answered"):
            await listen(line)
    assert loop.time() == pytest.approx(ended_at_s + 0.25, abs=0.11)


@in_virtual_time
async def test_a_line_lasts_if_answers_take_3_seconds():
    async with a_line_in_virtual_time(answers_that_come_late(3.0)) as line:
        assert await is_open_after(60.0, line)


async def _sent_at(peer: Peer, message: bytes, bytes_per_s: int) -> None:
    """In pieces of 64 KiB."""
    await peer.prove()
    sealed = peer.framed(message)
    for start in range(0, len(sealed), 1 << 16):
        await asyncio.sleep((1 << 16) / bytes_per_s)
        await peer.send(sealed[start : start + (1 << 16)])


@in_virtual_time
async def test_a_long_message_at_2_mib_a_second_is_received():
    message = Refused("x" * (16 << 20))

    async def send(peer: Peer) -> None:
        await _sent_at(peer, wire.encode(message).encode(), 2 << 20)

    async with a_line_in_virtual_time(send, message_bytes=32 << 20) as line:
        assert await anext(line.messages()) == message
    assert asyncio.get_running_loop().time() == pytest.approx(8.0, abs=0.1)


@in_virtual_time
async def test_a_line_ends_if_a_long_message_arrives_at_half_a_mib_a_second():
    async def send(peer: Peer) -> None:
        await _sent_at(peer, b"x" * (16 << 20), 1 << 19)

    # 3.25 s, plus the time of the bytes so far at 1 MiB/s: the deadline of a message that would take 32 s is 6.5 s.
    async with a_line_in_virtual_time(send, message_bytes=32 << 20) as line:
        with pytest.raises(TimeoutError, match="no complete message arrived for 3 s"):
            await listen(line)
    assert asyncio.get_running_loop().time() == pytest.approx(6.5, abs=0.2)


async def garbage_as_a_long_message(peer: Peer) -> None:
    """The pod is dead. A relay sends the header of a message of 4 MiB, and bytes of its own at 1 MiB/s."""
    await peer.prove()
    await asyncio.sleep(2.9)
    await peer.send(b"\x82\x7f" + (4 * MIB).to_bytes(8, "big"))
    for _ in range(63):
        await asyncio.sleep(1 / 16)
        await peer.send(bytes(MIB // 16))


async def long_messages_that_come_late(peer: Peer) -> None:
    """The pod is dead. A relay forwards its messages of 1 MiB, at 1 MiB/s."""
    await peer.prove()
    text = wire.encode(Refused("x" * (MIB - 100))).encode()
    while True:
        message = peer.framed(text)
        for start in range(0, len(message), 1 << 16):
            await asyncio.sleep(1 / 16)
            await peer.send(message[start : start + (1 << 16)])


@pytest.mark.attack(
    "C1",
    "a relay makes a dead pod seem alive by long messages, or by bytes that look like one",
    before="each MiB of the messages that the relay had held back gave the pod another second, without a limit",
)
@pytest.mark.parametrize(
    ("do", "error", "ended_at_s"),
    [
        (garbage_as_a_long_message, "no complete message arrived for 3 s", 3.0 + 63 / 16),
        (long_messages_that_come_late, "no message that was sent in the last 6 s has been answered", 6.0 + 4.0),
    ],
)
@in_virtual_time
async def test_long_messages_extend_the_time_of_a_peer_by_one_second_for_each_mib_of_the_limit(
    do: Do, error: str, ended_at_s: float, monkeypatch: pytest.MonkeyPatch
):
    # given a line on which a message may have 4 MiB, and a machine that reads one in no time: on a slow one, the line
    # waits while the job has used its share of the CPU time
    monkeypatch.setattr(lines, "SHARE", 1e6)
    async with a_line_in_virtual_time(do, message_bytes=4 * MIB) as line:
        with pytest.raises((TimeoutError, ProtocolError), match=error):
            await listen(line)
    assert asyncio.get_running_loop().time() == pytest.approx(ended_at_s + 0.25, abs=0.2)


@in_virtual_time
async def test_time_in_which_the_operator_is_stopped_does_not_count_against_the_peer():
    # given a message that arrives in many parts while the operator's process is stopped
    message = Refused("x" * 150_000)

    async def send(peer: Peer) -> None:
        await peer.prove()
        await asyncio.sleep(2.5)
        await peer.send_message(wire.encode(message).encode())

    async with a_line_in_virtual_time(send) as line:
        reading = asyncio.ensure_future(anext(line.messages()))
        await asyncio.sleep(2.0)
        _block_process(60.0)
        # when the process continues after the time limit of one message,
        # then it receives the message
        assert await reading == message


def _block_process(seconds: float) -> None:
    """All timers of this time are due, and the event loop has not checked the sockets."""
    loop = asyncio.get_running_loop()
    loop._clock.now += seconds  # type: ignore[attr-defined]  # of tests/unit/virtual_time.py
