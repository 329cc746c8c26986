"""A program that ends while an update is undone: asyncio.run cancels every task, and the undo still completes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.unit.rollout.guarded import until
from tests.unit.rollout.model import PATIENT, TENSORS, Broken, Cluster, Fault, Kind, ModelEngine, Place, notes
from tests.unit.virtual_time import in_virtual_time, run
from understudy_rollout import JobLink, Replica, WeightsState, WeightUpdate

NO_FENCE = (0, 0, 0)


@pytest.fixture
def heard() -> Iterator[None]:
    """Enables Ctrl-C, which a shell makes its background commands ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


async def an_update(cluster: Cluster) -> None:
    cluster.sends = "v1"
    async with WeightUpdate(cluster.replicas, cluster.trainer, version="v1", timeouts=PATIENT) as update:
        await update.transfer(TENSORS)


def at_its_undo(engine: ModelEngine, call: Callable[[], None]) -> None:
    """Make the first resume_generation call this, and take a while."""
    resume, called = engine.resume_generation, False

    async def slow_resume() -> None:
        nonlocal called
        if not called:
            called = True
            call()
        await asyncio.sleep(1)
        await resume()

    engine.resume_generation = slow_resume  # type: ignore[method-assign]


def test_a_main_that_returns_during_the_undo_does_not_interrupt_it() -> None:
    # given an update in its own task, which fails
    cluster = Cluster()
    cluster.world.faults = [Fault("rollout-0", "receive", Place.IN, Kind.ERROR)]
    updating: list[asyncio.Task[None]] = []

    async def main() -> None:
        undoing = asyncio.Event()
        at_its_undo(cluster.engines["rollout-1"], undoing.set)
        updating.append(asyncio.ensure_future(an_update(cluster)))
        await undoing.wait()

    # when main returns while the update is undone
    run(main())
    # then everything is undone, and the first error is kept
    assert isinstance(updating[0].exception(), Broken)
    assert {x.weights.state for x in cluster.replicas} == {WeightsState.UNCERTAIN}
    cluster.check()


def test_a_main_that_returns_during_the_update_has_it_undone() -> None:
    cluster = Cluster()
    hanging = Fault("rollout-0", "receive", Place.IN, Kind.TIMEOUT)
    cluster.world.faults = [hanging]

    async def main() -> None:
        task = asyncio.ensure_future(an_update(cluster))
        await until(lambda: hanging.happened or task.done())

    run(main())
    assert {x.weights.state for x in cluster.replicas} == {WeightsState.UNCERTAIN}
    cluster.check()


def interrupt_in_the_call(loop: asyncio.AbstractEventLoop) -> None:
    signal.raise_signal(signal.SIGINT)


def interrupt_in_the_loop(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon(signal.raise_signal, signal.SIGINT)


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("interrupt", [interrupt_in_the_call, interrupt_in_the_loop])
def test_a_second_ctrl_c_in_asyncio_run_does_not_interrupt_the_undo(
    interrupt: Callable[[asyncio.AbstractEventLoop], None],
) -> None:
    # given an update that hangs in its transfer
    cluster = Cluster()
    hanging = Fault("rollout-0", "receive", Place.IN, Kind.TIMEOUT)
    cluster.world.faults = [hanging]

    async def main() -> None:
        loop = asyncio.get_running_loop()
        at_its_undo(cluster.engines["rollout-1"], lambda: interrupt(loop))

        async def first_ctrl_c() -> None:
            await until(lambda: hanging.happened)
            signal.raise_signal(signal.SIGINT)

        interrupting = asyncio.ensure_future(first_ctrl_c())
        await an_update(cluster)
        await interrupting

    # when Ctrl-C is pressed in the transfer, and once more during the undo
    with pytest.raises(KeyboardInterrupt):
        run_without_limit(main)
    # then everything is undone
    assert {x.weights.state for x in cluster.replicas} == {WeightsState.UNCERTAIN}
    cluster.check()


def run_without_limit(main: Callable[[], Awaitable[None]]) -> None:
    async def coroutine() -> None:
        await main()

    asyncio.run(coroutine())


def test_a_failure_is_counted_once_even_if_its_report_is_interrupted(tmp_path: Any) -> None:
    # given a sidecar that answers the report of a failure slowly
    reports: list[bytes] = []
    cluster = Cluster()
    cluster.world.faults = [Fault("rollout-0", "receive", Place.IN, Kind.ERROR)]
    link = JobLink(str(tmp_path / "s"), NO_FENCE, rank=0)

    async def main() -> None:
        reporting = asyncio.Event()

        async def sidecar(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            report = await reader.readline()
            if b'"failure": null' not in report:
                reporting.set()
                await asyncio.sleep(0.1)
            reports.append(report)
            writer.write(b"taken\n")
            writer.close()

        async def updating() -> None:
            update = WeightUpdate(cluster.replicas, cluster.trainer, version="v1", timeouts=PATIENT, job=link)
            async with update:
                await update.transfer(TENSORS)

        server = await asyncio.start_unix_server(sidecar, str(tmp_path / "s"))
        task = asyncio.ensure_future(updating())
        await reporting.wait()
        # when the update is canceled meanwhile
        task.cancel()
        await asyncio.wait({task})
        assert isinstance(task.exception(), Broken)
        server.close()

    asyncio.run(main())
    # then the failure is counted once
    assert b'"in_a_row": 1' in reports[-1]
    assert not any(b'"in_a_row": 2' in report for report in reports)
    cluster.check()


class WithoutFlush(ModelEngine):
    flush_cache = None  # type: ignore[assignment]


@in_virtual_time
async def test_an_engine_that_lacks_a_method_is_rejected_before_anything_is_stopped() -> None:
    cluster = Cluster()
    lame = Replica("rollout-1", WithoutFlush("rollout-1", cluster.world))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rollout-1: its engine WithoutFlush has no flush_cache"):
        WeightUpdate([cluster.replicas[0], lame], cluster.trainer, version="v1")
    assert cluster.engines["rollout-0"].calls == []
    assert {x.updated_by for x in cluster.replicas} == {None}


@in_virtual_time
async def test_an_update_requires_only_the_methods_that_it_calls() -> None:
    # given an engine that loads only from folders and keeps its KV cache
    cluster = Cluster(1)
    (replica,) = cluster.replicas
    for call in ("join_group", "receive", "release_kv", "resume_kv"):
        setattr(replica.engine, call, None)
    async with WeightUpdate([replica], version="v1", release_kv=False, timeouts=PATIENT) as update:
        await update.load("v1")
    assert replica.weights.version == "v1"
    with pytest.raises(ValueError, match="rollout-0: its engine ModelEngine has no release_kv, resume_kv"):
        WeightUpdate([replica], version="v2")
    with pytest.raises(ValueError, match="rollout-0: its engine ModelEngine has no join_group, receive"):
        WeightUpdate([replica], cluster.trainer, version="v2", release_kv=False)


@in_virtual_time
async def test_a_load_that_an_engine_lacks_touches_nothing() -> None:
    cluster = Cluster()
    cluster.engines["rollout-1"].load = None  # type: ignore[assignment,method-assign]
    with pytest.raises(ValueError, match="load: rollout-1: its engine ModelEngine has no load"):
        async with WeightUpdate(cluster.replicas, cluster.trainer, version="v1", timeouts=PATIENT) as update:
            await update.load("v1")
    assert {(x.weights.state, x.weights.version) for x in cluster.replicas} == {(WeightsState.FRESH, "v0")}
    cluster.check()


@in_virtual_time
async def test_trainers_and_gateways_that_lack_a_method_are_rejected_too() -> None:
    cluster = Cluster(1)
    cluster.trainer.leave_group = None  # type: ignore[assignment,method-assign]
    with pytest.raises(ValueError, match="trainer: ModelTrainer has no leave_group"):
        WeightUpdate(cluster.replicas, cluster.trainer, version="v1")
    cluster.gates["rollout-0"].abandon = None  # type: ignore[assignment,method-assign]
    with pytest.raises(ValueError, match="rollout-0: its admission ModelGate has no abandon"):
        WeightUpdate(cluster.replicas, version="v1")


@in_virtual_time
async def test_a_method_that_is_missing_during_the_undo_is_noted_on_the_first_error() -> None:
    # given an engine that loses a method during its update
    cluster = Cluster()
    engine = cluster.engines["rollout-1"]
    receive = engine.receive

    async def loses_its_flush(*of: Any) -> None:
        engine.flush_cache = None  # type: ignore[assignment,method-assign]
        await receive(*of)

    engine.receive = loses_its_flush  # type: ignore[method-assign,assignment]
    first = Fault("rollout-0", "receive", Place.IN, Kind.ERROR)
    # when the update fails, then its first error is raised, and the rest is undone
    error = await cluster.update("v1", first)
    assert error is first.raised
    assert any(line.startswith("and undo: flush the prefix cache, rollout-1: TypeError") for line in notes(error))
    cluster.check("rollout-1")
