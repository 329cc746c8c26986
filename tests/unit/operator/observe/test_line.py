"""The operator's line to a pod that is not what it should be: no answer costs other jobs anything."""

import asyncio
import secrets
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from tests.integration.operator.coordinator import FakeSidecar, loopback_address
from tests.integration.operator.training import a_snapshot
from tests.unit.virtual_time import in_virtual_time
from understudy_operator.observe import line as lines
from understudy_operator.observe.line import FAILURES, Line, Share, open_line
from understudy_protocol import compiled, handshake, observer, wire
from understudy_protocol import pod as names
from understudy_protocol.frames import Broken, Frames, Opcode, frame
from understudy_protocol.handshake import Challenge, Hello, server_proof
from understudy_protocol.observer import NodeFact, Nodes, Refused, Snapshot
from understudy_protocol.upgrade import accept
from understudy_protocol.words import Office

KEY, JOB_UID = b"the job's key", "job-uid"
LIMIT_S = 10.0
MESSAGE_BYTES = 1 << 20
_HANDSHAKE = wire.message_types(handshake)
_OBSERVER = wire.message_types(observer)
Do = Callable[["Peer"], Awaitable[None]]


class Peer:
    """The other end of one line, as bytes. It goes as far as a test says."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._received = bytearray()
        self._frames = Frames(self._received, masked=True, limit=1 << 22)

    async def accept(self) -> None:
        head = await self._reader.readuntil(b"\r\n\r\n")
        await self.send(accept(head[:-4], names.MEMBERSHIP_PATH))

    async def prove(self) -> None:
        """The peer knows the key: it is a pod of the job."""
        await self.accept()
        hello = wire.decode(await self.text(), _HANDSHAKE)
        assert isinstance(hello, Hello)
        nonce = secrets.token_hex(16)
        proof = server_proof(KEY, hello.role, hello.job_uid, hello.nonce, nonce)
        await self.say(wire.encode(Challenge(nonce, proof)).encode())
        await self.text()

    async def text(self) -> bytes:
        while True:
            taken = self._frames.take()
            if taken is not None and taken[0] == Opcode.TEXT:
                return taken[1]
            if taken is None:
                data = await self._reader.read(1 << 16)
                if not data:
                    raise ConnectionError
                self._received += data

    async def say(self, text: bytes) -> None:
        await self.send(frame(Opcode.TEXT, text, masked=False))

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()


@asynccontextmanager
async def peer(do: Do) -> AsyncIterator[str]:
    """A pod at whose address this happens to each caller. Its address."""
    ip, calls = loopback_address(), list[asyncio.Task[None]]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await do(Peer(reader, writer))
                await asyncio.Event().wait()
        finally:
            writer.transport.abort()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.append(asyncio.create_task(answer(reader, writer)))

    server = await asyncio.start_server(serve, ip, names.COORDINATOR_PORT)
    try:
        yield ip
    finally:
        server.close()
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.sleep(0)  # the transports close their sockets


async def failure_of(do: Do, message_bytes: int = MESSAGE_BYTES) -> str:
    """How the line to such a peer ends."""
    async with asyncio.timeout(LIMIT_S), peer(do) as ip:
        try:
            async with open_line(ip, JOB_UID, KEY, message_bytes) as line:
                await listen(line)
        except FAILURES as error:
            return f"{type(error).__name__}: {error}"
        return "the peer ended it"


async def listen(line: Line) -> None:
    async for _ in line.messages():
        pass


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 (the fake tells by a plain attribute)
        await asyncio.sleep(0)


async def _forever(peer: Peer, data: bytes) -> None:
    while True:
        await peer.send(data)


# Before the proof ----------------------------------------------------------------------------------------------------


async def endless_head(peer: Peer) -> None:
    await _forever(peer, b"HTTP/1.1 101 Switching Protocols\r\nX: " + b"x" * 8000)


async def endless_noise(peer: Peer) -> None:
    await _forever(peer, b"\xff" * 8000)


async def long_message(peer: Peer) -> None:
    await peer.accept()
    await peer.send(frame(Opcode.TEXT, b"x" * 2_000_000, masked=False))


async def many_fragments(peer: Peer) -> None:
    await peer.accept()
    await peer.send(b"\x01\x01x")
    await _forever(peer, b"\x00\x01x" * 4000)


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
        (many_fragments, "expected the proof of the key within 1024 bytes"),
        (pings, "expected a message before the proof, got a control frame"),
    ],
)
async def test_before_the_proof_a_peer_may_send_1_kib(do: Do, expected: str):
    assert expected in await failure_of(do)


async def slow_head(peer: Peer) -> None:
    while True:
        await peer.send(b"H")
        await asyncio.sleep(0.05)


async def slow_challenge(peer: Peer) -> None:
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
@pytest.mark.parametrize("do", [slow_head, slow_challenge, silence])
async def test_before_the_proof_a_peer_has_one_deadline_for_everything(do: Do, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lines, "CONNECT_S", 0.5)
    assert await failure_of(do) == "TimeoutError: "


# Where it calls ------------------------------------------------------------------------------------------------------


@pytest.mark.attack(
    "B3",
    "a pod that the operator calls redirects it to another host",
    before="the operator sent a GET to any URL that the pod named",
)
@pytest.mark.parametrize("status", ["301 Moved Permanently", "302 Found", "307 Temporary Redirect"])
async def test_a_redirect_is_not_followed(status: str):
    reached = asyncio.Event()

    async def target(peer: Peer) -> None:
        reached.set()
        await peer.prove()

    async with peer(target) as elsewhere:

        async def redirect(peer: Peer) -> None:
            url = f"http://{elsewhere}:{names.COORDINATOR_PORT}{names.MEMBERSHIP_PATH}"
            await peer.send(f"HTTP/1.1 {status}\r\nLocation: {url}\r\nContent-Length: 0\r\n\r\n".encode())

        assert f"Broken: expected status 101, got b'HTTP/1.1 {status}'" == await failure_of(redirect)
        assert not reached.is_set()


@pytest.mark.parametrize("ip", ["", "metadata.google.internal", "10.0.0.1/x", "127.1", "10.0.0.1:80"])
async def test_only_an_ip_address_is_called(ip: str):
    with pytest.raises(Broken, match="expected an IP address"):
        async with open_line(ip, JOB_UID, KEY, MESSAGE_BYTES):
            pass


# After the proof -----------------------------------------------------------------------------------------------------


async def oversized(peer: Peer) -> None:
    await peer.prove()
    await peer.send(b"\x81\x7f" + (MESSAGE_BYTES + 1).to_bytes(8, "big"))
    await _forever(peer, b"x" * 8000)


async def oversized_in_fragments(peer: Peer) -> None:
    await peer.prove()
    await peer.send(b"\x01\x01x")
    await _forever(peer, b"\x00\x7e\x10\x00" + b"x" * 4096)


async def deeply_nested(peer: Peer) -> None:
    await peer.prove()
    await peer.say(b'{"type":"Refused","reason":"","x":' + b"[" * 500_000 + b"]" * 500_000 + b"}")


async def deeply_nested_type(peer: Peer) -> None:
    await peer.prove()
    await peer.say(b'{"x":' * 100_000 + b"1" + b"}" * 100_000)


async def wrong_lists(peer: Peer) -> None:
    await peer.prove()
    await peer.say(b'{"type":"Snapshot","members":[' + b"[]," * 300_000 + b"[]]}")


async def huge_number(peer: Peer) -> None:
    await peer.prove()
    await peer.say(b'{"type":"Refused","reason":"","electorate_epoch":' + b"9" * 100_000 + b"}")


@pytest.mark.attack(
    "B2",
    "a pod that knows the key of its job sends messages that are too long, or nested, or no messages",
    before="messages of up to 64 MiB were parsed into Python objects, twice",
)
@pytest.mark.parametrize(
    ("do", "expected"),
    [
        (oversized, "Broken: expected at most 1048576 bytes, got a message of 1048577 or more"),
        (oversized_in_fragments, "Broken: expected at most 1048576 bytes, got a message of"),
        (deeply_nested, "WireError: no message: maximum recursion depth exceeded"),
        (deeply_nested_type, "WireError: no message: "),
        (wrong_lists, "WireError: no message: Expected `object`, got `array` - at `$.members[0]`"),
        (huge_number, "WireError: expected numbers of at most 18 digits, got a longer one"),
    ],
)
async def test_a_message_that_breaks_a_limit_ends_the_line(do: Do, expected: str):
    assert expected in await failure_of(do)


async def test_a_message_may_be_as_long_as_the_limit_says():
    told = Refused("x" * 900_000)

    async def tell(peer: Peer) -> None:
        await peer.prove()
        await peer.say(wire.encode(told).encode())

    async with asyncio.timeout(LIMIT_S), peer(tell) as ip, open_line(ip, JOB_UID, KEY, MESSAGE_BYTES) as line:
        assert await anext(line.messages()) == told


@pytest.mark.attack(
    "B2",
    "6 MB of `[],` from the coordinator of a job of 10,000 pods",
    before="152 MB of memory, and a loop that stood still for 0.86 s",
)
@pytest.mark.parametrize("known", [b'{"type":"Refused","reason":"r","x":', b'{"type":"Later","x":'])
def test_values_that_no_field_takes_are_never_built(known: bytes):
    junk = known + b"[" + b"[]," * 2_000_000 + b"[]]}"
    tracemalloc.start()
    try:
        assert compiled.decode_untrusted(junk, _OBSERVER) in (Refused("r"), wire.Unknown("Later"))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@in_virtual_time
async def test_the_messages_of_a_job_take_a_twentieth_of_the_time():
    share, loop = Share(), asyncio.get_running_loop()
    # given a job that has sent nothing for long
    await asyncio.sleep(1000.0)
    # when reading its messages takes 0.1 s of CPU time
    for _ in range(5):
        share.spent(0.02)
    await share.wait()
    # then the next one is read at once
    assert loop.time() == pytest.approx(1000.0)
    # and what takes 0.01 s more costs a wait of 0.2 s each
    for after in (1000.2, 1000.4):
        share.spent(0.01)
        await share.wait()
        assert loop.time() == pytest.approx(after)


@in_virtual_time
async def test_a_moment_in_which_the_operator_gets_no_cpu_is_not_charged_to_a_job():
    """On a busy node a job's status was told 3.4 s late: reading took 0.2 s, in which other processes had the CPU."""
    share, loop = Share(), asyncio.get_running_loop()
    await asyncio.sleep(1000.0)
    with share.spending():
        time.sleep(0.2)  # noqa: ASYNC251 (the process stands still)
    await share.wait()
    assert loop.time() == pytest.approx(1000.0)


async def endless_messages(peer: Peer) -> None:
    await peer.prove()
    text = b'{"type":"Refused","reason":"r","x":[' + b"[]," * 300_000 + b"[]]}"
    await _forever(peer, frame(Opcode.TEXT, text, masked=False))


async def endless_small_messages(peer: Peer) -> None:
    await peer.prove()
    await _forever(peer, frame(Opcode.TEXT, b'{"type":"X"}', masked=False) * 1000)


async def endless_pings(peer: Peer) -> None:
    await peer.prove()
    await _forever(peer, frame(Opcode.PING, b"", masked=False) * 1000)


async def endless_fragments(peer: Peer) -> None:
    await peer.prove()
    await peer.send(b"\x01\x01x")
    await _forever(peer, b"\x00\x01x" * 4000)


async def one_byte_a_time(peer: Peer) -> None:
    await peer.prove()
    await peer.send(b"\x81\x7e\xff\xff")
    while True:
        await peer.send(b"x")
        await asyncio.sleep(0.01)


@pytest.mark.attack(
    "B2",
    "a coordinator sends messages, pings or fragments without end, or a byte at a time",
    before="the operator read and parsed them as fast as they came, and all jobs waited",
)
@pytest.mark.parametrize(
    "do", [endless_messages, endless_small_messages, endless_pings, endless_fragments, one_byte_a_time]
)
async def test_a_hostile_coordinator_costs_another_job_nothing(do: Do):
    # given a job whose coordinator is hostile, and one whose coordinator is not
    honest = FakeSidecar()
    await honest.start(KEY, JOB_UID)
    async with asyncio.timeout(LIMIT_S), peer(do) as ip, open_line(ip, JOB_UID, KEY, MESSAGE_BYTES) as hostile:
        flood = asyncio.create_task(listen(hostile))

        # when the latter reports
        async with open_line(honest.ip, JOB_UID, KEY, MESSAGE_BYTES) as line:
            messages, heard = line.messages(), list[object]()
            await until(lambda: bool(honest.observers))
            for number in range(20):
                await honest.tell(a_snapshot(number, (), office=Office(1, 1), pod_uid="uid-s"))
                heard.append(await anext(messages))

        # then all of it is heard
        assert [x.token.round for x in heard if isinstance(x, Snapshot)] == list(range(20))
        flood.cancel()
        await asyncio.gather(flood, return_exceptions=True)
    await honest.stop()


async def never_reads(peer: Peer) -> None:
    await peer.prove()


@pytest.mark.attack(
    "B2",
    "a coordinator never reads what the operator sends",
    before="the operator kept every message for it, without a limit",
)
async def test_a_peer_that_does_not_read_is_cut_off():
    facts = Nodes(tuple(NodeFact(f"node-{number}", "x" * 100) for number in range(5000)))
    async with asyncio.timeout(LIMIT_S), peer(never_reads) as ip, open_line(ip, JOB_UID, KEY, MESSAGE_BYTES) as line:
        for _ in range(100):
            line.say(facts)
            await asyncio.sleep(0)
        assert line.unsent < 4 << 20
        assert [message async for message in line.messages()] == []
