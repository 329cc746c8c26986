"""A weight update with a fault before, in and after each of its calls, on each side: no replica is ever broken."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest

from tests.unit.rollout.model import (
    OF_ENGINES,
    OF_GATES,
    OF_LOADING_ENGINES,
    OF_LOADING_GATES,
    OF_TRAINER,
    PATIENT,
    STEP_OF,
    TRAINER,
    UNDOS,
    Broken,
    Cluster,
    Fault,
    Kind,
    Place,
    notes,
    only,
)
from tests.unit.virtual_time import in_virtual_time
from understudy_rollout import WeightsState
from understudy_rollout.failures import StepTimedOut
from understudy_rollout.update_steps import Step

REPLICAS = ("rollout-0", "rollout-1", "rollout-2")
GATES = tuple(f"gate of {name}" for name in REPLICAS)
SENT = {**dict.fromkeys(REPLICAS, OF_ENGINES), **dict.fromkeys(GATES, OF_GATES), TRAINER: OF_TRAINER}
LOADED = {**dict.fromkeys(REPLICAS, OF_LOADING_ENGINES), **dict.fromkeys(GATES, OF_LOADING_GATES)}
CASES = [
    pytest.param(way, side, method, place, kind, id=f"{way}-{side}-{method}-{place.value}-{kind.value}")
    for way, sides in (("sent", SENT), ("loaded", LOADED))
    for side, methods in sides.items()
    for method, place, kind in product(methods, Place, Kind)
]
TOUCHING = ("transfer", "finalize")
AFTER_THE_LAST_TENSOR = ("leave_group", "resume_kv", "flush_cache", "resume", "open")


@pytest.mark.parametrize(("way", "side", "method", "place", "kind"), CASES)
@in_virtual_time
async def test_a_fault_anywhere_leaves_every_replica_whole_or_marked(
    way: str, side: str, method: str, place: Place, kind: Kind
) -> None:
    # given three replicas with one version that receive from a trainer or load from a folder, and a fault
    cluster, fault = Cluster(len(REPLICAS)), Fault(side, method, place, kind)
    cluster.loads = way == "loaded"
    step = STEP_OF[method]

    # when an update meets the fault
    error = await cluster.update("v1", fault, timeouts=only(step) if kind is Kind.TIMEOUT else PATIENT)

    # then the caller gets that error, and not a later one
    assert fault.happened
    if kind is Kind.CANCELLATION:
        assert isinstance(error, asyncio.CancelledError)
    elif kind is Kind.TIMEOUT:
        assert isinstance(error, StepTimedOut)
        assert str(error).startswith(Step[step.upper()].value)
        assert side.removeprefix("gate of ") in str(error)
    else:
        assert error is fault.raised
        assert any(line.startswith(Step[step.upper()].value) for line in notes(error))

    # and the replicas can generate or are marked, no memory stays released, no group joined, and no gate admits mixed
    # weights
    cluster.check()
    # and the state of the weights is as exact as possible
    states = {replica.name: replica.weights for replica in cluster.replicas if cluster.engines[replica.name].alive}
    for name, weights in states.items():
        gone = not cluster.gates[name].alive
        if step in TOUCHING or gone:
            assert weights.state is WeightsState.UNCERTAIN
        else:
            assert (weights.state, weights.version) == (
                WeightsState.FRESH,
                "v1" if step in AFTER_THE_LAST_TENSOR else "v0",
            )

    # and when killed sides are back, the next update reaches all
    cluster.restart()
    assert await cluster.update("v2") is None
    cluster.check()
    assert {(x.weights.state, x.weights.version) for x in cluster.replicas} == {(WeightsState.FRESH, "v2")}
    assert all(gate.admits for gate in cluster.gates.values())


#: The first failing call, by the replicas' weights at that time: old, mixed or new.
FIRST = {
    "sent": {"old": "join_group", "mixed": "receive", "new": "leave_group"},
    "loaded": {"old": "release_kv", "mixed": "load", "new": "resume_kv"},
}
UNDO_SIDES = {
    **dict.fromkeys(REPLICAS[:2], UNDOS),  # the one that fails first, and another one
    **dict.fromkeys(GATES[:2], ("abandon", "open")),
    TRAINER: ("leave_group",),
}


def is_tried(way: str, held: str, first: str, side: str, undo: str) -> bool:
    if undo in ("abandon", "open"):
        return undo == ("open" if held == "new" else "abandon")
    if undo == first:
        return side == "rollout-0"  # for the others either the step or its undo may fail
    return (way, undo) != ("loaded", "leave_group") and (held, undo) != ("old", "flush_cache")


UNDO_CASES = [
    pytest.param(way, held, side, undo, place, kind, id=f"{way}-{held}-{side}-{undo}-{place.value}-{kind.value}")
    for way, firsts in FIRST.items()
    for held, first in firsts.items()
    for side, undos in UNDO_SIDES.items()
    for undo, place, kind in product(undos, Place, Kind)
    if is_tried(way, held, first, side, undo)
]


@pytest.mark.parametrize(("way", "held", "side", "undo", "place", "kind"), UNDO_CASES)
@in_virtual_time
async def test_a_fault_in_an_undo_leaves_every_replica_whole_or_marked(
    way: str, held: str, side: str, undo: str, place: Place, kind: Kind
) -> None:
    # given an update that fails on one replica, and an undo that fails too
    cluster = Cluster(len(REPLICAS))
    cluster.loads = way == "loaded"
    first = Fault("rollout-0", FIRST[way][held], Place.BEFORE, Kind.ERROR)
    second = Fault(side, undo, place, kind)

    # when it is undone
    error = await cluster.update("v1", first, second, timeouts=only("undo"))

    # then the caller gets the first error, with the undo as a note
    assert error is first.raised
    assert second.happened
    assert any(line.startswith("and undo: ") and side.removeprefix("gate of ") in line for line in notes(error))
    # and that replica is marked, whatever its weights, unless the trainer is the side that could not leave
    cluster.check(side)
    weights = {replica.name: replica.weights for replica in cluster.replicas}
    hit = weights.get(side.removeprefix("gate of "))
    if hit is not None:
        assert hit.state is WeightsState.UNCERTAIN
    # and the others are as without the failed undo
    expected = {
        "old": (WeightsState.FRESH, "v0"),
        "mixed": (WeightsState.UNCERTAIN, ""),
        "new": (WeightsState.FRESH, "v1"),
    }[held]
    for name, other in weights.items():
        if other is not hit:
            assert (other.state, other.version) == expected, name

    # and when killed sides are back, the next update makes all of them whole
    cluster.restart()
    assert await cluster.update("v2") is None
    cluster.check()
    assert {(x.weights.state, x.weights.version) for x in cluster.replicas} == {(WeightsState.FRESH, "v2")}


@in_virtual_time
async def test_each_undo_is_tried_even_if_another_one_fails() -> None:
    # given a transfer that fails, and a replica on which every undo except the last fails
    cluster = Cluster()
    undos = ("leave_group", "resume_kv", "flush_cache")
    faults = [Fault("rollout-1", undo, Place.AFTER, Kind.ERROR) for undo in undos]
    first = Fault("rollout-0", "receive", Place.IN, Kind.ERROR)

    # when it is undone
    error = await cluster.update("v1", first, *faults)

    # then all were tried, including the last one
    engine = cluster.engines["rollout-1"]
    assert engine.calls[-4:] == [*undos, "resume_generation"]
    assert [fault.happened for fault in faults] == [True] * 3
    # and the first error is raised, with the others as notes
    assert error is first.raised
    for fault in faults:
        assert any(str(fault.raised) in line for line in notes(error))
    # and the replica is marked, with the failed undos
    weights = cluster.replicas[1].weights
    assert weights.state is WeightsState.UNCERTAIN
    assert "could not be undone (leave the group, resume the KV cache, flush the prefix cache" in weights.reason


@in_virtual_time
async def test_the_calls_of_the_other_sides_are_canceled_when_one_side_fails() -> None:
    # given a replica that never joins, so that all others wait for it forever
    cluster, before = Cluster(3), asyncio.all_tasks()
    error = await cluster.update("v1", Fault("rollout-2", "join_group", Place.BEFORE, Kind.ERROR))
    # then no side waits, and no task is left
    assert isinstance(error, Broken)
    assert asyncio.all_tasks() == before
    cluster.check()


@in_virtual_time
async def test_simultaneous_faults_on_several_sides_are_all_reported() -> None:
    cluster = Cluster(3)
    faults = [Fault(f"rollout-{n}", "stop_generation", Place.BEFORE, Kind.ERROR) for n in range(3)]
    error = await cluster.update("v1", *faults)
    assert error is faults[0].raised
    text = "\n".join(notes(error))
    assert str(faults[1].raised) in text
    assert str(faults[2].raised) in text
