"""The sidecar of a pool's spare over real connections: it waits, is claimed, and joins the job that claimed it."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.ports import free_port
from tests.sealed_socket import receive_hello, seal
from tests.unit.sidecar.calling import answering
from tests.unit.sidecar.pod_files import write_pod_files
from tests.unit.sidecar.recording_handler import (
    KEY,
    OPERATOR,
    OTHER_KEY,
    OTHER_OPERATOR,
    SealedCaller,
    begin,
    serving,
    until,
)
from tests.unit.sidecar.relay import Frame, To, relayed
from understudy_operator.apply.adoption_link import Adopter, AdoptionKeys, adopt
from understudy_operator.plan.intents import AdoptSpare
from understudy_operator.runtime import line
from understudy_operator.runtime.line import Keys
from understudy_protocol import handshake, launcher, membership, pod, wire
from understudy_protocol.adoption import Adopt, Adopted
from understudy_protocol.enums import NO_ROUND, WorkersState
from understudy_protocol.frames import Opcode
from understudy_protocol.handshake import Call, HandshakeCalled, HandshakeCaller, Role
from understudy_protocol.launcher import CheckReadiness, LauncherHello, Readiness, TakeOver
from understudy_protocol.noise import public_key
from understudy_protocol.observer import Observe, Refused
from understudy_protocol.order import Order
from understudy_protocol.pod import JobShape
from understudy_sidecar import pool_spare, records
from understudy_sidecar.client import Address
from understudy_sidecar.settings import read_spare

POOL, POOL_KEY, POD = "pool-uid", bytes(range(200, 232)), "pod-uid"
TAKE_OVER = TakeOver(("python", "train.py"), {"LR": "0.1"})
ORDER = Order(JobShape("job-uid", "research", "llm", 2, 8, 10, 3600.0), "127.0.0.1:1", KEY.hex(), TAKE_OVER)
OTHER = Order(JobShape("other-uid", "research", "b", 2, 8, 10, 3600.0), "127.0.0.1:1", OTHER_KEY.hex(), TAKE_OVER)
TO_LAUNCHER = {cls.__name__: cls for cls in launcher.TO_LAUNCHER}


def operator(
    role: Role = Role.CLAIMANT, uid: str = POOL, key: bytes = POOL_KEY, private: bytes | None = OPERATOR
) -> HandshakeCaller:
    """The operator as a caller of a spare; or another caller, with another private key or none."""
    return HandshakeCaller(key, role, uid, Call("", "127.0.0.1"), private)


@dataclass
class Spare:
    """A pod's folders and its address, which stay when its sidecar restarts."""

    folder: Path
    host: str = "127.0.0.1"
    task: asyncio.Task[None] | None = None

    def env(self) -> dict[str, str]:
        return {
            pod.ENV_POOL: POOL,
            pod.ENV_NODE: "n1",
            pod.ENV_POD_IP: self.host,
            pod.ENV_POD_FOLDER: str(self.folder / "own"),
            pod.ENV_STATE_FOLDER: str(self.folder / "state"),
            pod.ENV_SHARED_FOLDER: str(self.folder / "shared"),
            pod.ENV_SHIPPED_FOLDER: str(self.folder / "shipped"),
            pod.ENV_LISTEN: self.host,
        }

    def start(self) -> None:
        self.task = asyncio.create_task(pool_spare.run(self.env()))

    async def end(self) -> None:
        """End it as a kubelet does; its folders stay."""
        assert self.task is not None
        if not self.task.done():
            await eventually(self.ready)  # it listens, so its signal handlers are installed
            os.kill(os.getpid(), signal.SIGTERM)
        await self.task

    async def ready(self) -> int:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{self.host}:{pod.HEALTH_PORT}/ready") as got,
        ):
            return got.status

    @asynccontextmanager
    async def line(self, as_caller: HandshakeCaller) -> AsyncIterator[SealedCaller]:
        """A connection after its handshake. Raises handshake.NotProven, or EOFError if the sidecar hangs up."""
        url = f"http://{self.host}:{pod.COORDINATOR_PORT}{pod.MEMBERSHIP_PATH}"
        async with aiohttp.ClientSession() as session, session.ws_connect(url) as link:
            sealed = await begin(link, as_caller, answered_by=POD)
            if sealed is None:
                raise EOFError
            yield sealed

    async def adopt(self, order: Order = ORDER) -> object:
        async with self.line(operator()) as link:
            await link.send(Adopt(order))
            return await link.receive()

    @asynccontextmanager
    async def launcher(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_unix_connection(self.folder / "shared" / pod.LAUNCHER_SOCKET)
        writer.write(wire.encode(LauncherHello(1, NO_ROUND, None, WorkersState.IDLE, 4711)).encode() + b"\n")
        try:
            yield reader, writer
        finally:
            writer.close()


async def eventually(call):
    """The result of a call that is retried until it works: the sidecar may not listen yet."""
    async with asyncio.timeout(10):
        while True:
            try:
                return await call()
            except (OSError, EOFError, aiohttp.ClientError, handshake.NotProven):
                await asyncio.sleep(0.01)


async def order_of(reader: asyncio.StreamReader) -> object:
    return wire.decode(await reader.readline(), TO_LAUNCHER)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A unix socket's path has at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="understudy-") as folder:
        yield Path(folder)


@pytest.fixture
async def spare(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Spare]:
    for name in ("COORDINATOR_PORT", "HEALTH_PORT"):
        monkeypatch.setattr(pod, name, free_port())
    for name in ("own", "state", "shared", "shipped"):
        (short_folder / name).mkdir()
    (short_folder / "own" / pod.KEY_FILE).write_text(POOL_KEY.hex())
    (short_folder / "own" / pod.OPERATOR_KEY_FILE).write_text(public_key(OPERATOR).hex())
    write_pod_files(short_folder / "own", None, uid=POD, name="shared-abcde")
    it = Spare(short_folder)
    it.start()
    yield it
    await it.end()


async def test_it_is_ready_exactly_when_its_launcher_reports_that(spare: Spare) -> None:
    assert await eventually(spare.ready) == 503
    async with spare.launcher() as (reader, writer):
        check = await order_of(reader)
        assert isinstance(check, CheckReadiness)
        writer.write(wire.encode(Readiness(check.number, True)).encode() + b"\n")

        async def becomes(status: int) -> None:
            async with asyncio.timeout(10):
                while await spare.ready() != status:  # noqa: ASYNC110 (the sidecar sends no event)
                    await asyncio.sleep(0.01)

        await becomes(200)
        writer.write(wire.encode(Readiness(check.number, False, "the fork server loads")).encode() + b"\n")
        await becomes(503)


async def test_the_operator_sends_it_an_order_and_it_becomes_a_member_of_that_job(spare: Spare) -> None:
    assert await eventually(spare.adopt) == Adopted("job-uid")

    # then it proves the job's key, and is the sidecar of a member that does not coordinate
    async def ask() -> object:
        async with spare.line(operator(Role.OBSERVER, "job-uid", KEY)) as link:
            await link.send(Observe())
            return await link.receive()

    assert isinstance(await eventually(ask), Refused)

    # and its launcher first receives the command to run
    async def connect() -> object:
        async with spare.launcher() as (reader, _):
            return await order_of(reader)

    assert await eventually(connect) == TAKE_OVER


async def test_the_jobs_coordinator_receives_that_it_waited_warm(spare: Spare) -> None:
    # given the job's coordinator
    async with serving() as coordinator:
        order = replace(ORDER, coordinator=f"127.0.0.1:{coordinator.port}")

        # when the spare is claimed, and its launcher is connected
        assert await eventually(lambda: spare.adopt(order)) == Adopted("job-uid")

        async def connect() -> None:
            async with spare.launcher() as (reader, _):
                assert await order_of(reader) == TAKE_OVER
                await until(lambda: coordinator.handler.messages)

        await eventually(connect)

        # then its first message reports that
        (join,) = coordinator.handler.messages[:1]
        assert isinstance(join, membership.Join)
        assert (join.pod_uid, join.index, join.warm) == (POD, None, True)


def intent(spare: Spare, pod_uid: str = POD, shape: JobShape = ORDER.shape) -> AdoptSpare:
    return AdoptSpare(pod_uid, spare.host, POOL, shape, ORDER.coordinator, TAKE_OVER)


KEYS = AdoptionKeys(Keys(POOL_KEY, OPERATOR), KEY.hex())


async def test_the_operator_calls_it_until_it_has_answered(spare: Spare) -> None:
    changed = asyncio.Event()
    adopter = Adopter(changed.set, time.time)
    adopter.follow([(intent(spare), KEYS)])
    async with asyncio.timeout(10):
        await changed.wait()
    assert adopter.adoptions[POD].adopted
    assert records.recorded_order(spare.folder / "state") == ORDER

    # when another operator takes over, it gets the same answer
    assert await eventually(lambda: adopt(intent(spare), KEYS)) == ""
    adopter.follow([])
    assert adopter.adoptions == {}
    await adopter.close()


async def test_the_operator_receives_the_reason_why_a_spare_was_not_adopted(spare: Spare) -> None:
    await eventually(spare.adopt)
    refused = await eventually(lambda: adopt(intent(spare, shape=OTHER.shape), KEYS))
    assert refused == "it already belongs to job job-uid"
    with pytest.raises(ConnectionError, match="closed the connection"):
        await adopt(intent(spare), AdoptionKeys(Keys(OTHER_KEY, OPERATOR), KEY.hex()))


async def test_it_keeps_the_first_order_and_reports_its_job(spare: Spare) -> None:
    await eventually(spare.adopt)
    assert await eventually(lambda: spare.adopt(OTHER)) == Adopted("job-uid")


async def test_of_two_orders_at_once_it_keeps_the_first(spare: Spare) -> None:
    # given a sidecar that has not stopped waiting yet
    it = pool_spare.PoolSpareSidecar(read_spare(spare.env()))

    # when two operators send it orders of different jobs
    answers = [it.adopt(order) for order in (ORDER, OTHER)]

    # then both receive the job of the first order
    assert answers == [Adopted("job-uid"), Adopted("job-uid")]
    assert records.recorded_order(spare.folder / "state") == ORDER


async def test_a_spare_that_restarts_still_belongs_to_the_job(spare: Spare) -> None:
    await eventually(spare.adopt)
    await spare.end()
    spare.start()
    assert await eventually(lambda: spare.adopt(OTHER)) == Adopted("job-uid")
    assert records.recorded_order(spare.folder / "state") == ORDER


async def test_no_other_user_in_the_pod_can_read_the_jobs_key(spare: Spare) -> None:
    await eventually(spare.adopt)
    file = spare.folder / "state" / records.ORDER_FILE
    assert KEY.hex() in file.read_text(), "root of the node can read it"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not [
        path for path in (spare.folder / "shared").rglob("*") if path.is_file() and KEY.hex() in path.read_text()
    ]


async def test_an_order_for_one_spare_cannot_be_relayed_to_another_one(spare: Spare) -> None:
    # given a relay at the address of another spare of the pool
    await eventually(spare.ready)
    other = replace(intent(spare), pod_uid="uid-of-the-other-spare", address="127.0.0.2")
    async with relayed(Address(spare.host, pod.COORDINATOR_PORT), other.address, pod.COORDINATOR_PORT) as relay:
        # when the operator calls that address, and the relay forwards the call to this spare
        with pytest.raises(ConnectionError, match="closed the connection"):
            await adopt(other, KEYS)
        # then this spare refuses it, and the operator sends no order
        assert [len(frames) for frames in relay.seen.values()] == [1, 1], "a Hello, and a close frame"
        assert b"'127.0.0.2', which is not this pod's" in relay.seen[To.CALLER][0][1]
    assert records.recorded_order(spare.folder / "state") is None


@pytest.mark.attack("C1", "a relay that reads an order of the operator to a spare", before="it read the job's key")
async def test_a_relay_cannot_read_an_order(spare: Spare, monkeypatch: pytest.MonkeyPatch) -> None:
    await eventually(spare.ready)
    # given a relay between the operator and the spare
    async with relayed(Address(spare.host, pod.COORDINATOR_PORT)) as relay:
        monkeypatch.setattr(line, "split_port", lambda _: relay.address[:2])
        # when the operator sends an order through it
        assert await adopt(intent(spare), KEYS) == ""
        # then the relay has seen neither the job's key nor its name
        seen = relay.received[To.SIDECAR]
        assert len(seen) > 500
        for text in (KEY, KEY.hex().encode(), b"llm", b"Adopt", b"train.py"):
            assert text not in seen
    assert records.recorded_order(spare.folder / "state") == ORDER


@pytest.mark.attack("C1", "a relay that changes an order of the operator to a spare", before="it could change the key")
async def test_a_spare_ignores_an_order_that_a_relay_has_changed(spare: Spare, monkeypatch: pytest.MonkeyPatch) -> None:
    await eventually(spare.ready)
    async with relayed(Address(spare.host, pod.COORDINATOR_PORT)) as relay:
        monkeypatch.setattr(line, "split_port", lambda _: relay.address[:2])
        # given a relay that inverts a bit of the order
        changed: list[bytes] = []

        def change(to: To, each: Frame) -> list[Frame]:
            if to is To.SIDECAR and len(each[1]) > 100 and each[0] == Opcode.BINARY:
                changed.append(each[1])
                return [(each[0], each[1][:50] + bytes([each[1][50] ^ 1]) + each[1][51:])]
            return [each]

        relay.pass_on = change
        # when the operator sends an order through it
        with pytest.raises((ConnectionError, EOFError)):
            await adopt(intent(spare), KEYS)
        # then the spare hangs up, and belongs to no job
        assert len(changed) == 1
    assert records.recorded_order(spare.folder / "state") is None


async def test_a_thief_of_the_pools_key_that_answers_at_a_spares_address_gets_its_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A limit that docs/explanation/security.md states. The pool's key is in the sidecars of all spares of the pool."""
    orders: list[Order] = []

    async def thief(link: web.WebSocketResponse) -> None:
        called = HandshakeCalled(POOL_KEY, Role.CLAIMANT, POOL, POD, "127.0.0.1", public_key(OPERATOR))
        sealed = await seal(link, called, await receive_hello(link))
        message = wire.decode(await sealed.receive() or b"", {"Adopt": Adopt})
        assert isinstance(message, Adopt)
        orders.append(message.order)
        await sealed.send(wire.encode(Adopted("job-uid")).encode())
        await link.receive()

    # given a thief of the pool's key that receives the traffic to the address of a spare
    async with answering(thief) as address:
        monkeypatch.setattr(line, "split_port", lambda _: address[:2])
        # when the operator sends this spare an order
        adopted = await adopt(AdoptSpare(POD, address.host, POOL, ORDER.shape, ORDER.coordinator, TAKE_OVER), KEYS)
    # then the thief has the job's key
    assert adopted == ""
    assert [order.key for order in orders] == [KEY.hex()]


async def test_a_spare_at_the_previous_address_of_another_pod_gets_no_order_of_that_pod(spare: Spare) -> None:
    await eventually(spare.ready)
    with pytest.raises(handshake.NotProven, match="pod 'pod-uid' answers at the address of pod another"):
        await adopt(intent(spare, pod_uid="another"), KEYS)
    assert records.recorded_order(spare.folder / "state") is None
    assert await adopt(intent(spare), KEYS) == ""


@pytest.mark.attack("C1", "a caller without the pool's key that gives orders to its spares", before="refused, too")
@pytest.mark.parametrize(
    "as_caller",
    [
        operator(key=OTHER_KEY),
        operator(uid="another-pool"),
        operator(Role.MEMBER, private=None),
        operator(Role.OBSERVER, "job-uid", KEY),
        operator(Role.MEMBER, "", b"", private=None),
        operator(Role.OBSERVER, "", b""),
    ],
    ids=["another key", "another pool", "a member", "an observer", "a member without a key", "an observer without one"],
)
async def test_no_other_caller_is_accepted(spare: Spare, as_caller: HandshakeCaller) -> None:
    await eventually(spare.ready)
    with pytest.raises(EOFError):
        async with spare.line(as_caller):
            pass


@pytest.mark.attack("C2", "a spare that sends another one an order", before="the pool's key was enough")
@pytest.mark.parametrize("private", [OTHER_OPERATOR, None], ids=["with-a-key-of-its-own", "without-one"])
async def test_the_pools_key_does_not_prove_that_a_caller_is_the_operator(spare: Spare, private: bytes | None) -> None:
    await eventually(spare.ready)
    with pytest.raises(EOFError):
        async with spare.line(operator(private=private)):
            pass
    assert records.recorded_order(spare.folder / "state") is None


async def test_an_order_of_another_version_ends_the_connection(spare: Spare, caplog: pytest.LogCaptureFixture) -> None:
    await eventually(spare.ready)
    async with spare.line(operator()) as link:
        await link.send_text('{"v":3,"type":"Adopt","order":{"shape":{}}}')
        with pytest.raises(EOFError):
            await link.receive()
    assert any("Adopt.order" in text for text in caplog.messages)
    assert records.recorded_order(spare.folder / "state") is None
