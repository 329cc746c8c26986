"""The soak's draw is a function of the seed, the number and the running pods; a seed replays its kinds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.soak.draw import Draw, Expectation, Kind, Pod, draw, expectation, hit, kind_of

STOPS, MAY_STOP, RUNS_ON = Expectation.STOPS, Expectation.MAY_STOP, Expectation.RUNS_ON
ACTIVES = [Pod("ddp", rank, f"ddp-{rank}", f"node{rank + 2}") for rank in range(3)]
SPARE = Pod("ddp", -1, "ddp-spare", "node5", coordinates=True)
OTHER = Pod("torchrun", 0, "torchrun-0", "node3")
SERVER = Pod("rl", -1, "rl-rollout", "node6", instrumented=False)
PODS = [*ACTIVES, SPARE, OTHER, SERVER]


def test_a_seed_replays_the_same_faults_for_the_same_pods_in_any_order() -> None:
    first = [draw(7, number, PODS) for number in range(100)]
    assert [draw(7, number, reversed(PODS)) for number in range(100)] == first
    assert [draw(8, number, PODS) for number in range(100)] != first


def test_the_kinds_and_times_do_not_depend_on_the_pods() -> None:
    some, none = [draw(7, n, PODS) for n in range(60)], [draw(7, n, []) for n in range(60)]
    assert [(x.kind, x.pause_s, x.hold_s) for x in some] == [(x.kind, x.pause_s, x.hold_s) for x in none]
    # and without pods only faults without a target are drawn
    assert {x.kind.value for x in none if not x.skipped} == {"operator", "API server", "etcd"}
    assert not any(x.skipped for x in some)


def test_each_fourteen_faults_have_every_kind_once_in_changing_orders() -> None:
    blocks = [[kind_of(1, 14 * block + place) for place in range(14)] for block in range(20)]
    assert all(len(set(block)) == 14 for block in blocks)
    assert len({tuple(block) for block in blocks}) == 20


def test_pauses_and_lengths_are_in_their_ranges_and_short_ones_as_frequent_as_long_ones() -> None:
    drawn = [draw(3, number, PODS) for number in range(2800)]
    assert all(3 <= x.pause_s <= 90 for x in drawn)
    assert 0.45 < sum(x.pause_s < 16.4 for x in drawn) / 2800 < 0.55
    assert {x.kind.value for x in drawn if x.hold_s == 0} == {
        "worker", "launcher", "sidecar", "pod", "operator", "memory",
    }  # fmt: skip
    assert max(x.hold_s for x in drawn if x.kind is Kind.VOLUME) <= 8


@pytest.mark.parametrize(
    ("kind", "possible"),
    [
        (Kind.WORKER, {"ddp-0", "ddp-1", "ddp-2", "torchrun-0"}),
        (Kind.MEMORY, {"ddp-1", "ddp-2"}),
        (Kind.CLOCK, {"ddp-1", "ddp-2"}),
        (Kind.POD, {"ddp-0", "ddp-1", "ddp-2", "ddp-spare", "torchrun-0", "rl-rollout"}),
    ],
)
def test_only_pods_that_a_fault_can_hit_are_targets_and_each_of_them_is(kind: Kind, possible: set[str]) -> None:
    drawn = [x for x in (draw(5, number, PODS) for number in range(2000)) if x.kind is kind]
    assert {x.target.name for x in drawn if x.target} == possible


def on_pod(kind: Kind, pod: Pod) -> Draw:
    return Draw(0, kind, 5.0, 0.0, pod)


def on_node(kind: Kind, node: str, hold_s: float = 60.0) -> Draw:
    return Draw(0, kind, 5.0, hold_s, node=node)


@pytest.mark.parametrize(
    ("drawn", "expected"),
    [
        (on_pod(Kind.WORKER, ACTIVES[1]), STOPS),
        (on_pod(Kind.LAUNCHER, ACTIVES[1]), STOPS),
        (on_pod(Kind.SIDECAR, ACTIVES[1]), RUNS_ON),
        (on_pod(Kind.CLOCK, ACTIVES[1]), RUNS_ON),
        (on_pod(Kind.VOLUME, ACTIVES[1]), MAY_STOP),
        (on_pod(Kind.POD, replace(SPARE, coordinates=False)), RUNS_ON),
        (on_pod(Kind.POD, SPARE), MAY_STOP),
        (on_pod(Kind.WORKER, OTHER), RUNS_ON),
        (on_node(Kind.NODE, "node3", 5.0), STOPS),
        (on_node(Kind.FREEZE, "node3", 24.9), MAY_STOP),
        (on_node(Kind.FREEZE, "node3", 25.0), STOPS),
        (on_node(Kind.NETWORK, "node3"), MAY_STOP),
        (on_node(Kind.NODE, "node6"), RUNS_ON),
        (Draw(0, Kind.API_SERVER, 5.0, 60.0), RUNS_ON),
    ],
)
def test_the_effect_of_a_fault_on_a_training_is_known_before_it(drawn: Draw, expected: Expectation) -> None:
    pods = [*PODS, replace(SPARE, coordinates=False)]
    assert expectation(drawn, "ddp", pods) is expected


def test_a_fault_hits_its_target_or_all_pods_of_its_node() -> None:
    shared = Pod("ddp", -1, "ddp-spare-2", "node3")
    assert hit(on_node(Kind.NODE, "node3"), "ddp", [*PODS, shared]) == [ACTIVES[1], shared]
    assert hit(on_node(Kind.NODE, "node6"), "ddp", PODS) == []
    assert hit(on_pod(Kind.WORKER, ACTIVES[0]), "ddp", PODS) == [ACTIVES[0]]
    assert hit(on_pod(Kind.WORKER, ACTIVES[0]), "torchrun", PODS) == []
    assert hit(Draw(0, Kind.ETCD, 5.0, 5.0), "ddp", PODS) == []
