"""The job's conditions, with their reasons and times."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.given import (
    A0,
    A1,
    FAILED,
    LEADERSHIP,
    NOW,
    SUCCEEDED,
    WAITING,
    S,
    a_job,
    a_recovery,
    a_snapshot,
    a_status,
    after,
    condition,
    in_round,
    member,
    observed,
    pending,
    status_of,
)
from understudy_operator.plan.facts.launcher_choice import LauncherChoice, LauncherReason
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.refusals import Refusal, RefusalKind
from understudy_operator.plan.intents import Event
from understudy_operator.plan.status.events import plan_events
from understudy_protocol.observer import ForkFallbacks, SlowRank


def test_a_condition_keeps_its_time_until_it_flips():
    running = after(in_round(0), a_snapshot(), NOW)
    recovering = after(running, a_snapshot(waiting_for=WAITING), NOW + 10)
    stays = after(recovering, a_snapshot(waiting_for="2 of 2 pods"), NOW + 20)
    times = [condition(status, "Ready")["lastTransitionTime"] for status in (running, recovering, stays)]
    assert times[0] != times[1] == times[2]
    assert condition(stays, "Failed")["lastTransitionTime"] == times[0]
    assert condition(stays, "Ready")["message"] == "waiting for 2 of 2 pods"


def test_conditions_name_the_missing_pods_and_the_pod_in_trouble():
    stuck = replace(pending(A1), trouble="Unschedulable: 0/3 nodes are available")
    status = status_of(
        observed(a_job(), (A0, stuck, S), a_snapshot([member(A0, None)], number=-1, waiting_for=WAITING))
    )
    message = condition(status, "Ready")["message"]
    assert message == f"waiting for {WAITING}; pod a1: Unschedulable: 0/3 nodes are available"


def test_a_job_that_has_shrunk_reports_it_and_runs():
    job = a_job(status=in_round(3), parallelism=3, min_actives=2)
    status = status_of(observed(job, snapshot=a_snapshot(number=4, actives=2)))
    assert (condition(status, "Ready")["status"], condition(status, "Ready")["reason"]) == ("True", "Shrunk")
    assert condition(status, "Ready")["message"] == ("trains with 2 of 3 pods: it grows when more pods are available")
    grown = status_of(observed(job, snapshot=a_snapshot(number=5, actives=3)))
    assert condition(grown, "Ready")["message"] == ""


def ready(given: Observed) -> tuple[str, str, str]:
    found = condition(status_of(given), "Ready")
    return found["status"], found["reason"], found["message"]


def test_a_job_is_ready_while_the_workers_of_its_newest_round_run():
    # before the first round, a job waits for pods
    starting = a_snapshot([member(A0, None)], number=-1, waiting_for=WAITING)
    assert ready(observed(a_job(), (), None)) == ("False", "Pending", "the workers of 0 of 2 pods run")
    assert ready(observed(a_job(), snapshot=starting)) == ("False", "Starting", f"waiting for {WAITING}")
    # in a round it is Ready
    job = a_job(status=in_round(0))
    assert ready(observed(job, snapshot=a_snapshot())) == ("True", "Running", "")
    # and it is not from a fault until the recovery has ended, also when all workers run again
    fault = a_recovery()
    broken = observed(job, snapshot=a_snapshot(waiting_for="1 of 2 pods", recoveries=(fault,)))
    assert ready(broken) == ("False", "Recovering", "waiting for 1 of 2 pods")
    message = "the workers of all pods run, but a recovery is open: see status.recoveries"
    assert ready(observed(job, snapshot=a_snapshot(number=1, recoveries=(fault,)))) == ("False", "Recovering", message)


@pytest.mark.parametrize(("close", "reason"), [(SUCCEEDED, "Completed"), (FAILED, "Failed")])
def test_a_job_that_has_ended_is_not_ready(close: Any, reason: str):
    status = status_of(observed(snapshot=a_snapshot(closed=close)))
    assert {key: condition(status, "Ready")[key] for key in ("status", "reason", "message")} == {
        "status": "False",
        "reason": reason,
        "message": close.message,
    }
    # also in later reconciles
    assert ready(observed(a_job(status=status), ())) == ("False", reason, close.message)


def test_a_suspended_job_is_not_ready():
    message = "the job is suspended: set suspend to false to recreate its pods"
    assert ready(observed(a_job(spec={"suspend": True}), ())) == ("False", "Suspended", message)


@pytest.mark.parametrize(
    ("close", "kind", "reason"),
    [(SUCCEEDED, "Completed", "AllJobsCompleted"), (FAILED, "Failed", "FailedJobs")],
)
def test_the_end_of_a_job_is_a_condition(close: Any, kind: str, reason: str):
    status = status_of(observed(snapshot=a_snapshot(closed=close)))
    true = [x for x in status["conditions"] if x["status"] == "True"]
    assert [
        (x["type"], x["reason"], x["message"]) for x in true if x["type"] not in ("SparesReady", "FaultTolerant")
    ] == [(kind, reason, close.message)]


DEFAULTED = LauncherChoice(LauncherReason.DEFAULTED, "the job has the default launcher")
NO_COMMAND = LauncherChoice(LauncherReason.NOT_POSSIBLE, "its container has no command: set command")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, ("True", "LauncherSet", "")),
        ({"launcher": DEFAULTED}, ("True", "LauncherDefaulted", "the job has the default launcher")),
        (
            {"launcher": NO_COMMAND, "world": None},
            ("False", "LauncherNotPossible", "its container has no command: set command"),
        ),
    ],
)
def test_a_condition_shows_whether_and_why_the_job_has_a_launcher(spec: dict[str, Any], expected: tuple[str, str, str]):
    found = condition(status_of(observed(a_job(spec=spec), ())), "FaultTolerant")
    assert (found["status"], found["reason"], found["message"]) == expected


def test_the_default_launcher_is_one_event_with_the_first_status():
    # given a TrainingJob that the operator sees for the first time
    given = observed(a_job(spec={"launcher": DEFAULTED}), ())
    status = a_status(status_of(given))
    # then its user gets an event
    expected = Event("Normal", "LauncherDefaulted", "the job has the default launcher")
    assert plan_events(given, LEADERSHIP, status) == (expected,)
    # and no second one with the next status
    again = observed(a_job(status=status, spec={"launcher": DEFAULTED}), ())
    assert plan_events(again, LEADERSHIP, a_status(status_of(again))) == ()


def test_a_launcher_that_is_set_is_no_event():
    given = observed(a_job(), ())
    assert plan_events(given, LEADERSHIP, a_status(status_of(given))) == ()


def test_spares_ready_has_the_number_of_ready_spares():
    few = status_of(observed(a_job(status=in_round(0), spares=2), snapshot=a_snapshot()))
    assert condition(few, "SparesReady") | {"lastTransitionTime": ""} == {
        "type": "SparesReady",
        "status": "False",
        "reason": "TooFewSpares",
        "message": "1 of 2",
        "lastTransitionTime": "",
    }
    assert condition(status_of(observed(snapshot=a_snapshot())), "SparesReady")["status"] == "True"


REFUSAL = 'Pod "<pod>" is invalid: spec.containers[0].image: Required value'


def test_a_refusal_of_the_api_server_is_a_condition_and_one_event():
    given = observed(a_job(), (), refusals=(Refusal(REFUSAL), Refusal(REFUSAL)))
    status = status_of(given)
    assert {key: condition(status, "Invalid")[key] for key in ("status", "reason", "message")} == {
        "status": "True",
        "reason": "Rejected",
        "message": REFUSAL,
    }
    assert plan_events(given, LEADERSHIP, a_status(status)) == (Event("Warning", "Rejected", REFUSAL),)
    again = observed(a_job(status=status), (), refusals=(Refusal(REFUSAL), Refusal("another one")))
    assert plan_events(again, LEADERSHIP, a_status(status_of(again))) == ()


def test_a_previous_secret_that_cannot_be_deleted_does_not_make_a_job_blocked():
    refusal = Refusal("the Secret has a finalizer", RefusalKind.ADMISSION, "delete Secret llm-job-uid-membership")
    status = status_of(observed(a_job(), (), refusals=(refusal,)))
    assert [x["type"] for x in status["conditions"] if x["reason"] == "AdmissionDenied"] == []


def test_a_refusal_of_any_length_is_reported_once():
    long = "x" * 5000
    given = observed(a_job(), (), refusals=(Refusal(long),))
    assert len(condition(status_of(given), "Invalid")["message"]) == 1024
    again = observed(a_job(status=status_of(given)), (), refusals=(Refusal(long),))
    assert plan_events(again, LEADERSHIP, a_status(status_of(again))) == ()


def test_the_condition_ends_with_the_refusal_but_not_with_a_restart_of_the_operator():
    refused = status_of(observed(a_job(), (), refusals=(Refusal(REFUSAL),)))
    nothing_tried = status_of(observed(a_job(status=refused), ()))
    accepted = status_of(observed(a_job(status=refused), (), refusals=()))
    assert condition(nothing_tried, "Invalid") == condition(refused, "Invalid")
    assert condition(accepted, "Invalid")["status"] == "False"


QUOTA = Refusal(
    'pods "x" is forbidden: exceeded quota: gpus, requested: gpu=8, used: gpu=64, limited: gpu=64', RefusalKind.QUOTA
)


def test_a_refusal_that_may_pass_blocks_the_job_and_does_not_make_it_invalid():
    blocked = status_of(observed(a_job(), (A0,), refusals=(QUOTA,)))
    assert condition(blocked, "Invalid")["status"] == "False"
    result = condition(blocked, "Blocked")
    assert (result["status"], result["reason"], result["message"]) == ("True", "QuotaExceeded", QUOTA.message)
    assert QUOTA.message in condition(blocked, "Ready")["message"]
    assert Event("Warning", "Rejected", QUOTA.message) in plan_events(
        observed(a_job(), (A0,)), LEADERSHIP, a_status(blocked)
    )

    # and the condition ends with the refusal
    free = status_of(observed(a_job(status=blocked), (A0,), refusals=()))
    assert condition(free, "Blocked")["status"] == "False"


def test_lasting_and_temporary_refusals_are_reported_together():
    both = status_of(observed(a_job(), (), refusals=(QUOTA, Refusal(REFUSAL))))
    assert (condition(both, "Invalid")["message"], condition(both, "Blocked")["message"]) == (REFUSAL, QUOTA.message)


def test_an_operator_that_has_just_started_keeps_both_conditions():
    blocked = status_of(observed(a_job(), (A0,), refusals=(QUOTA,)))
    again = status_of(observed(a_job(status=blocked), (A0,), refusals=None))
    assert condition(again, "Blocked") == condition(blocked, "Blocked")


def test_workers_that_cannot_be_forked_are_a_condition_until_they_are_forked():
    # given a job whose workers are forked, and that has no such condition
    before = status_of(observed(snapshot=a_snapshot()))
    assert "WorkersForked" not in [entry["type"] for entry in before["conditions"]]
    # when two pods cannot fork their workers
    result = replace(a_snapshot(), fork_fallbacks=ForkFallbacks(2, "a0", "thread jemalloc_bg_thd of pyarrow: set X"))
    status = after(before, result)
    found = condition(status, "WorkersForked")
    assert (found["status"], found["reason"]) == ("False", "NewProcesses")
    assert found["message"] == (
        "workers of pod a0 (and of 1 more) start as new processes, which costs the time of their imports at each "
        "recovery: thread jemalloc_bg_thd of pyarrow: set X"
    )
    # then the condition stays while no coordinator reports, and ends once the workers are forked
    assert condition(after(status, None), "WorkersForked") == found
    assert condition(after(status, a_snapshot()), "WorkersForked")["status"] == "True"


SLOW = SlowRank(3, "a0", "a-forged-node", 184, 0.412, NOW)


def test_a_slow_rank_is_a_condition_until_it_is_slow_no_more():
    # given a job without a slow rank, and without such a condition
    before = status_of(observed(snapshot=a_snapshot()))
    assert "SlowRank" not in [entry["type"] for entry in before["conditions"]]
    # when the coordinator finds one
    status = after(before, replace(a_snapshot(), slow_rank=SLOW))
    found = condition(status, "SlowRank")
    # then the condition names it, its pod, and the node on which the operator sees this pod
    assert (found["status"], found["reason"]) == ("True", "OthersWait")
    assert found["message"] == (
        f"rank 3 (pod a0, node {A0.node}) makes each step 1.8 times as long: it entered the collectives of the last "
        "ten steps 0.41 s after the others. The training continues. Check the node. On a cluster, this "
        "replaces the pod by a spare: understudy drain llm a0"
    )
    # and it stays while no coordinator reports, and ends with the finding
    assert condition(after(status, None), "SlowRank") == found
    assert condition(after(status, a_snapshot()), "SlowRank")["status"] == "False"


def test_a_slow_rank_is_one_event_when_it_begins_to_be_slow():
    # given a training in which a rank begins to be slow
    slow = replace(a_snapshot(), slow_rank=SLOW)
    before = status_of(observed(snapshot=a_snapshot()))
    status = after(before, slow)
    given = observed(a_job(status=before), snapshot=slow)
    # then its user gets the condition's message as an event
    expected = Event("Warning", "SlowRank", condition(status, "SlowRank")["message"])
    assert plan_events(given, LEADERSHIP, a_status(status)) == (expected,)
    # and no second one while it is slow, nor when it ends
    for snapshot in (slow, a_snapshot()):
        again = observed(a_job(status=status), snapshot=snapshot)
        assert plan_events(again, LEADERSHIP, a_status(status_of(again))) == ()


def test_a_slow_rank_changes_no_other_condition_and_starts_no_recovery():
    before = status_of(observed(snapshot=a_snapshot()))
    status = after(before, replace(a_snapshot(), slow_rank=SLOW))
    others = [entry for entry in status["conditions"] if entry["type"] != "SlowRank"]
    assert others == after(before, a_snapshot())["conditions"]
    assert status.get("recoveries", []) == []


def test_a_job_that_has_ended_has_no_slow_rank():
    status = after(status_of(observed(snapshot=a_snapshot())), replace(a_snapshot(), slow_rank=SLOW))
    ended = after(status, replace(a_snapshot(closed=SUCCEEDED), slow_rank=SLOW))
    assert condition(ended, "SlowRank")["status"] == "False"


def test_a_suspended_job_has_no_slow_rank():
    status = after(status_of(observed(snapshot=a_snapshot())), replace(a_snapshot(), slow_rank=SLOW))
    suspended = status_of(observed(a_job(status=status, spec={"suspend": True}), ()))
    assert condition(suspended, "SlowRank")["status"] == "False"
