"""The decisions of the views. Their text is in the golden files."""

from typing import Any

import pytest

from tests.unit.cli import samples
from understudy_cli.facts import Job, Recovery
from understudy_cli.reading import (
    read_event,
    read_job,
    read_node,
    read_pod,
    read_pool,
    read_recovery,
    recoveries_of,
)
from understudy_cli.views import causes, goodput, jobs, nodes, phrases, spares, timeline


def job(**status: Any) -> Job:
    return read_job(samples.job(**status))


def tree(found: Job, pods: list[dict[str, Any]], limit: int | None = None) -> jobs.JobTree:
    return jobs.job_tree(found, map(read_pod, pods), recoveries_of(found, ()), samples.NOW, limit)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (12_000, "3h20m"), (172_800, "2d")],
)
def test_a_duration_is_short(seconds: float, text: str) -> None:
    assert phrases.duration(seconds) == text


def test_pods_are_in_the_order_of_their_ranks_and_spares_follow() -> None:
    rows = tree(job(), samples.pods()).pods
    assert [(row.ranks, row.name) for row in rows] == [
        ("0-1", "llm-spare-x7k2p"),
        ("2-3", "llm-workers-0-1"),
        ("spare", "llm-spare-new1"),
    ]
    assert [row.is_coordinator for row in rows] == [False, True, False]


def test_a_pod_that_has_ended_is_the_last_one_and_holds_no_ranks_any_more() -> None:
    ended = samples.pod("llm-workers-0-0", "node-a", rank=0, status={"phase": "Failed", "reason": "Evicted"})
    rows = tree(job(), [ended, *samples.pods()]).pods
    assert [(row.ranks, row.name) for row in rows][-1] == ("-", "llm-workers-0-0")


def test_a_large_job_shows_pods_in_trouble_the_coordinator_and_spares_before_others() -> None:
    # given a hundred pods, of which the last one is not ready, the coordinator, and a spare
    pods = [samples.pod(f"w-{rank}", "n", rank=rank) for rank in range(100)]
    pods[99]["status"]["conditions"] = []
    pods += [samples.pod("c", "n", rank=100, coordinator=True), samples.pod("s", "n")]
    # when four are shown
    shown = tree(job(), pods, 4)
    # then the fourth is the first of the others
    assert [row.name for row in shown.pods] == ["w-0", "w-99", "c", "s"]
    assert shown.more_pods == 98


@pytest.mark.parametrize(
    ("condition", "is_shown"),
    [
        (samples.condition("Ready", "True", "Running", "2 of 2"), False),
        (samples.condition("Ready", "True", "Shrunk", "1 of 2"), True),
        (samples.condition("Ready", "False", "Pending", "no node has room"), True),
        (samples.condition("Ready", "False", "Completed", "the job has succeeded"), False),
        (samples.condition("Blocked", "True", "QuotaExceeded", "quota"), True),
        (samples.condition("Blocked", "False", "Accepted", ""), False),
        (samples.condition("Invalid", "True", "InvalidSpec", "spec.x"), True),
        (samples.condition("SlowRank", "True", "OthersWait", "rank 3 (pod w-0)"), True),
        (samples.condition("SlowRank", "False", "NoneFound", ""), False),
        (samples.condition("PoolAvailable", "False", "NoSpareNeeded", "no rank is vacant"), False),
        (samples.condition("PoolAvailable", "False", "PoolEmpty", "the pool is empty"), True),
        (samples.condition("Completed", "True", "AllJobsCompleted", "done"), False),
    ],
)
def test_only_conditions_that_a_user_should_read_are_notes(condition: dict[str, Any], is_shown: bool) -> None:
    assert bool(jobs.notes(job(conditions=[condition]))) is is_shown


def test_why_names_the_first_failure_of_the_newest_fault_and_the_log_of_its_round() -> None:
    # given a job whose newest fault led to round 5
    killed = samples.recovery(round=5, detectedAt="2026-11-20T11:59:00Z")
    found = job(recoveries=[samples.swap(), killed])
    # when a user asks why
    shown = causes.why(found, recoveries_of(found, ()), samples.NOW, 1, "kubectl understudy")
    # then the failure is named, and the log is that of round 4, in which the worker failed
    (fault,) = shown.faults
    assert (fault.fault, fault.place, fault.symptom) == (
        "Process",
        "rank 3, pod llm-workers-0-1, node node-b",
        "ended by SIGKILL",
    )
    assert "read the worker's log: kubectl understudy logs llm --rank 3 --round 4" in shown.next_steps


def test_why_has_the_next_step_while_no_pod_is_available() -> None:
    waits = samples.swap() | {"strategy": None, "resumedAt": None, "pauseSeconds": None}
    found = job(phase="Recovering", recoveries=[waits], members={"desired": 2, "active": 1, "ready": 0})
    shown = causes.why(found, recoveries_of(found, ()), samples.NOW, 1, "understudy")
    assert "a recovery has been open for 2m" in shown.summary
    assert "free a node, or add spares: no pod can take the lost ranks" in shown.next_steps
    assert shown.faults[0].strategy == "none yet: no pod is available for the lost ranks"


def test_why_names_no_missing_pod_while_the_next_round_is_delayed() -> None:
    """The coordinator waits between rounds that fail at their start."""
    waits = samples.recovery(strategy=None, resumedAt=None, pauseSeconds=None)
    found = job(phase="Recovering", recoveries=[waits])
    shown = causes.why(found, recoveries_of(found, ()), samples.NOW, 1, "understudy")
    assert shown.faults[0].strategy == "none yet: the next round has not begun"
    assert not any("free a node" in step for step in shown.next_steps)


@pytest.mark.parametrize(
    ("outcome", "strategy"),
    [("Failed", "none: the job has failed"), ("Suspended", "none: the job was suspended"), ("Unknown", "not known")],
)
def test_why_names_the_end_of_a_recovery_without_a_strategy(outcome: str, strategy: str) -> None:
    # given a job whose only fault has led to no round
    lost = samples.recovery_object() | {"outcome": outcome, "strategy": None, "resumedAt": None, "pauseSeconds": None}
    found = job(recoveries=[], lastRecovery=None, recoveriesByStrategy={})
    # when a user asks why
    shown = causes.why(found, recoveries_of(found, [read_recovery(lost)]), samples.NOW, 1, "understudy")
    # then the fault is explained, and no pod is missing
    assert shown.summary == "llm: Running, round 2"
    assert (shown.faults[0].strategy, shown.faults[0].pause) == (strategy, f"ended: {outcome}")
    assert not any("free a node" in step for step in shown.next_steps)


def test_why_of_a_job_that_no_operator_has_seen_sends_to_the_doctor() -> None:
    raw = samples.job()
    del raw["status"]
    shown = causes.why(read_job(raw), (), samples.NOW, 1, "understudy")
    assert shown.next_steps == ("check the operator: understudy doctor",)


def test_a_timeline_is_in_the_order_of_time_and_has_each_fault_once() -> None:
    found = job()
    entries = timeline.timeline(found, recoveries_of(found, ()), map(read_event, samples.events()))
    assert [(entry.after, entry.kind) for entry in entries] == [
        ("+0s", "Created"),
        ("+58s", "CoordinatorAppointed"),
        ("+60s", "Started"),
        ("+2h50m", "Fault"),
        ("+2h50m", "Resumed"),
        ("+2h58m", "Fault"),
        ("+2h58m", "NodeAvoided"),
        ("+2h58m", "Resumed"),
        ("+2h58m", "Ready"),
        ("+2h58m", "SparesReady"),
    ]


def test_conditions_in_their_ordinary_state_are_not_in_a_timeline() -> None:
    accepted = [samples.condition(kind, "False", "Accepted") for kind in ("Invalid", "Blocked", "Recovering")]
    blocked = samples.condition("Blocked", "True", "QuotaExceeded", "the quota allows 2 pods")
    found = job(conditions=[*accepted, samples.condition("Ready", "True", "Running")])
    assert [entry.text for entry in timeline.timeline(found, (), ()) if entry.kind == "Ready"] == ["True (Running)"]
    assert {entry.kind for entry in timeline.timeline(found, (), ())} == {"Created", "Started", "Ready"}
    assert (
        timeline.timeline(job(conditions=[blocked]), (), ())[-1].text == "True (QuotaExceeded): the quota allows 2 pods"
    )


@pytest.mark.parametrize(
    ("condition", "is_warning"),
    [
        (samples.condition("SlowRank", "True", "OthersWait", "rank 3 (pod w-0)"), True),
        (samples.condition("SlowRank", "False", "NoneFound"), False),
        (samples.condition("Suspended", "False", "ResumeJobs", "the job is resumed"), False),
        (samples.condition("StartupPolicyInProgress", "False", "InOrderStartupPolicyInProgress"), False),
        (samples.condition("PoolAvailable", "False", "NoSpareNeeded", "no rank is vacant"), False),
        (samples.condition("Recovering", "True", "Recovering"), True),
        (samples.condition("Ready", "False", "Pending", "no node has room"), True),
        (samples.condition("SparesReady", "False", "TooFewSpares", "0 of 1"), True),
    ],
)
def test_only_conditions_in_trouble_are_warnings_of_a_timeline(condition: dict[str, Any], is_warning: bool) -> None:
    last = timeline.timeline(job(conditions=[condition]), (), ())[-1]
    assert (last.kind, last.is_warning) == (condition["type"], is_warning)


def test_events_about_faults_count_if_the_status_has_none() -> None:
    found = job(recoveries=[], lastRecovery=None)
    assert "FaultDetected" in [entry.kind for entry in timeline.timeline(found, (), map(read_event, samples.events()))]


def test_the_end_of_a_job_is_in_its_timeline() -> None:
    failed = samples.condition("Failed", "True", "FailedJobs", "worker 3 exited with 1")
    found = job(conditions=[failed], completionTime="2026-11-20T11:59:00Z")
    last = timeline.timeline(found, (), ())[-1]
    assert (last.kind, last.text, last.is_warning) == ("Failed", "worker 3 exited with 1", True)


def test_spares_have_the_reason_why_one_is_missing() -> None:
    shown = spares.spares([job()], [read_pool(samples.pool())], map(read_pod, samples.pods()), samples.NOW)
    assert [(row.owner, row.kind, row.ready, row.note) for row in shown.owners] == [
        ("llm", "job", "0/1", "0 of 1 spares are ready: pod llm-spare-new1 starts"),
        ("shared", "pool", "1/2", "1 of 2 spares are ready: no node has room"),
    ]
    assert [(row.name, row.state) for row in shown.pods] == [("llm-spare-new1", "ImagePullBackOff")]


def test_jobs_without_spares_are_left_out() -> None:
    assert spares.spares([job(spares={})], [], [], samples.NOW).owners == ()


def test_nodes_with_findings_are_first_and_nodes_without_pods_and_findings_are_left_out() -> None:
    rows = nodes.node_rows([job()], map(read_pod, samples.pods()), map(read_node, samples.nodes()), samples.NOW)
    assert [(row.name, row.state, bool(row.findings), row.avoided_by) for row in rows] == [
        ("node-a", "NotReady", True, ("llm",)),
        ("node-d", "Ready", True, ()),
        ("node-b", "Ready", False, ()),
        ("node-c", "Ready", False, ()),
    ]


def test_the_state_of_a_node_is_not_known_without_the_right_to_read_it() -> None:
    rows = nodes.node_rows([job()], map(read_pod, samples.pods()), None, samples.NOW)
    assert {row.state for row in rows} == {"-"}


def test_a_recovery_without_steps_has_no_pause() -> None:
    recovery = Recovery("Process", "InPlace", running_at=5.0)
    assert phrases.outcome(recovery, 6.0) == "InPlace, workers run again"


def test_the_parts_of_a_jobs_time_are_its_wall_time() -> None:
    shown = goodput.job_goodput(job(), samples.NOW)
    # 3 hours since its creation
    assert shown.job.wall_seconds == sum(row.seconds for row in shown.parts) == 10_800.0
    # and the time until the newest step is productive: 99.5 s more than in status
    assert {row.part: row.seconds for row in shown.parts}["productive"] == 10_099.5
    assert shown.job.ettr == 0.9351


def test_the_time_of_a_part_that_is_no_step_counts_until_now() -> None:
    waits = job(goodput=samples.goodput(part="Capacity"))
    assert {row.part: row.seconds for row in goodput.job_goodput(waits, samples.NOW).parts}["capacity"] == 100.0


def test_a_job_that_has_ended_has_the_time_of_its_status() -> None:
    ended = job(goodput=samples.goodput(part=None))
    assert goodput.job_goodput(ended, samples.NOW).job.wall_seconds == 10_700.0


def test_what_faults_have_cost_is_listed_by_fault_and_by_node_the_largest_first() -> None:
    shown = goodput.job_goodput(job(), samples.NOW)
    assert shown.unit == "GPU-seconds"
    assert [(row.name, row.device_seconds) for row in shown.lost_by_fault] == [("Node", 80.0), ("Process", 4.0)]
    assert [(row.name, row.device_seconds) for row in shown.lost_by_node] == [
        ("node-a", 80.0),
        ("node-b", 2.4),
        ("", 1.6),
    ]


def test_a_job_without_steps_has_no_ratio_and_a_note() -> None:
    without = job(goodput=samples.goodput(part="WithoutSteps", seconds={"starting": 60.0}, lost=[]), progress=None)
    (row,) = goodput.goodput_rows([without], samples.NOW)
    assert (row.ettr, row.productive_seconds, row.note) == (None, 0.0, goodput.NO_STEPS)


def test_an_account_that_does_not_know_repeated_steps_has_a_note() -> None:
    (row,) = goodput.goodput_rows([job(goodput=samples.goodput(repeatedUnknown=True))], samples.NOW)
    assert (row.ettr, row.note) == (0.9351, goodput.REPEATED_UNKNOWN)


def test_a_step_that_is_counted_is_shown_as_one_of_its_round() -> None:
    counted = job(progress={"step": 12, "counted": True, "at": "2026-11-20T11:59:59.500000Z"})
    (row,) = jobs.job_rows([counted], samples.NOW)
    assert row.step == "12 in round"


@pytest.mark.parametrize("wrong", [{"part": "Idle"}, {"since": 7}, {"since": "no time"}])
def test_an_account_that_cannot_be_read_is_none(wrong: dict[str, Any]) -> None:
    assert job(goodput=samples.goodput(**wrong)).goodput is None
