"""Violations that the soak finds in its records: a rank that starts twice, a hidden pause, a spent budget, a leak."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.e2e.truth import Fault, Step
from tests.soak.draw import Draw, Kind, Pod
from tests.soak.invariants import (
    Sample,
    Start,
    Trend,
    exceeds_budget,
    expected_fault,
    pauses_between_rounds,
    percentiles,
    ranks_twice,
    trends,
    unaccounted,
    untruthful,
)

SINCE = 1_000_000.0


def entry(resumed_at: float | None, seconds: float | None) -> dict[str, object]:
    found: dict[str, object] = {"fault": "Process", "detectedAt": "2026-11-25T04:00:00.000Z"}
    if resumed_at is not None:
        found["resumedAt"] = datetime.fromtimestamp(SINCE + resumed_at, UTC).isoformat()
    return found if seconds is None else {**found, "pauseSeconds": seconds}


def steps(*rounds: tuple[float, ...]) -> dict[str, list[Step]]:
    """The times of each round's steps, after SINCE."""
    return {"rank 0": [Step((1, 1, n), SINCE + at) for n, times in enumerate(rounds) for at in times]}


TWO_ROUNDS = steps((-3.0, -2.0, -1.0), (9.0, 10.0))


def test_a_rank_starts_once_in_a_round() -> None:
    once = [Start("1.1.1", 0, "ddp-0", 41), Start("1.1.1", 1, "ddp-0", 42), Start("1.1.2", 0, "ddp-1", 41)]
    assert ranks_twice(once) == []
    assert ranks_twice([*once, Start("1.1.1", 1, "ddp-3", 17)]) == [
        "rank 1 has started 2 times in round 1.1.1: on ddp-0 as process 42, on ddp-3 as process 17"
    ]


def test_a_pause_is_from_the_last_step_of_a_round_to_the_first_of_the_next_one() -> None:
    found = pauses_between_rounds(steps((-3.0, -1.0), (9.0, 10.0), (11.5,)))
    assert [(pause.last - SINCE, pause.seconds) for pause in found] == [(-1.0, 10.0), (10.0, 1.5)]


@pytest.mark.parametrize(("resumed_at", "seconds"), [(9.0, 10.0), (9.9, 10.9), (8.1, 9.1)])
def test_an_entry_may_differ_by_a_tenth_of_the_pause(resumed_at: float, seconds: float) -> None:
    assert untruthful([entry(resumed_at, seconds)], TWO_ROUNDS, SINCE) == []


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([entry(9.0, 11.1)], ["pauseSeconds: expected 10.000 ± 1.000, status reports 11.1"]),
        ([entry(9.0, None)], ["pauseSeconds: expected 10.000 ± 1.000, status reports None"]),
        ([], ["recoveries: none for the 10.000 s until 1000009.000 without a step"]),
        ([entry(None, None)], ["recoveries: none for the 10.000 s until 1000009.000 without a step"]),
        (
            [entry(10.2, 10.0)],
            [
                "resumedAt: expected 1000009.000 ± 1.000, status reports 1000010.200",
                "recoveries: none for the 10.000 s until 1000009.000 without a step",
            ],
        ),
    ],
)
def test_a_hidden_or_wrong_status_is_found(entries: list[dict[str, object]], expected: list[str]) -> None:
    assert untruthful(entries, TWO_ROUNDS, SINCE) == expected


def test_a_recovery_without_a_new_round_is_found_and_an_old_one_does_not_count() -> None:
    same_round = steps((-3.0, -2.0, -1.0, 9.0))
    assert untruthful([entry(-50.0, 99.0)], same_round, SINCE) == []
    assert untruthful([], TWO_ROUNDS, SINCE + 9.5) == []
    assert untruthful([entry(9.0, 10.0)], same_round, SINCE) == [
        "the recovery that ended at 1000009.000: no step of a new round was seen"
    ]


def test_the_length_of_a_pause_is_not_compared_if_steps_could_not_be_reported() -> None:
    """Seed 3: the training reported its steps on the volume that was full, and the last four were missing."""
    assert untruthful([entry(9.0, 3.0)], TWO_ROUNDS, SINCE, lacks_steps=True) == []
    assert untruthful([entry(10.2, 3.0)], TWO_ROUNDS, SINCE, lacks_steps=True) != []
    assert untruthful([], TWO_ROUNDS, SINCE, lacks_steps=True) != []


def test_two_faults_in_one_pause_have_two_entries_with_the_same_end() -> None:
    assert untruthful([entry(9.0, 10.0), entry(9.0, 10.0)], TWO_ROUNDS, SINCE) == []


PODS = [Pod("ddp", rank, f"ddp-{rank}", f"node{rank + 2}", coordinates=rank == 2) for rank in range(3)]


def test_a_fault_with_a_certain_victim_has_to_be_reported_as_it_was() -> None:
    worker, node = Draw(0, Kind.WORKER, 5.0, 0.0, PODS[1]), Draw(0, Kind.NODE, 5.0, 9.0, node="node2")
    restarted, replaced = ("InPlace", "SpareSwap", "PodRecreate"), ("SpareSwap", "PodRecreate")
    assert expected_fault(worker, "ddp", PODS, 2) == Fault("Process", restarted, "ddp-1", "node3", 2)
    assert expected_fault(node, "ddp", PODS, 2) == Fault("Node", replaced, "ddp-0", "node2", 0)
    # and a worker that allocates memory is ended after at most 15 s
    memory = Draw(0, Kind.MEMORY, 5.0, 0.0, PODS[1])
    allocating = Fault("Process", restarted, "ddp-1", "node3", 2, effective_within_s=15.0, ranks=2)
    assert expected_fault(memory, "ddp", PODS, 2) == allocating
    # and nothing is certain of a coordinator, of two pods on a node, of a launcher, and of another job
    launcher, term = Draw(0, Kind.LAUNCHER, 5.0, 0.0, PODS[1]), Draw(0, Kind.POD, 5.0, 0.0, PODS[2])
    assert expected_fault(term, "ddp", PODS, 2) is None
    assert expected_fault(node, "ddp", [*PODS, Pod("ddp", -1, "spare", "node2")], 2) is None
    assert expected_fault(launcher, "ddp", PODS, 2) is None
    assert expected_fault(worker, "torchrun", PODS, 2) is None


def test_a_budget_is_exceeded_by_one_restart_more() -> None:
    assert exceeds_budget({"phase": "Running", "recoveriesByStrategy": {"inPlace": 40}, "restarts": 0}, 40) == []
    assert exceeds_budget({"phase": "Failed", "recoveriesByStrategy": {"inPlace": 41}, "restarts": 1}, 40) == [
        "recoveriesByStrategy.inPlace: 41, and the budget is 40",
        "the job has failed",
        "restarts: 1, and no fault allows a restart of the whole job",
    ]


@pytest.mark.parametrize(
    ("productive", "expected"),
    [
        (180.0, []),
        (178.1, []),
        (181.9, []),
        (177.0, ["goodput: the parts are 197.0 s, the wall time is 200.0 s: {'productive': 177.0, 'starting': 20.0}"]),
        (183.0, ["goodput: the parts are 203.0 s, the wall time is 200.0 s: {'productive': 183.0, 'starting': 20.0}"]),
    ],
)
def test_the_parts_of_a_jobs_time_are_its_wall_time_to_1_percent(productive: float, expected: list[str]) -> None:
    account = {
        "startTime": "2026-11-25T04:00:00Z",
        "since": "2026-11-25T04:03:20.000Z",
        "seconds": {"productive": productive, "starting": 20.0},
    }
    assert unaccounted({"goodput": account}) == expected


def test_a_missing_account_is_found() -> None:
    assert unaccounted({"phase": "Running"}) == ["goodput: missing"]


def series(values: list[float], every_s: float = 60.0, unit: str = "MB") -> list[Sample]:
    return [Sample(SINCE + every_s * n, "ddp sidecar", unit, value) for n, value in enumerate(values)]


def test_a_growth_of_more_than_the_bound_is_a_leak() -> None:
    # given an hour of samples that grow by 30 and by 36 MB an hour
    slow, fast = ([100 + rate / 60 * minute for minute in range(60)] for rate in (30, 36))
    assert trends(series(slow)) == [Trend("ddp sidecar", "MB", 30.0)]
    assert [trend.is_leak for trend in [*trends(series(slow)), *trends(series(fast))]] == [False, True]
    # and fewer open files than megabytes are allowed
    assert trends(series([minute / 4 for minute in range(60)], unit="files"))[0].is_leak


def test_growth_at_the_start_or_for_a_short_time_is_no_leak() -> None:
    assert trends(series([10.0, 60.0, 80.0, 90.0, 99.0, *[100.0] * 55])) == [Trend("ddp sidecar", "MB", 0.0)]
    assert trends(series([100 + minute for minute in range(29)])) == []


def test_percentiles_are_measured_times() -> None:
    assert percentiles([5.0, 1.0, 4.0, 2.0, 3.0, 6.0, 7.0, 8.0, 9.0, 10.0]) == [5.0, 9.0, 10.0]
    assert percentiles([0.31]) == [0.31, 0.31, 0.31]
    assert percentiles([]) == []
