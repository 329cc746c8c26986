"""What holds for a job, why, and since when."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.given import (
    A0,
    A1,
    FAILED,
    NOW,
    OFFICE,
    SUCCEEDED,
    WAITING,
    S,
    a_job,
    a_snapshot,
    after,
    condition,
    in_round,
    member,
    observed,
    pending,
    status_of,
)
from understudy_operator.plan.events import plan_events
from understudy_operator.plan.intents import Event


def test_a_condition_keeps_its_time_until_it_flips():
    running = after(in_round(0), a_snapshot(), NOW)
    recovering = after(running, a_snapshot(waiting_for=WAITING), NOW + 10)
    still = after(recovering, a_snapshot(waiting_for="2 of 2 pods"), NOW + 20)
    times = [condition(status, "Running")["lastTransitionTime"] for status in (running, recovering, still)]
    assert times[0] != times[1] == times[2]
    assert condition(still, "Failed")["lastTransitionTime"] == times[0]
    assert condition(still, "Running")["message"] == "waiting for 2 of 2 pods"


def test_conditions_say_what_is_waited_for_and_which_pod_is_in_trouble():
    stuck = replace(pending(A1), trouble="Unschedulable: 0/3 nodes are available")
    status = status_of(
        observed(a_job(), (A0, stuck, S), a_snapshot([member(A0, None)], number=-1, waiting_for=WAITING))
    )
    message = condition(status, "Running")["message"]
    assert message == f"waiting for {WAITING}; pod a1: Unschedulable: 0/3 nodes are available"


def test_a_job_that_has_shrunk_says_so_and_runs():
    job = a_job(status=in_round(3), parallelism=3, min_actives=2)
    status = status_of(observed(job, snapshot=a_snapshot(number=4, actives=2)))
    assert condition(status, "Running")["status"] == "True"
    assert condition(status, "Running")["message"] == (
        "trains with 2 of 3 members: it grows when pods are there for the others"
    )
    grown = status_of(observed(job, snapshot=a_snapshot(number=5, actives=3)))
    assert condition(grown, "Running")["message"] == ""


@pytest.mark.parametrize(
    ("close", "kind", "reason"),
    [(SUCCEEDED, "Completed", "AllJobsCompleted"), (FAILED, "Failed", "FailedJobs")],
)
def test_the_end_is_a_condition(close: Any, kind: str, reason: str):
    status = status_of(observed(snapshot=a_snapshot(closed=close)))
    true = [x for x in status["conditions"] if x["status"] == "True"]
    assert [(x["type"], x["reason"], x["message"]) for x in true if x["type"] != "SparesReady"] == [
        (kind, reason, close.message)
    ]


def test_spares_ready_says_how_many_are():
    few = status_of(observed(a_job(status=in_round(0), spares=2), snapshot=a_snapshot()))
    assert condition(few, "SparesReady") | {"lastTransitionTime": ""} == {
        "type": "SparesReady",
        "status": "False",
        "reason": "Spares",
        "message": "1 of 2",
        "lastTransitionTime": "",
    }
    assert condition(status_of(observed(snapshot=a_snapshot())), "SparesReady")["status"] == "True"


REFUSAL = 'Pod "<pod>" is invalid: spec.containers[0].image: Required value'


def test_what_the_api_server_refuses_is_a_condition_and_one_event():
    given = observed(a_job(), (), refusals=(REFUSAL, REFUSAL))
    status = status_of(given)
    assert {key: condition(status, "Invalid")[key] for key in ("status", "reason", "message")} == {
        "status": "True",
        "reason": "Refused",
        "message": REFUSAL,
    }
    assert plan_events(given, OFFICE, status) == (Event("Warning", "Refused", REFUSAL),)
    again = observed(a_job(status=status), (), refusals=(REFUSAL, "another one"))
    assert plan_events(again, OFFICE, status_of(again)) == ()


def test_a_refusal_of_any_length_is_told_once():
    long = "x" * 5000
    given = observed(a_job(), (), refusals=(long,))
    assert len(condition(status_of(given), "Invalid")["message"]) == 1024
    again = observed(a_job(status=status_of(given)), (), refusals=(long,))
    assert plan_events(again, OFFICE, status_of(again)) == ()


def test_the_condition_goes_when_nothing_is_refused_any_more_but_not_because_the_operator_has_just_started():
    refused = status_of(observed(a_job(), (), refusals=(REFUSAL,)))
    nothing_tried = status_of(observed(a_job(status=refused), ()))
    accepted = status_of(observed(a_job(status=refused), (), refusals=()))
    assert condition(nothing_tried, "Invalid") == condition(refused, "Invalid")
    assert condition(accepted, "Invalid")["status"] == "False"
