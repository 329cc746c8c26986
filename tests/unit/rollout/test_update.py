"""A weight update from its caller's view, and cancellations."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from tests.unit.rollout.guarded import until
from tests.unit.rollout.model import (
    OF_ENGINES,
    PATIENT,
    SHORT_S,
    TENSORS,
    Broken,
    Cluster,
    Fault,
    Kind,
    ModelEngine,
    ModelTrainer,
    Place,
    notes,
    only,
)
from tests.unit.virtual_time import in_virtual_time
from understudy_rollout import Group, Replica, Tensor, WeightsState, WeightUpdate
from understudy_rollout.failures import (
    NothingTransferred,
    StepTimedOut,
    TransferCancelled,
    UpdateInProgress,
    UpdateNotOpen,
)


@in_virtual_time
async def test_an_update_takes_every_step_once_and_in_order() -> None:
    cluster = Cluster()
    assert await cluster.update("v1") is None
    expected = [call for call in OF_ENGINES for _ in range(2 if call == "receive" else 1)]
    for replica in cluster.replicas:
        assert cluster.engines[replica.name].calls == expected
        assert cluster.gates[replica.name].calls == ["close", "join", "confirm", "open"]
        assert (replica.weights.state, replica.weights.version) == (WeightsState.FRESH, "v1")
    assert cluster.trainer.calls == ["open_group", "join_group", "send", "send", "leave_group"]
    cluster.check()


@in_virtual_time
async def test_ranks_of_the_group_follow_the_order_of_the_replicas() -> None:
    cluster, joined = Cluster(), []

    class Wide(ModelEngine):
        async def join_group(self, group: Group, first_rank: int) -> None:
            joined.append((self.name, first_rank, group.world_size))

    class Alone(ModelTrainer):
        async def join_group(self, group: Group) -> None: ...

    replicas = [Replica(name, Wide(name, cluster.world), ranks=ranks) for name, ranks in (("x", 4), ("y", 2))]
    update = WeightUpdate(replicas, Alone("trainer", cluster.world), version="1", timeouts=PATIENT)
    with pytest.raises(NothingTransferred):
        async with update:
            pass
    assert joined == [("x", 1, 7), ("y", 5, 7)]


@in_virtual_time
async def test_without_a_trainer_servers_load_from_a_folder() -> None:
    cluster = Cluster()
    async with WeightUpdate(cluster.replicas, version="v1", timeouts=PATIENT) as update:
        await update.load("v1")
    for engine in cluster.engines.values():
        assert "join_group" not in engine.calls
        assert set(engine.holds.values()) == {"v1"}
    cluster.check()


@in_virtual_time
async def test_a_kv_cache_that_must_stay_is_neither_released_nor_resumed() -> None:
    cluster = Cluster()
    async with WeightUpdate(cluster.replicas, version="v1", release_kv=False, timeouts=PATIENT) as update:
        await update.load("v1")
    for engine in cluster.engines.values():
        assert not {"release_kv", "resume_kv"} & set(engine.calls)
        assert "flush_cache" in engine.calls


@in_virtual_time
async def test_a_body_that_transfers_nothing_is_an_error_and_changes_nothing() -> None:
    cluster = Cluster()
    with pytest.raises(NothingTransferred, match="neither transfer nor load"):
        async with WeightUpdate(cluster.replicas, cluster.trainer, version="v1", timeouts=PATIENT):
            pass
    cluster.check()
    assert {x.weights.version for x in cluster.replicas} == {"v0"}


@in_virtual_time
async def test_a_transfer_of_nothing_is_an_error_and_changes_nothing() -> None:
    cluster = Cluster()
    with pytest.raises(ValueError, match="transfer: expected at least one tensor; got none"):
        async with WeightUpdate(cluster.replicas, cluster.trainer, version="v1", timeouts=PATIENT) as update:
            await update.transfer([])
    cluster.check()
    assert {(x.weights.state, x.weights.version) for x in cluster.replicas} == {(WeightsState.FRESH, "v0")}


@in_virtual_time
async def test_two_transfers_at_once_are_rejected_and_the_update_is_undone() -> None:
    cluster = Cluster()
    cluster.sends = "v1"
    update = WeightUpdate(cluster.replicas, cluster.trainer, version="v1", timeouts=PATIENT)
    with pytest.raises(UpdateInProgress, match="transfer: another transfer of this update is running"):
        async with update:
            await asyncio.gather(update.transfer(TENSORS[:1]), update.transfer(TENSORS[1:]))
    cluster.check()
    assert {x.weights.state for x in cluster.replicas} == {WeightsState.UNCERTAIN}


@in_virtual_time
async def test_a_body_that_catches_the_refusal_of_a_second_transfer_commits_nothing() -> None:
    cluster = Cluster()
    update = WeightUpdate(cluster.replicas, cluster.trainer, version="v1", timeouts=PATIENT)

    async def careless() -> None:
        async with update:
            await asyncio.gather(update.transfer(TENSORS[:1]), update.load("v1"), return_exceptions=True)

    with pytest.raises(UpdateInProgress):
        await careless()
    cluster.check()
    assert {x.weights.state for x in cluster.replicas} == {WeightsState.UNCERTAIN}


@in_virtual_time
async def test_a_body_that_does_not_wait_for_its_transfer_has_failed_and_the_transfer_is_ended_first() -> None:
    # given a transfer that hangs, in a task that the body does not await
    cluster = Cluster()
    hanging = Fault("rollout-0", "receive", Place.IN, Kind.TIMEOUT)
    cluster.world.faults = [hanging]
    tasks: list[asyncio.Task[None]] = []
    update = WeightUpdate(cluster.replicas, cluster.trainer, version="v1", timeouts=PATIENT)

    async def forgetful() -> None:
        async with update:
            tasks.append(asyncio.ensure_future(update.transfer(TENSORS)))
            await until(lambda: hanging.happened)

    # when the body ends, then the transfer has ended, and nothing is committed
    with pytest.raises(TransferCancelled, match="the body ended while a transfer was running: await transfers"):
        await forgetful()
    assert tasks[0].cancelled()
    cluster.check()
    assert {x.weights.state for x in cluster.replicas} == {WeightsState.UNCERTAIN}


@in_virtual_time
async def test_an_error_of_the_body_is_raised_as_it_is() -> None:
    cluster = Cluster()
    with pytest.raises(ZeroDivisionError):
        async with WeightUpdate(cluster.replicas, cluster.trainer, version="v1", timeouts=PATIENT):
            _ = 1 / 0
    cluster.check()
    assert all(gate.admits for gate in cluster.gates.values()), "no weight was touched"


@in_virtual_time
async def test_a_body_that_catches_a_failed_transfer_does_not_commit_it() -> None:
    cluster = Cluster()
    cluster.world.faults = [Fault("rollout-1", "receive", Place.IN, Kind.ERROR)]
    update = WeightUpdate(cluster.replicas, cluster.trainer, version="v1", timeouts=PATIENT)

    async def careless() -> None:
        async with update:
            with suppress(Broken):
                await update.transfer(TENSORS)

    with pytest.raises(Broken):
        await careless()
    cluster.check()
    assert {x.weights.state for x in cluster.replicas} == {WeightsState.UNCERTAIN}


@in_virtual_time
async def test_a_replica_takes_part_in_one_update_at_a_time() -> None:
    cluster = Cluster()
    async with WeightUpdate(cluster.replicas[:1], version="v1", timeouts=PATIENT) as update:
        with pytest.raises(UpdateInProgress, match="rollout-0: another update is running"):
            async with WeightUpdate(cluster.replicas, version="v2", timeouts=PATIENT):
                raise AssertionError("not reached")
        await update.load("v1")
    cluster.check()
    assert [x.weights.version for x in cluster.replicas] == ["v1", "v0"]


@in_virtual_time
async def test_an_update_touches_no_weights_outside_its_body() -> None:
    cluster = Cluster()
    cluster.sends = "v1"
    update = WeightUpdate(cluster.replicas, cluster.trainer, version="v1", timeouts=PATIENT)

    async def refused() -> None:
        before = {name: list(engine.calls) for name, engine in cluster.engines.items()}
        with pytest.raises(UpdateNotOpen, match="transfer: call it in the body of `async with WeightUpdate"):
            await update.transfer(TENSORS)
        with pytest.raises(UpdateNotOpen, match="load: call it in the body"):
            await update.load("v2")
        assert {name: engine.calls for name, engine in cluster.engines.items()} == before

    # before it is entered, when it has ended, and on a second use
    await refused()
    async with update:
        await update.transfer(TENSORS)
    await refused()
    with pytest.raises(UpdateNotOpen, match="create a new one for each update"):
        async with update:
            raise AssertionError("not reached")
    cluster.check()
    assert {x.weights.version for x in cluster.replicas} == {"v1"}


@in_virtual_time
async def test_a_trainer_may_be_in_two_updates_of_different_replicas() -> None:
    # given a trainer with separate groups
    cluster = Cluster()
    groups: list[Group] = []

    class OfMany:
        async def open_group(self, world_size: int) -> Group:
            return Group("127.0.0.1", 29500, world_size, f"update-{len(groups)}", "gloo")

        async def join_group(self, group: Group) -> None:
            groups.append(group)

        async def send(self, group: Group, tensors: Sequence[Tensor]) -> None:
            assert group in groups

        async def leave_group(self, group: Group | None) -> None:
            assert group is not None
            groups.remove(group)

    async def does_nothing(*_: object) -> None: ...

    for engine, call in product(cluster.engines.values(), ("join_group", "receive", "leave_group")):
        setattr(engine, call, does_nothing)
    trainer = OfMany()
    # when a second update begins, then the first one's group is unchanged
    one, other = ([replica] for replica in cluster.replicas)
    async with WeightUpdate(one, trainer, version="v1", timeouts=PATIENT) as first:
        async with WeightUpdate(other, trainer, version="v2", timeouts=PATIENT) as second:
            assert len(groups) == 2
            await second.transfer(TENSORS)
        assert len(groups) == 1
        await first.transfer(TENSORS)
    assert not groups


@pytest.mark.parametrize(
    ("names", "version", "message"),
    [
        ([], "v1", "replicas: expected at least one"),
        (["x", "x"], "v1", "replicas: expected at least one, with unique names"),
        (["trainer"], "v1", "is reserved for the sender"),
        (["x"], "", r"version: expected .*of 1 to 128 characters; got 0"),
        (["x"], "x" * 129, r"version: expected .*of 1 to 128 characters; got 129"),
        (["x"], "step\n7", r"because an HTTP header carries it; got 'step\\n7'"),
        (["x"], "step 7 ", "without a space at either end"),
        (["x"], "étape", "version: expected printable ASCII"),
        (["x"], None, "got NoneType None"),
        (["x"], True, "got bool True"),
        (["x"], 7.0, "got float 7.0"),
    ],
)
def test_bad_arguments_are_named(names: list[str], version: Any, message: str) -> None:
    world = Cluster().world
    with pytest.raises(ValueError, match=message):
        WeightUpdate([Replica(name, ModelEngine(name, world)) for name in names], version=version)


@pytest.mark.parametrize(("given", "version"), [(0, "0"), (700, "700"), ("step-700", "step-700")])
@in_virtual_time
async def test_a_version_may_be_the_number_of_the_step(given: int | str, version: str) -> None:
    cluster = Cluster()
    cluster.sends = version
    async with WeightUpdate(cluster.replicas, cluster.trainer, version=given, timeouts=PATIENT) as update:
        await update.transfer(TENSORS)
    assert {(x.weights.state, x.weights.version) for x in cluster.replicas} == {(WeightsState.FRESH, version)}
    cluster.check()


@in_virtual_time
async def test_a_second_cancellation_does_not_interrupt_the_undo() -> None:
    # given an update that is being undone slowly
    cluster = Cluster()
    engine = cluster.engines["rollout-1"]
    undoing, go_on = asyncio.Event(), asyncio.Event()
    resume_kv = engine.resume_kv

    async def slow_resume() -> None:
        undoing.set()
        await go_on.wait()
        await resume_kv()

    engine.resume_kv = slow_resume  # type: ignore[method-assign]
    first = Fault("rollout-0", "receive", Place.IN, Kind.CANCELLATION)
    updating = asyncio.ensure_future(cluster.update("v1", first))
    await undoing.wait()

    # when the caller cancels repeatedly
    assert cluster.world.updating is not None
    for _ in range(2):
        cluster.world.updating.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
    assert not updating.done()
    go_on.set()

    # then everything is undone, and the caller gets a cancellation
    assert isinstance(await updating, asyncio.CancelledError)
    cluster.check()


@in_virtual_time
async def test_a_cancellation_during_the_undo_of_an_error_leaves_the_error_the_first() -> None:
    cluster = Cluster()
    first = Fault("rollout-0", "receive", Place.IN, Kind.ERROR)
    again = Fault("rollout-1", "flush_cache", Place.IN, Kind.CANCELLATION)
    error = await cluster.update("v1", first, again, timeouts=only("undo"))
    assert error is first.raised
    assert any("cancelled while the update was undone" in line for line in notes(error))
    cluster.check()


@in_virtual_time
async def test_a_time_limit_around_an_update_undoes_it() -> None:
    cluster = Cluster()
    cluster.world.faults = [Fault("rollout-0", "finish", Place.BEFORE, Kind.TIMEOUT)]
    update = WeightUpdate(cluster.replicas, cluster.trainer, version="v1", timeouts=PATIENT)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(SHORT_S), update:
            await update.transfer(TENSORS)
    cluster.check()


@in_virtual_time
async def test_a_time_limit_in_the_body_is_raised_as_a_time_limit() -> None:
    cluster = Cluster()
    cluster.world.faults = [Fault("rollout-0", "receive", Place.IN, Kind.TIMEOUT)]
    update = WeightUpdate(cluster.replicas, cluster.trainer, version="v1", timeouts=PATIENT)
    with pytest.raises(TimeoutError):
        async with update, asyncio.timeout(SHORT_S):
            await update.transfer(TENSORS)
    cluster.check()
    assert {x.weights.state for x in cluster.replicas} == {WeightsState.UNCERTAIN}


@in_virtual_time
async def test_a_body_that_continues_after_a_canceled_transfer_gets_an_error_and_is_not_canceled_itself() -> None:
    # given a body that gives a transfer little time, and retries it
    cluster = Cluster()
    cluster.world.faults = [Fault("rollout-0", "receive", Place.IN, Kind.TIMEOUT)]
    update = WeightUpdate(cluster.replicas, cluster.trainer, version="v1", timeouts=PATIENT)

    async def careless() -> None:
        async with update:
            with suppress(TimeoutError):
                await asyncio.wait_for(update.transfer(TENSORS), SHORT_S)
            with pytest.raises(TransferCancelled):
                await update.transfer(TENSORS)

    # when it ends, then the update has failed, with an error
    with pytest.raises(TransferCancelled, match="was cancelled"):
        await careless()
    cluster.check()
    assert {x.weights.state for x in cluster.replicas} == {WeightsState.UNCERTAIN}


@in_virtual_time
async def test_replicas_are_undone_in_parallel() -> None:
    # given replicas whose undo ends only when all of them have begun it
    cluster = Cluster(8)
    inside = 0
    all_begun = asyncio.Event()

    for engine in cluster.engines.values():

        async def resume(engine: ModelEngine = engine, resume=engine.resume_generation) -> None:
            nonlocal inside
            inside += 1
            if inside == 8:
                all_begun.set()
            await all_begun.wait()
            await resume()

        engine.resume_generation = resume  # type: ignore[method-assign]
    # when an update fails, then the undo completes
    error = await cluster.update("v1", Fault("rollout-0", "join_group", Place.BEFORE, Kind.ERROR))
    assert isinstance(error, Broken)
    cluster.check()


@in_virtual_time
async def test_an_engine_that_ignores_its_cancellation_is_no_longer_awaited_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # given an engine that ignores its cancellation
    cluster, over = Cluster(), asyncio.Event()

    async def deaf(group: Group, tensors: Sequence[Tensor]) -> None:
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()

    cluster.engines["rollout-1"].receive = deaf  # type: ignore[method-assign]
    # when its transfer times out, then the update still ends
    with caplog.at_level(logging.ERROR):
        error = await cluster.update("v1", timeouts=only("transfer"))
    assert isinstance(error, StepTimedOut)
    assert "transfer the weights, rollout-1: still running" in caplog.text
    over.set()
    cluster.check()


@in_virtual_time
async def test_end_blocked_gets_a_server_that_stays_blocked_in_the_group() -> None:
    # given a server that does not answer while it waits for its group
    cluster, ended = Cluster(), []
    faults = [
        Fault("rollout-1", method, Place.BEFORE, Kind.TIMEOUT)
        for method in ("join_group", "leave_group", "resume_kv", "resume_generation")
    ]
    cluster.world.faults = faults

    async def end(replica: Replica, why: str) -> None:
        ended.append((replica.name, why))

    timeouts = replace(PATIENT, build_group=SHORT_S, undo=SHORT_S * 5)
    update = WeightUpdate(cluster.replicas, cluster.trainer, version="v1", timeouts=timeouts, end_blocked=end)
    with pytest.raises(StepTimedOut, match="build the group, trainer, rollout-0, rollout-1"):
        async with update:
            await update.transfer(TENSORS)
    assert [fault.happened for fault in faults] == [True] * 4, "each undo is tried"
    ((name, why),) = ended
    assert name == "rollout-1"
    assert "does not leave the group of update" in why
    assert cluster.replicas[1].weights.state is WeightsState.UNCERTAIN
    assert cluster.replicas[0].weights.state is WeightsState.FRESH, "nothing has touched the other one's weights"


@in_virtual_time
async def test_an_engine_that_cancels_itself_is_an_error_and_no_cancellation() -> None:
    cluster = Cluster()

    async def odd() -> None:
        raise asyncio.CancelledError

    cluster.engines["rollout-0"].flush_cache = odd  # type: ignore[method-assign]
    error = await cluster.update("v1")
    assert "flush the prefix cache, rollout-0: the call cancelled itself" in str(error)
