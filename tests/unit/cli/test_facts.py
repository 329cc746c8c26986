"""Facts about jobs and pods, also from objects that are wrong."""

from typing import Any

import pytest

from tests.unit.cli import samples
from understudy_cli.facts import Recovery
from understudy_cli.reading import read_job, read_node, read_pod, read_pool, read_recovery, recoveries_of


def test_a_job_without_a_status_has_no_phase_and_no_recoveries() -> None:
    raw = samples.job()
    del raw["status"]
    job = read_job(raw)
    assert (job.name, job.phase, job.round, job.last_recovery, recoveries_of(job, ())) == ("llm", "", None, None, ())


@pytest.mark.parametrize("raw", [{}, {"status": 3}, {"metadata": [], "status": {"conditions": {}, "recoveries": [1]}}])
def test_a_malformed_object_is_read_without_an_error(raw: dict[str, Any]) -> None:
    for read in (read_job, read_pod, read_node, read_pool):
        read(raw)


def test_a_pod_has_its_ranks_and_the_container_with_the_launcher() -> None:
    pod = read_pod(samples.pod("p", "node-b", rank=3, coordinator=True))
    assert (pod.group_rank, pod.ranks, pod.trainer, pod.is_coordinator) == (3, range(6, 8), "trainer", True)


def test_a_spare_has_no_ranks_even_if_an_annotation_of_an_earlier_role_is_left() -> None:
    raw = samples.pod("p", "node-b")
    raw["metadata"]["annotations"]["understudy.dev/group-rank"] = "3"
    assert read_pod(raw).group_rank is None


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "Running"),
        ({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}}, "NotReady"),
        ({"status": {"phase": "Pending"}}, "Pending"),
        (
            {
                "status": {
                    "phase": "Pending",
                    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
                }
            },
            "Unschedulable",
        ),
        (
            {
                "status": {
                    "phase": "Failed",
                    "containerStatuses": [{"state": {"terminated": {"exitCode": 84}}}],
                }
            },
            "Exit:84",
        ),
        (
            {
                "status": {
                    "phase": "Failed",
                    "containerStatuses": [
                        {"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
                        {"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}},
                    ],
                }
            },
            "OOMKilled",
        ),
        (
            {
                "status": {
                    "phase": "Failed",
                    "containerStatuses": [{"state": {"terminated": {"exitCode": 1, "reason": "Error"}}}],
                }
            },
            "Exit:1",
        ),
        ({"status": {"phase": "Failed", "reason": "Evicted"}}, "Evicted"),
        ({"status": {"phase": "Succeeded"}}, "Succeeded"),
        ({"status": {}}, "Unknown"),
    ],
)
def test_the_state_of_a_pod_is_one_word(changes: dict[str, Any], state: str) -> None:
    assert read_pod(samples.pod("p", "node-b", rank=0, **changes)).state == state


def test_a_pod_that_is_being_deleted_is_terminating() -> None:
    raw = samples.pod("p", "node-b", rank=0)
    raw["metadata"]["deletionTimestamp"] = "2026-11-20T12:00:00Z"
    assert read_pod(raw).state == "Terminating"


def owned(uid: str, **changes: Any) -> Recovery:
    metadata = {"ownerReferences": [{"uid": uid}]}
    return read_recovery({"metadata": metadata, "jobName": "llm"} | samples.recovery(**changes))


def test_an_object_of_kind_recovery_replaces_the_entry_of_the_status_about_the_same_fault() -> None:
    # given a job with two recoveries in its status, an object with more about the first, and an older object
    job = read_job(samples.job())
    traceback = {"rank": 3, "message": "ValueError: no data", "traceback": "  File x\nValueError: no data"}
    detailed = owned("uid-of-llm", cause=traceback, lostSteps=7, outcome="Recovered")
    older = owned("uid-of-llm", detectedAt="2026-11-19T12:00:00Z", round=0)
    # when its recoveries are read, with the object of another job that has the same name
    found = recoveries_of(job, [detailed, older, owned("uid-of-another", detectedAt="2026-11-20T11:59:00Z")])
    # then each fault is there once, the oldest first
    assert [recovery.round for recovery in found] == [0, 1, 2]
    assert (found[1].traceback, found[1].lost_steps) == (("  File x", "ValueError: no data"), 7)


def test_faults_at_the_same_time_are_all_there() -> None:
    job = read_job(samples.job())
    same = {"detectedAt": "2026-11-20T11:58:00.000000Z"}
    objects = [owned("uid-of-llm", cause={"rank": rank}, **same) for rank in (4, 6)]
    assert [recovery.cause.rank for recovery in recoveries_of(job, objects)] == [3, 4, 6]


def test_a_recovery_that_ended_with_its_job_is_not_open() -> None:
    job = read_job(samples.job(recoveries=[], lastRecovery=None))
    (found,) = recoveries_of(job, [owned("uid-of-llm", resumedAt=None, pauseSeconds=None, outcome="Suspended")])
    assert not found.is_open


def test_the_last_recovery_counts_if_the_status_has_no_list() -> None:
    job = read_job(samples.job(recoveries=[]))
    assert [recovery.fault for recovery in recoveries_of(job, ())] == ["Node"]


@pytest.mark.parametrize(("end", "outcome"), [("Failed", "Failed"), ("Completed", "Recovered")])
def test_a_recovery_that_is_open_in_the_status_of_an_ended_job_has_ended_with_it(end: str, outcome: str) -> None:
    """The account may not read the object, which has the outcome."""
    waits = samples.recovery(strategy=None, resumedAt=None, pauseSeconds=None)
    job = read_job(samples.job(recoveries=[waits], conditions=[samples.condition(end, "True", "x")]))
    (found,) = recoveries_of(job, ())
    assert (found.is_open, found.outcome) == (False, outcome)
