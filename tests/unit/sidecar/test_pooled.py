"""The sidecar of a pool's spare over real connections: it waits, is claimed, and becomes its job's."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
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

from tests.ports import free_port
from tests.unit.sidecar.hall import serving, until
from understudy_operator.observe.adoption_link import Adopter, Keys, adopt
from understudy_operator.plan.intents import AdoptSpare
from understudy_protocol import adoption, handshake, launcher, membership, observer, pod, sealing, wire
from understudy_protocol.adoption import Adopt, Adopted, NotAdopted
from understudy_protocol.handshake import Caller, Role
from understudy_protocol.launcher import CheckReadiness, LauncherHello, Readiness, TakeOver
from understudy_protocol.observer import Observe, Refused
from understudy_protocol.order import Order
from understudy_protocol.pod import JobShape
from understudy_protocol.words import NO_ROUND, WorkersState
from understudy_sidecar import pooled, records
from understudy_sidecar.settings import read_spare

POOL, POOL_KEY, POD = "pool-uid", b"the pool's key", "pod-uid"
KEY = "the job's key"
TAKE_OVER = TakeOver(("python", "train.py"), {"LR": "0.1"})
ORDER = Order(JobShape("job-uid", "research", "llm", 2, 8, 10, 3600.0), "127.0.0.1:1", KEY, TAKE_OVER)
OTHER = Order(JobShape("other-uid", "research", "b", 2, 8, 10, 3600.0), "127.0.0.1:1", "k", TAKE_OVER)
KNOWN = {
    name: cls
    for module in (adoption, handshake, membership, observer)
    for name, cls in wire.message_types(module).items()
}
TO_LAUNCHER = {cls.__name__: cls for cls in launcher.TO_LAUNCHER}


@dataclass
class Spare:
    """A pod's folders and its address, which outlive its sidecar's lives."""

    folder: Path
    host: str = "127.0.0.1"
    task: asyncio.Task[None] | None = None

    def env(self) -> dict[str, str]:
        return {
            pod.ENV_POOL: POOL,
            pod.ENV_POD_UID: POD,
            pod.ENV_POD_NAME: "shared-abcde",
            pod.ENV_NODE: "n1",
            pod.ENV_POD_IP: self.host,
            pod.ENV_KEY_FOLDER: str(self.folder / "key"),
            pod.ENV_STATE_FOLDER: str(self.folder / "state"),
            pod.ENV_SHARED_FOLDER: str(self.folder / "shared"),
            pod.ENV_SHIPPED_FOLDER: str(self.folder / "shipped"),
            pod.ENV_TOLD_FOLDER: str(self.folder / "told"),
            pod.ENV_LISTEN: self.host,
        }

    def start(self) -> None:
        self.task = asyncio.create_task(pooled.run(self.env()))

    async def end(self) -> None:
        """As a kubelet ends it; its folders stay."""
        assert self.task is not None
        if not self.task.done():
            await eventually(self.ready)  # it listens, and so it hears signals
            os.kill(os.getpid(), signal.SIGTERM)
        await self.task

    async def ready(self) -> int:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{self.host}:{pod.HEALTH_PORT}/ready") as got,
        ):
            return got.status

    @asynccontextmanager
    async def line(
        self, role: Role = Role.CLAIMANT, uid: str = POOL, key: bytes = POOL_KEY
    ) -> AsyncIterator[tuple[aiohttp.ClientWebSocketResponse, str, str]]:
        """Through the handshake; with both nonces. Raises handshake.NotProven."""
        url = f"http://{self.host}:{pod.COORDINATOR_PORT}{pod.MEMBERSHIP_PATH}"
        caller = Caller(key, role, uid, secrets.token_hex(16))
        async with aiohttp.ClientSession() as session, session.ws_connect(url) as link:
            await link.send_str(wire.encode(caller.hello))
            frame = await link.receive()
            challenge = wire.decode(frame.data, KNOWN) if frame.type is aiohttp.WSMsgType.TEXT else None
            await link.send_str(wire.encode(caller.answer(challenge)))
            assert isinstance(challenge, handshake.Challenge)
            yield link, caller.hello.nonce, challenge.nonce

    async def adopt(self, order: Order = ORDER, pod_uid: str = POD) -> object:
        async with self.line() as (link, mine, its):
            sealed = sealing.seal(POOL_KEY, adoption.context(POOL, pod_uid, mine, its), wire.encode(order))
            await link.send_str(wire.encode(Adopt(sealed)))
            return wire.decode((await link.receive()).data, KNOWN)

    @asynccontextmanager
    async def launcher(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_unix_connection(self.folder / "shared" / pod.LAUNCHER_SOCKET)
        writer.write(wire.encode(LauncherHello(1, NO_ROUND, None, WorkersState.IDLE, 4711)).encode() + b"\n")
        try:
            yield reader, writer
        finally:
            writer.close()


async def eventually(call):
    """What an attempt gives once it works: the sidecar may not listen yet."""
    async with asyncio.timeout(10):
        while True:
            try:
                return await call()
            except (OSError, aiohttp.ClientError, handshake.NotProven):
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
    for name in ("key", "state", "shared", "shipped", "told"):
        (short_folder / name).mkdir()
    (short_folder / "key" / pod.KEY_FILE).write_bytes(POOL_KEY)
    it = Spare(short_folder)
    it.start()
    yield it
    await it.end()


async def test_it_is_ready_when_its_launcher_says_so_and_only_then(spare: Spare) -> None:
    assert await eventually(spare.ready) == 503
    async with spare.launcher() as (reader, writer):
        check = await order_of(reader)
        assert isinstance(check, CheckReadiness)
        writer.write(wire.encode(Readiness(check.number, True)).encode() + b"\n")

        async def becomes(status: int) -> None:
            async with asyncio.timeout(10):
                while await spare.ready() != status:  # noqa: ASYNC110 (the sidecar tells nobody)
                    await asyncio.sleep(0.01)

        await becomes(200)
        writer.write(wire.encode(Readiness(check.number, False, "the zygote loads")).encode() + b"\n")
        await becomes(503)


async def test_who_knows_the_pools_key_says_whose_it_is_and_it_becomes_that_jobs(spare: Spare) -> None:
    assert await eventually(spare.adopt) == Adopted("job-uid")

    # then it proves the job's key, and is a member's sidecar that is not in office
    async def ask() -> object:
        async with spare.line(Role.OBSERVER, "job-uid", KEY.encode()) as (link, _, _):
            await link.send_str(wire.encode(Observe()))
            return wire.decode((await link.receive()).data, KNOWN)

    assert isinstance(await eventually(ask), Refused)

    # and its launcher is told what to run before anything else
    async def connect() -> object:
        async with spare.launcher() as (reader, _):
            return await order_of(reader)

    assert await eventually(connect) == TAKE_OVER


async def test_the_jobs_coordinator_hears_that_it_waited_warm(spare: Spare) -> None:
    # given the job's coordinator
    async with serving() as coordinator:
        order = replace(ORDER, coordinator=f"127.0.0.1:{coordinator.port}")

        # when the spare is claimed, and its launcher is there
        assert await eventually(lambda: spare.adopt(order)) == Adopted("job-uid")

        async def connect() -> None:
            async with spare.launcher() as (reader, _):
                assert await order_of(reader) == TAKE_OVER
                await until(lambda: coordinator.hall.messages)

        await eventually(connect)

        # then that is in its first message
        (join,) = coordinator.hall.messages[:1]
        assert isinstance(join, membership.Join)
        assert (join.pod_uid, join.index, join.warm) == (POD, None, True)


def intent(spare: Spare, pod_uid: str = POD, shape: JobShape = ORDER.shape) -> AdoptSpare:
    return AdoptSpare(pod_uid, spare.host, POOL, shape, ORDER.coordinator, TAKE_OVER)


async def test_the_operator_tells_it_and_hears_that_it_has(spare: Spare) -> None:
    changed = asyncio.Event()
    adopter = Adopter(changed.set, time.time)
    wanted = [(intent(spare), Keys(POOL_KEY.decode(), KEY))]
    adopter.follow(wanted)
    async with asyncio.timeout(10):
        await changed.wait()
    assert adopter.adoptions[POD].adopted
    assert records.recorded_order(spare.folder / "state") == ORDER

    # when another operator takes over, it hears the same
    assert await eventually(lambda: adopt(*wanted[0])) == ""
    adopter.follow([])
    assert adopter.adoptions == {}
    await adopter.close()


async def test_the_operator_learns_why_one_was_not_adopted(spare: Spare) -> None:
    keys = Keys(POOL_KEY.decode(), KEY)
    assert "not sealed" in await eventually(lambda: adopt(intent(spare, pod_uid="another"), keys))
    with pytest.raises(handshake.NotProven):
        await adopt(intent(spare), Keys("another", KEY))
    await eventually(spare.adopt)
    assert await eventually(lambda: adopt(intent(spare, shape=OTHER.shape), keys)) == "it is of job job-uid already"


async def test_it_keeps_the_first_order_and_says_whose_it_is(spare: Spare) -> None:
    await eventually(spare.adopt)
    assert await eventually(lambda: spare.adopt(OTHER)) == Adopted("job-uid")


async def test_of_two_orders_at_once_it_keeps_the_first(spare: Spare) -> None:
    # given a sidecar that has not ended its waiting yet
    it = pooled.Pooled(read_spare(spare.env()))

    # when two operators tell it different jobs
    context = adoption.context(POOL, POD, "mine", "its")
    sealed = [sealing.seal(POOL_KEY, context, wire.encode(order)) for order in (ORDER, OTHER)]
    answers = [it.adopt(text, "mine", "its") for text in sealed]

    # then both hear of the first
    assert answers == [Adopted("job-uid"), Adopted("job-uid")]
    assert records.recorded_order(spare.folder / "state") == ORDER


async def test_one_that_is_started_anew_is_the_jobs_still(spare: Spare) -> None:
    await eventually(spare.adopt)
    await spare.end()
    spare.start()
    assert await eventually(lambda: spare.adopt(OTHER)) == Adopted("job-uid")
    assert records.recorded_order(spare.folder / "state") == ORDER


async def test_nobody_else_in_the_pod_can_read_the_jobs_key(spare: Spare) -> None:
    await eventually(spare.adopt)
    file = spare.folder / "state" / records.ORDER_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not [path for path in (spare.folder / "shared").rglob("*") if path.is_file() and KEY in path.read_text()]


async def test_an_order_for_another_pod_is_refused_and_the_right_one_taken_after_it(spare: Spare) -> None:
    refused = await eventually(lambda: spare.adopt(pod_uid="another-pod"))
    assert isinstance(refused, NotAdopted)
    assert await eventually(spare.adopt) == Adopted("job-uid")


@pytest.mark.parametrize(
    ("role", "uid", "key"),
    [
        (Role.CLAIMANT, POOL, b"another"),
        (Role.CLAIMANT, "another-pool", POOL_KEY),
        (Role.MEMBER, POOL, POOL_KEY),
        (Role.OBSERVER, "job-uid", KEY.encode()),
        (Role.MEMBER, "", b""),
        (Role.OBSERVER, "", b""),
    ],
)
async def test_nobody_else_is_heard(spare: Spare, role: Role, uid: str, key: bytes) -> None:
    await eventually(spare.ready)
    with pytest.raises(handshake.NotProven):
        await hung_up_on(spare, role, uid, key)


async def hung_up_on(spare: Spare, role: Role, uid: str, key: bytes) -> None:
    """Raises NotProven where it is, before the end of the handshake or after it."""
    async with spare.line(role, uid, key) as (link, _, _):
        assert (await link.receive()).type is aiohttp.WSMsgType.CLOSE
        raise handshake.NotProven("hung up")


async def test_an_order_of_another_version_is_refused_with_what_is_wrong(spare: Spare) -> None:
    async def adopt() -> object:
        async with spare.line() as (link, mine, its):
            text = json.dumps({"v": 3, "type": "Order", "shape": {}})
            sealed = sealing.seal(POOL_KEY, adoption.context(POOL, POD, mine, its), text)
            await link.send_str(wire.encode(Adopt(sealed)))
            return wire.decode((await link.receive()).data, KNOWN)

    refused = await eventually(adopt)
    assert isinstance(refused, NotAdopted)
    assert "Order" in refused.reason
