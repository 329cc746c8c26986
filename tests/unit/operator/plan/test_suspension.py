"""A suspension just after training has ended: the end counts, even if no coordinator is left to report it."""

from typing import Any

import pytest

from tests.unit.operator.given import (
    A0,
    A1,
    NOW,
    SUCCEEDED,
    S,
    a_job,
    a_snapshot,
    ended,
    in_round,
    observed,
    status_of,
)
from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.observed import Observed
from understudy_protocol.enums import CloseReason
from understudy_protocol.membership import Close

SUSPENDED = Close(CloseReason.SUSPENDED, "the job is suspended")


def suspended(*pods: Pod, number: int = 0, **changes: Any) -> Observed:
    """A suspended job that trained until its coordinator stopped responding a second ago."""
    job = a_job(status=in_round(number), spec={"suspend": True})
    return observed(job, pods, searches_since=NOW - 1, **changes)


def ends_attempt(given: Observed, now: float = NOW) -> bool:
    return "formerEpoch" in status_of(given, now=now).get("coordinator", {})


def test_pods_have_10_s_to_report_the_end_of_training_if_no_coordinator_responds():
    given = suspended(A0, A1, S)
    assert not ends_attempt(given)
    assert not ends_attempt(given, NOW + 8.9)
    assert ends_attempt(given, NOW + 9.1)


def test_a_success_that_one_pod_reports_within_10_s_counts():
    status = status_of(suspended(ended(A0, SUCCEEDED), A1, S))
    assert (status["phase"], status["terminalState"]) == ("Succeeded", "Completed")


@pytest.mark.parametrize(
    "given",
    [
        suspended(*map(ended, (A0, A1, S))),
        suspended(A0, A1, S, snapshot=a_snapshot(closed=SUSPENDED)),
        suspended(A0, A1, S, number=-1),
    ],
    ids=["all pods have ended", "the coordinator has reported how it closed", "nothing has trained"],
)
def test_the_attempt_ends_at_once_if_no_pod_can_report(given: Observed):
    assert ends_attempt(given)
