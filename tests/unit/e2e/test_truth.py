"""The comparison of status with a fault: each false field is named, and a true status passes.

A worker of rank 2 is killed at 100.0. The pods that live on made their last steps of round 0 at 100.1, and their first
ones of round 1 at 110.1. Status was read each second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.e2e.truth import Fault, Observed, Raw, Sample, Step, differences, pauses

BROKEN, NEXT = (1, 1, 0), (1, 1, 1)
FAULT = Fault("Process", ("InPlace",), "ddp-1", "node3", 2)
STEPS = {
    "ddp-0": [Step(BROKEN, 99.6), Step(BROKEN, 100.1), Step(NEXT, 110.1), Step(NEXT, 110.6)],
    "ddp-1": [Step(BROKEN, 100.1), Step(NEXT, 110.1)],
    "ddp-spare": [],
}


def time_of(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


EARLIER: Raw = {"fault": "Pod", "cause": {"pod": "ddp-0"}, "detectedAt": time_of(50), "resumedAt": time_of(51)}
CAUSE: Raw = {"pod": "ddp-1", "node": "node3", "rank": 2, "message": "killed by SIGKILL"}
ENTRY: Raw = {
    "fault": "Process",
    "strategy": "InPlace",
    "cause": CAUSE,
    "detectedAt": time_of(100.2),
    "resumedAt": time_of(110.1),
    "seconds": 10.0,
}
OPEN: Raw = {name: value for name, value in ENTRY.items() if name not in ("resumedAt", "seconds")}


def status_of(*entries: Raw, phase: str = "Running") -> Raw:
    return {"phase": phase, "recoveries": [EARLIER, *entries], "lastRecovery": [EARLIER, *entries][-1]}


def sample(at: float, *entries: Raw, phase: str) -> Sample:
    return Sample(at, at + 0.1, status_of(*entries, phase=phase))


BEFORE = [sample(99, phase="Running")]
MEANWHILE = [sample(at, OPEN, phase="Recovering") for at in range(101, 110)]
AFTERWARDS = [sample(at, ENTRY, phase="Running") for at in (111, 112, 113)]


def seen(samples: Sequence[Sample] = (*BEFORE, *MEANWHILE, *AFTERWARDS), **changes: Any) -> Observed:
    return replace(Observed(100.0, {EARLIER["detectedAt"]}, STEPS, samples), **changes)


def found(*entries: Raw) -> list[str]:
    return differences(FAULT, seen(), status_of(*entries))


def test_a_true_status_has_no_differences() -> None:
    assert found(ENTRY) == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"fault": "Node"}, "fault: expected Process, status reports Node"),
        ({"strategy": "SpareSwap"}, "strategy: expected InPlace, status reports SpareSwap"),
        ({"cause": {**CAUSE, "pod": "ddp-0"}}, "cause.pod: expected ddp-1, status reports ddp-0"),
        ({"cause": {**CAUSE, "pod": ""}}, "cause.pod: expected ddp-1, status reports "),
        ({"cause": {**CAUSE, "node": "node4"}}, "cause.node: expected node3, status reports node4"),
        ({"cause": {**CAUSE, "rank": 3}}, "cause.rank: expected 2, status reports 3"),
        ({"cause": {"pod": "ddp-1", "node": "node3"}}, "cause.rank: expected 2, status reports None"),
        ({"seconds": 8.99}, "seconds: expected 10.000 ± 1.000, status reports 8.99"),
        ({"seconds": 11.01}, "seconds: expected 10.000 ± 1.000, status reports 11.01"),
        ({"resumedAt": time_of(111.11)}, "resumedAt: expected 110.100 ± 1.000, status reports 111.11"),
        ({"resumedAt": time_of(109.09)}, "resumedAt: expected 110.100 ± 1.000, status reports 109.09"),
        ({"detectedAt": time_of(99.79)}, "detectedAt: expected a time from 100.000, of the fault, to 102.100"),
        ({"detectedAt": time_of(102.11)}, "detectedAt: expected a time from 100.000, of the fault, to 102.100"),
    ],
)
def test_a_false_field_is_the_one_difference(change: Raw, field: str) -> None:
    (difference,) = found({**ENTRY, **change})
    assert difference.startswith(field)


@pytest.mark.parametrize("seconds", [9.01, 10.99])
def test_a_tenth_of_the_pause_is_allowed(seconds: float) -> None:
    assert found({**ENTRY, "seconds": seconds}) == []


@pytest.mark.parametrize(("seconds", "is_true"), [(0.31, True), (0.69, True), (0.29, False), (0.71, False)])
def test_of_a_short_pause_a_fifth_of_a_second_is_allowed(seconds: float, is_true: bool) -> None:
    # given a pause of half a second
    steps = {"ddp-0": [Step(BROKEN, 99.6), Step(BROKEN, 100.1), Step(NEXT, 100.6)]}
    entry = {**ENTRY, "resumedAt": time_of(100.6), "seconds": seconds}
    # then 0.2 s are allowed, not 0.05
    assert (differences(FAULT, seen((), steps=steps), status_of(entry)) == []) == is_true


def test_any_of_the_pods_that_stepped_before_and_after_may_have_measured_the_pause() -> None:
    # given pods whose last steps are 9.0 s and 12.0 s before their first ones
    steps = {
        "a": [Step(BROKEN, 101.1), Step(NEXT, 110.1)],
        "b": [Step(BROKEN, 98.1), Step(NEXT, 110.1)],
        "cut off": [Step(BROKEN, 120.0)],
        "spare": [Step(NEXT, 110.0)],
    }
    assert [round(pause.seconds, 3) for pause in pauses(steps, 100.0)] == [9.0, 12.0]
    # then status may have either, but nothing between
    for seconds, is_true in ((9.0, True), (12.0, True), (10.5, False)):
        entry = {**ENTRY, "seconds": seconds}
        assert (differences(FAULT, seen(steps=steps), status_of(entry)) == []) == is_true


def test_the_round_of_the_fault_is_the_newest_before_it() -> None:
    # given a pod that lived through an earlier recovery too
    steps = {"a": [Step((1, 1, 0), 40.0), Step((1, 1, 1), 60.0), Step((1, 1, 1), 100.1), Step((1, 2, 2), 110.1)]}
    (pause,) = pauses(steps, 100.0)
    assert (pause.last, pause.first) == (100.1, 110.1)


def test_a_missing_entry_is_a_difference() -> None:
    assert found() == ["recoveries: expected one new entry, status reports none"]


def test_one_entry_too_many_is_a_difference() -> None:
    consequence = {**ENTRY, "fault": "Pod", "cause": {**CAUSE, "pod": "ddp-0"}, "detectedAt": time_of(100.1)}
    assert found(consequence, ENTRY) == [
        "recoveries: expected one new entry, status reports Pod of ddp-0, Process of ddp-1"
    ]


def test_last_recovery_is_the_newest_entry() -> None:
    status = {**status_of(ENTRY), "lastRecovery": EARLIER}
    (difference,) = differences(FAULT, seen(), status)
    assert difference.startswith("lastRecovery.detectedAt: ")


def test_a_disturbance_that_stops_no_training_has_no_entry() -> None:
    assert differences(None, seen(BEFORE), status_of()) == []
    assert differences(None, seen(BEFORE), status_of(ENTRY)) == [
        "recoveries: expected no new entry, status reports Process of ddp-1"
    ]


def test_without_seconds_and_resumed_at_both_are_named() -> None:
    fields = [difference.partition(":")[0] for difference in found({**OPEN, "runningAt": time_of(109.0)})]
    assert fields == ["seconds", "resumedAt"]


def test_a_pause_that_nobody_saw_proves_nothing() -> None:
    (difference,) = differences(FAULT, seen(steps={"ddp-spare": [Step(NEXT, 110.1)]}), status_of(ENTRY))
    assert difference.startswith("seconds: unknown from outside")


# A script that reports no steps --------------------------------------------------------------------------------------


def without_steps(entry: Raw) -> list[str]:
    return [difference.partition(":")[0] for difference in differences(FAULT, seen((), steps=None), status_of(entry))]


def test_a_script_without_steps_has_running_at_alone() -> None:
    running = {**OPEN, "runningAt": time_of(101.0)}
    assert without_steps(running) == []
    assert without_steps({**running, "seconds": 0.8}) == ["seconds"]
    assert without_steps({**running, "resumedAt": time_of(101.0)}) == ["resumedAt"]
    assert without_steps(OPEN) == ["runningAt"]
    assert without_steps({**OPEN, "runningAt": time_of(99.7)}) == ["runningAt"]


# Phases --------------------------------------------------------------------------------------------------------------


def phases(*samples: Sample, fault: Fault = FAULT) -> list[str]:
    return differences(fault, seen(samples), status_of(ENTRY))


def test_running_all_the_time_is_a_difference() -> None:
    # given an operator that reports the fault only when it is over
    samples = [sample(at, phase="Running") for at in range(99, 110)]
    # then it is false from 4 s after the last step on: 2 s until a process's end is detected, and 2 s to write it
    assert phases(*samples) == ["phase: expected Recovering from 4 s on, status reports Running"]
    assert phases(*samples[:6]) == []
    # and nothing is expected while no operator runs
    assert phases(*samples, fault=replace(FAULT, reported_within_s=float("inf"))) == []


def test_running_with_an_open_recovery_is_a_difference() -> None:
    assert phases(sample(101, OPEN, phase="Running")) == [
        "phase: expected Recovering while lastRecovery is open, status reports Running"
    ]


def test_recovering_after_the_first_step_is_a_difference_once_the_operator_had_time_to_write() -> None:
    assert phases(sample(112, OPEN, phase="Recovering")) == []
    assert phases(sample(112.2, OPEN, phase="Recovering")) == [
        "phase: expected Running 2 s after the first step, status reports Recovering"
    ]


def test_the_status_in_which_the_recovery_has_ended_says_running() -> None:
    assert differences(FAULT, seen(), status_of(ENTRY, phase="Recovering")) == [
        "phase: expected Running in the status in which the recovery has ended, status reports Recovering"
    ]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Starting", "Pending"])
def test_another_phase_is_a_difference(phase: str) -> None:
    assert phases(sample(105, OPEN, phase=phase)) == [f"phase: expected Running or Recovering, status reports {phase}"]
