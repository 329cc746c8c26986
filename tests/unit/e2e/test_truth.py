"""The comparison of status with a fault: each false field is named, and a true status passes.

A worker of rank 2 is killed at 100.0. The surviving pods made their last steps of round 0 at 100.1, and their first
ones of round 1 at 110.1. Status was read each second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.e2e.truth import Fault, Observed, Pause, Raw, Sample, Step, differences, pauses

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
    "pauseSeconds": 10.0,
}
OPEN: Raw = {name: value for name, value in ENTRY.items() if name not in ("resumedAt", "pauseSeconds")}


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


def test_any_of_the_ranks_that_the_kernel_may_end_is_true() -> None:
    # given a fault that may end the workers of ranks 2 and 3
    fault = replace(FAULT, ranks=2)
    entries = [{**ENTRY, "cause": {**CAUSE, "rank": rank}} for rank in (2, 3, 4)]
    # then a status with one of them is true, and one with another rank is not
    assert [differences(fault, seen(), status_of(entry)) for entry in entries] == [
        [],
        [],
        ["cause.rank: expected 2 or 3, status reports 4"],
    ]


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
        ({"pauseSeconds": 8.99}, "pauseSeconds: expected 10.000 ± 1.000, status reports 8.99"),
        ({"pauseSeconds": 11.01}, "pauseSeconds: expected 10.000 ± 1.000, status reports 11.01"),
        ({"resumedAt": time_of(111.11)}, "resumedAt: expected 110.100 ± 1.000, status reports 111.11"),
        ({"resumedAt": time_of(109.09)}, "resumedAt: expected 110.100 ± 1.000, status reports 109.09"),
        ({"detectedAt": time_of(99.79)}, "detectedAt: expected a time from 100.000, of the fault, to 102.100"),
        ({"detectedAt": time_of(102.11)}, "detectedAt: expected a time from 100.000, of the fault, to 102.100"),
    ],
)
def test_a_false_field_is_the_one_difference(change: Raw, field: str) -> None:
    (difference,) = found({**ENTRY, **change})
    assert difference.startswith(field)


@pytest.mark.parametrize(("seconds", "is_true"), [(105.09, True), (105.11, False)])
def test_a_fault_that_needs_three_seconds_may_be_detected_so_much_later(seconds: float, is_true: bool) -> None:
    entry = {**ENTRY, "detectedAt": time_of(seconds)}
    found = differences(replace(FAULT, effective_within_s=3.0), seen(), status_of(entry))
    assert (found == []) == is_true


@pytest.mark.parametrize("seconds", [9.01, 10.99])
def test_a_tenth_of_the_pause_is_allowed(seconds: float) -> None:
    assert found({**ENTRY, "pauseSeconds": seconds}) == []


@pytest.mark.parametrize(("seconds", "is_true"), [(0.31, True), (0.69, True), (0.29, False), (0.71, False)])
def test_of_a_short_pause_a_fifth_of_a_second_is_allowed(seconds: float, is_true: bool) -> None:
    # given a pause of half a second
    steps = {"ddp-0": [Step(BROKEN, 99.6), Step(BROKEN, 100.1), Step(NEXT, 100.6)]}
    entry = {**ENTRY, "resumedAt": time_of(100.6), "pauseSeconds": seconds}
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
        entry = {**ENTRY, "pauseSeconds": seconds}
        assert (differences(FAULT, seen(steps=steps), status_of(entry)) == []) == is_true


@pytest.mark.parametrize(
    ("lost", "difference"),
    [
        (0, "lostSteps: expected 1 to 3, status reports 0"),
        (1, None),
        (3, None),
        (4, "lostSteps: expected 1 to 3, status reports 4"),
    ],
)
def test_lost_steps_are_those_from_the_first_step_after_the_fault_on(lost: int, difference: str | None) -> None:
    # given two pods that step twice a second, of which one makes step 9, and no steps of later rounds than step 7
    steps = {
        "a": [Step(BROKEN, 99.6, 7), Step(BROKEN, 100.1, 8), Step(NEXT, 110.1, 7), Step(NEXT, 110.6, 8)],
        "b": [Step(BROKEN, 99.6, 7), Step(BROKEN, 100.1, 8), Step(BROKEN, 100.2, 9), Step(NEXT, 110.2, 7)],
    }
    # then the two steps that were made just before the fault may be missing
    found = differences(FAULT, seen(steps=steps), status_of({**ENTRY, "lostSteps": lost}))
    assert found == ([] if difference is None else [difference])
    # and nothing is compared if the steps have no numbers
    counted = {pod: [replace(step, number=None) for step in of_pod] for pod, of_pod in steps.items()}
    assert differences(FAULT, seen(steps=counted), status_of({**ENTRY, "lostSteps": lost})) == []


def test_the_round_of_the_fault_is_the_newest_before_it() -> None:
    # given a pod that survived an earlier recovery too
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
    assert fields == ["pauseSeconds", "resumedAt"]


def test_a_pause_that_was_not_observed_proves_nothing() -> None:
    (difference,) = differences(FAULT, seen(steps={"ddp-spare": [Step(NEXT, 110.1)]}), status_of(ENTRY))
    assert difference.startswith("seconds: unknown from outside")


@pytest.mark.parametrize(
    ("fault", "cause", "fields"),
    [
        ({"signal": "SIGKILL"}, {"signal": "SIGKILL"}, []),
        ({"signal": "SIGKILL"}, {"signal": "SIGTERM"}, ["cause.signal"]),
        ({"signal": "SIGKILL"}, {}, ["cause.signal"]),
        ({"exit_code": 7}, {"exitCode": 7}, []),
        ({"exit_code": 7}, {"exitCode": 1}, ["cause.exitCode"]),
        ({"exit_code": 7}, {}, ["cause.exitCode"]),
        ({}, {"signal": "SIGKILL", "exitCode": 7}, []),
    ],
)
def test_signal_and_exit_code_are_compared_if_the_test_knows_them(fault: Raw, cause: Raw, fields: list[str]) -> None:
    entry = {**ENTRY, "cause": {**CAUSE, **cause}}
    differing = differences(replace(FAULT, **fault), seen(), status_of(entry))
    assert [difference.partition(":")[0] for difference in differing] == fields


# Counters, round and coordinator -------------------------------------------------------------------------------------

COUNTED: Raw = {
    "round": 0,
    "restarts": 2,
    "recoveriesByStrategy": {"inPlace": 3, "spareSwap": 1},
    "members": {"desired": 3, "active": 3, "ready": 3},
    "spares": {"desired": 1, "ready": 1, "claimed": 0},
    "coordinator": {"epoch": 1, "term": 1, "podUID": "uid-0"},
}
AFTER: Raw = {**COUNTED, "round": 1, "recoveriesByStrategy": {"inPlace": 4, "spareSwap": 1}}


def counted(fault: Fault | None = FAULT, entry: Raw = ENTRY, **after: Any) -> list[str]:
    """The differences after a fault to a job that had COUNTED before it."""
    result = status_of(entry) if fault else status_of()
    return differences(fault, seen(before=COUNTED), {**result, **AFTER, **after})


def test_one_recovery_more_of_the_same_job_is_true() -> None:
    assert counted() == []


@pytest.mark.parametrize(
    ("after", "difference"),
    [
        (
            {"recoveriesByStrategy": {"inPlace": 3, "spareSwap": 1}},
            "recoveriesByStrategy: expected {'inPlace': 1} more",
        ),
        (
            {"recoveriesByStrategy": {"inPlace": 5, "spareSwap": 1}},
            "recoveriesByStrategy: expected {'inPlace': 1} more",
        ),
        (
            {"recoveriesByStrategy": {"inPlace": 4, "spareSwap": 2}},
            "recoveriesByStrategy: expected {'inPlace': 1} more",
        ),
        ({"restarts": 3}, "restarts: expected 2, status reports 3"),
        (
            {"members": {"desired": 3, "active": 2, "ready": 3}},
            "members.active: expected 3, as before, status reports 2",
        ),
        ({"members": {"desired": 2, "active": 3}}, "members.desired: expected 3, as before, status reports 2"),
        (
            {"spares": {"desired": 1, "ready": 0, "claimed": 0}},
            "spares: expected {'desired': 1, 'ready': 1, 'claimed': 0}",
        ),
        ({"round": 0}, "round: expected 1, that of the newest step, status reports 0"),
        ({"round": 2}, "round: expected 1, that of the newest step, status reports 2"),
        ({"coordinator": {"epoch": 1, "podUID": "uid-0"}}, "coordinator: expected epoch 1, term 1 or newer"),
    ],
)
def test_a_false_counter_is_the_one_difference(after: Raw, difference: str) -> None:
    (found,) = counted(**after)
    assert found.startswith(difference)


def test_a_newer_coordinator_than_the_round_is_true() -> None:
    assert counted(coordinator={"epoch": 1, "term": 2, "podUID": "uid-2"}) == []


def test_a_spare_that_has_taken_ranks_is_missing_for_a_while() -> None:
    swap = {**ENTRY, "strategy": "SpareSwap"}
    fault = replace(FAULT, strategies=("SpareSwap",))
    counts = {"inPlace": 3, "spareSwap": 2}
    assert counted(fault, swap, recoveriesByStrategy=counts, spares={"desired": 1, "ready": 0, "claimed": 1}) == []
    (found,) = counted(fault, swap, recoveriesByStrategy=counts, spares={"desired": 2, "ready": 1, "claimed": 0})
    assert found == "spares.desired: expected 1, as before, status reports 2"


def test_a_pod_that_has_ended_does_not_coordinate() -> None:
    fault = replace(FAULT, ended="uid-0")
    assert counted(fault) == [
        "coordinator.podUID: expected another pod than ddp-1, which has ended, status reports uid-0"
    ]
    assert counted(fault, coordinator={"epoch": 1, "term": 2, "podUID": "uid-2"}) == []


def test_a_disturbance_that_stops_no_training_changes_no_counter() -> None:
    observed = seen(BEFORE, before=COUNTED, steps={"ddp-0": [Step(BROKEN, 99.6)]})
    assert differences(None, observed, {**status_of(), **COUNTED}) == []
    (found,) = differences(
        None, observed, {**status_of(), **COUNTED, "recoveriesByStrategy": {"inPlace": 4, "spareSwap": 1}}
    )
    assert found == "recoveriesByStrategy: expected nothing more than before, status reports {'inPlace': 1} more"


def test_the_pause_is_that_between_two_pods_if_the_only_pod_with_ranks_is_lost() -> None:
    steps = {"lost": [Step(BROKEN, 99.1), Step(BROKEN, 99.6)], "spare": [Step(NEXT, 110.1), Step(NEXT, 110.2)]}
    assert pauses(steps, 100.0) == [Pause(99.6, 110.1)]


@pytest.mark.parametrize(
    ("progress", "difference"),
    [
        ({"step": 8, "at": time_of(110.15)}, None),
        (
            {"step": 8, "at": time_of(111.2)},
            "progress.at of step 8: expected 110.100, or up to 1 s later, status reports 111.200",
        ),
        (
            {"step": 9, "at": time_of(110.1)},
            "progress.at of step 9: expected never, or up to 1 s later, status reports 110.100",
        ),
        (None, "progress: expected the newest step, status reports None"),
    ],
)
def test_progress_is_a_step_of_the_training_and_its_time(progress: Raw | None, difference: str | None) -> None:
    steps = {"rank 0": [Step(BROKEN, 99.6, 6), Step(BROKEN, 100.1, 7), Step(NEXT, 110.1, 8)]}
    status = {**status_of(ENTRY), **AFTER, **({} if progress is None else {"progress": progress})}
    found = differences(FAULT, seen(before=COUNTED, steps=steps), status)
    assert found == ([] if difference is None else [difference])


# A restart of the whole job ------------------------------------------------------------------------------------------

RESTART = Fault("WeightUpdate", ("JobRestart",), "ddp-1", "node3", 2)
RESTARTED: Raw = {**OPEN, "fault": "WeightUpdate", "strategy": "JobRestart", "runningAt": time_of(109.0)}
NEW_JOB: Raw = {**COUNTED, "restarts": 3, "recoveriesByStrategy": {**COUNTED["recoveriesByStrategy"], "jobRestart": 1}}


def restarted(*samples: Sample, **after: Any) -> list[str]:
    """Observations of a job whose steps so far are those of the new attempt's first round."""
    observed = seen(samples, before=COUNTED, steps={"ddp-new": [Step((200, 0, 0), 109.5)]})
    coordinator = {"epoch": 200, "podUID": "uid-9"}
    return differences(RESTART, observed, {**status_of(RESTARTED), **NEW_JOB, "coordinator": coordinator, **after})


def test_a_restart_of_the_job_has_only_running_at_and_is_counted() -> None:
    assert restarted() == []
    assert restarted(restarts=2) == ["restarts: expected 3, status reports 2"]
    assert restarted(lastRecovery={**RESTARTED, "detectedAt": time_of(1)})[0].startswith("lastRecovery.detectedAt")


@pytest.mark.parametrize(
    ("phase", "is_true"), [("Restarting", True), ("Pending", True), ("Starting", True), ("Failed", False)]
)
def test_a_restart_of_the_job_has_the_phases_of_a_start(phase: str, is_true: bool) -> None:
    assert (restarted(sample(105, RESTARTED, phase=phase)) == []) == is_true


def test_a_restart_of_the_job_has_ended_before_the_first_step() -> None:
    # given a job whose workers run again at 109.0, and step at 140.0
    steps = {"trainer": [Step(BROKEN, 99.6), Step((200, 0, 0), 140.0)]}
    samples = [sample(125, RESTARTED, phase="Running")]
    assert differences(RESTART, seen(samples, steps=steps), status_of(RESTARTED)) == []


def test_a_job_that_restarts_is_not_running_meanwhile() -> None:
    still_open = {name: value for name, value in RESTARTED.items() if name != "runningAt"}
    assert restarted(sample(105, still_open, phase="Running")) == [
        "phase: expected Recovering while lastRecovery is open, status reports Running"
    ]


# A script that reports no steps --------------------------------------------------------------------------------------


def without_steps(entry: Raw) -> list[str]:
    return [difference.partition(":")[0] for difference in differences(FAULT, seen((), steps=None), status_of(entry))]


def test_a_script_without_steps_has_only_running_at() -> None:
    running = {**OPEN, "runningAt": time_of(101.0)}
    assert without_steps(running) == []
    assert without_steps({**running, "pauseSeconds": 0.8}) == ["pauseSeconds"]
    assert without_steps({**running, "resumedAt": time_of(101.0)}) == ["resumedAt"]
    assert without_steps(OPEN) == ["runningAt"]
    assert without_steps({**OPEN, "runningAt": time_of(99.7)}) == ["runningAt"]


# Phases --------------------------------------------------------------------------------------------------------------


def phases(*samples: Sample, fault: Fault = FAULT) -> list[str]:
    return differences(fault, seen(samples), status_of(ENTRY))


def test_running_during_the_whole_fault_is_a_difference() -> None:
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


def test_the_status_in_which_the_recovery_has_ended_has_phase_running() -> None:
    assert differences(FAULT, seen(), status_of(ENTRY, phase="Recovering")) == [
        "phase: expected Running in the status in which the recovery has ended, status reports Recovering"
    ]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Starting", "Pending"])
def test_another_phase_is_a_difference(phase: str) -> None:
    assert phases(sample(105, OPEN, phase=phase)) == [f"phase: expected Running or Recovering, status reports {phase}"]
