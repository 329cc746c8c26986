"""Several workers of a round fail at once: which one is blamed, and the influence of the clocks of their machines."""

from __future__ import annotations

import math

import pytest

from tests.unit.sidecar.membership.driven import DrivenCoordinator, running
from understudy_protocol import membership as m
from understudy_protocol.enums import Fault, RoundToken
from understudy_sidecar.membership.events import Received, Tick

ACTIVES = ("active-0", "active-1", "active-2")
ABORTED = "killed by SIGABRT"
RAISED = "RuntimeError: CUDA error"
LOST = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:544] Connection closed by peer [10.0.0.3]:41"


def job(**given: object) -> DrivenCoordinator:
    """Three active members whose round has run for ten minutes."""
    driven = running(3, max_in_place=10, **given)  # type: ignore[arg-type]
    driven.later(600.0, *ACTIVES, "spare-0")
    driven.sent.clear()
    return driven


def fails(
    driven: DrivenCoordinator, name: str, message: str, at: float, local_rank: int = 0, token: RoundToken | None = None
) -> None:
    """Its report arrives now; other reports may follow. at: by the clock of its machine."""
    failed = m.WorkerFailed(token or driven.token, local_rank, 1, None, message, at)
    driven.at_once(Received(driven.link(name), failed))


def is_killed(driven: DrivenCoordinator, name: str, at: float, token: RoundToken | None = None) -> None:
    """Its report arrives now. at: as in `fails`."""
    failed = m.WorkerFailed(token or driven.token, 0, None, "SIGKILL", "killed by SIGKILL; out of memory", at)
    driven.at_once(Received(driven.link(name), failed))


def gathered(driven: DrivenCoordinator) -> None:
    driven.now = driven.coordinator.state.round.gathers_until
    driven.at_once(Tick())


def blamed(driven: DrivenCoordinator) -> tuple[str, int | None, str]:
    (recovery,) = driven.coordinator.snapshot().recoveries
    assert recovery.fault is Fault.PROCESS
    return recovery.cause.pod, recovery.cause.rank, recovery.cause.message


def charged_pods(driven: DrivenCoordinator) -> list[str]:
    return [fault.pod_uid for fault in driven.coordinator.state.fault_history.in_window(driven.now) if fault.is_charged]


def test_an_abort_that_was_reported_first_is_not_the_cause_if_another_failure_is_earlier() -> None:
    # given a worker whose exception aborts its peers, and which ends after them
    driven = job(nproc=2)
    fails(driven, "active-0", ABORTED, at=driven.now - 0.01)
    fails(driven, "active-2", ABORTED, at=driven.now - 0.01)
    fails(driven, "active-1", RAISED, at=driven.now - 1.5, local_rank=1)
    # when the failures of the round are gathered
    assert driven.assigned() == {}
    gathered(driven)
    # then the exception is the cause, and all restart in place
    assert blamed(driven) == ("active-1", 3, RAISED)
    assert driven.assigned() == {"active-0": 0, "active-1": 1, "active-2": 2}


def test_all_other_failures_of_the_round_are_consequences_of_the_first_one() -> None:
    # given an abort that was reported before the exception that caused it, and one after it
    driven = job(nproc=2)
    fails(driven, "active-0", ABORTED, at=driven.now - 0.01)
    fails(driven, "active-1", RAISED, at=driven.now - 1.5, local_rank=1)
    fails(driven, "active-2", ABORTED, at=driven.now - 0.01)
    gathered(driven)
    # when another report of that round arrives after the next one was formed
    fails(driven, "active-2", ABORTED, at=driven.now, local_rank=1, token=RoundToken(1, 1, 0))
    # then it is not counted any more
    (recovery,) = driven.coordinator.snapshot().recoveries
    assert recovery.cause.rank == 3
    assert [(x.rank, x.pod, x.message) for x in recovery.consequences] == [
        (0, "active-0", ABORTED),
        (4, "active-2", ABORTED),
    ]
    assert recovery.consequence_count == 2


def test_the_traceback_of_the_first_failure_is_reported_and_bounded() -> None:
    driven = job()
    failed = m.WorkerFailed(driven.token, 0, 1, None, RAISED, driven.now, "x" * 5000)
    driven.at_once(Received(driven.link("active-1"), failed))
    (recovery,) = driven.coordinator.snapshot().recoveries
    assert len(recovery.cause.traceback) == 2000
    # and no standby coordinator gets it
    history = driven.coordinator.leader_snapshot().history
    assert history is not None
    assert [entry.cause.traceback for entry in history.open] == [""]


def test_failures_are_gathered_for_20_ms() -> None:
    driven = job()
    before = driven.now
    fails(driven, "active-0", ABORTED, at=driven.now)
    driven.now = before + 0.019
    driven.at_once(Tick())
    assert driven.assigned() == {}
    driven.now = before + 0.021
    driven.at_once(Tick())
    assert driven.assigned() == {"active-0": 0, "active-1": 1, "active-2": 2}


def test_the_only_worker_of_a_job_restarts_at_once() -> None:
    driven = running(1)
    fails(driven, "active-0", RAISED, at=driven.now)
    assert driven.assigned() == {"active-0": 0}


@pytest.mark.parametrize(
    ("earlier_s", "first"),
    [
        pytest.param(0.09, "active-0", id="within the error of two clocks"),
        pytest.param(0.11, "active-1", id="by more than that"),
    ],
)
def test_of_two_times_that_are_closer_than_clocks_agree_the_report_that_came_first_counts(
    earlier_s: float, first: str
) -> None:
    driven = job()
    fails(driven, "active-0", RAISED, at=driven.now)
    fails(driven, "active-1", RAISED, at=driven.now - earlier_s)
    gathered(driven)
    assert blamed(driven)[0] == first


def test_the_pods_of_one_node_have_one_clock() -> None:
    driven = DrivenCoordinator(2, max_in_place=10)
    for name in ACTIVES[:2]:
        driven.join(name, node="node-7")
    driven.report_started(*ACTIVES[:2])
    driven.later(10.0, *ACTIVES[:2])
    fails(driven, "active-0", ABORTED, at=driven.now)
    fails(driven, "active-1", RAISED, at=driven.now - 0.001)
    gathered(driven)
    assert blamed(driven)[0] == "active-1"
    assert charged_pods(driven) == ["uid-active-1"]


def test_the_workers_of_one_pod_have_one_clock() -> None:
    driven = job(nproc=2)
    fails(driven, "active-1", ABORTED, at=driven.now, local_rank=0)
    fails(driven, "active-1", RAISED, at=driven.now - 0.001, local_rank=1)
    gathered(driven)
    assert blamed(driven) == ("active-1", 3, RAISED)
    assert charged_pods(driven) == ["uid-active-1"]


def test_a_pod_is_not_evicted_because_of_two_clocks() -> None:
    """The job's budget is charged, but not the pod's own share of it."""
    driven = job(in_place_max_per_pod=0)
    fails(driven, "active-0", ABORTED, at=driven.now)
    fails(driven, "active-1", RAISED, at=driven.now - 1.5)
    gathered(driven)
    assert blamed(driven)[0] == "active-1"
    assert driven.recovery().reason.endswith("but it is not known which pod failed first")
    assert driven.lost_pods() == {}
    assert charged_pods(driven) == [""]


def test_the_pod_that_reported_first_is_not_evicted_if_another_one_may_have_failed_first() -> None:
    driven = job(in_place_max_per_pod=0)
    fails(driven, "active-0", RAISED, at=driven.now)
    fails(driven, "active-1", RAISED, at=driven.now - 0.05)
    gathered(driven)
    assert blamed(driven)[0] == "active-0"
    assert driven.recovery().reason.endswith("but it is not known which pod failed first")


def test_a_pod_is_evicted_if_all_others_failed_after_it() -> None:
    driven = job(in_place_max_per_pod=0)
    fails(driven, "active-0", RAISED, at=driven.now - 0.5)
    fails(driven, "active-1", ABORTED, at=driven.now - 0.01)
    gathered(driven)
    driven.answer_heartbeats("active-1", "active-2")
    assert driven.lost_pods() == {"active-0": "Process"}


@pytest.mark.parametrize(
    "claimed_s",
    [
        pytest.param(-3600.0, id="an hour before the round"),
        pytest.param(-601.0, id="a second before the round"),
        pytest.param(+3600.0, id="in an hour"),
        pytest.param(math.nan, id="no time at all"),
    ],
)
def test_a_time_that_cannot_be_true_counts_as_the_time_of_its_report(claimed_s: float) -> None:
    """The clock of that machine is wrong, or the pod lies."""
    driven = job()
    fails(driven, "active-0", RAISED, at=driven.now - 0.2)
    fails(driven, "active-1", ABORTED, at=driven.now + claimed_s)
    gathered(driven)
    assert blamed(driven)[0] == "active-0"


def test_an_impossible_time_of_the_first_report_counts_as_the_time_of_the_report() -> None:
    driven = job()
    fails(driven, "active-0", ABORTED, at=driven.now - 3600.0)
    fails(driven, "active-1", RAISED, at=driven.now - 0.2)
    gathered(driven)
    assert blamed(driven)[0] == "active-1"


def test_the_reports_of_a_spare_or_of_another_round_do_not_count() -> None:
    driven = job()
    token = driven.token
    fails(driven, "active-0", RAISED, at=driven.now - 0.1)
    fails(driven, "spare-0", "lies", at=driven.now - 5.0)
    fails(driven, "active-2", "lies", at=driven.now - 5.0, token=RoundToken(token.epoch, token.term, token.round + 1))
    gathered(driven)
    fails(driven, "active-1", RAISED, at=driven.now - 5.0, token=token)
    assert blamed(driven)[0] == "active-0"


def test_a_pod_that_is_lost_while_failures_are_gathered_is_the_cause() -> None:
    driven = job()
    fails(driven, "active-0", ABORTED, at=driven.now)
    driven.drop("active-1")
    (recovery,) = driven.coordinator.snapshot().recoveries
    assert (recovery.fault, recovery.cause.pod) == (Fault.POD, "active-1")
    assert charged_pods(driven) == []


@pytest.mark.parametrize(("earlier_s", "first"), [(0.9, "active-1"), (1.1, "active-0")])
def test_a_killed_worker_is_the_cause_of_exit_codes_that_were_reported_before(earlier_s: float, first: str) -> None:
    """The kernel closes its connections before its parent learns of its end."""
    driven = job()
    fails(driven, "active-0", "exit code 1", at=driven.now - earlier_s)
    is_killed(driven, "active-1", at=driven.now)
    gathered(driven)
    assert blamed(driven)[0] == first


@pytest.mark.parametrize("backoff_max_s", [pytest.param(0.0, id="in the next round"), pytest.param(60.0, id="before")])
def test_a_killed_worker_is_the_cause_although_its_end_is_reported_after_the_decision(backoff_max_s: float) -> None:
    """A kernel that was out of memory took 120 ms from the end of the connections to the end of the process."""
    # given a round without a step, in which a worker has lost a peer, so that all restart in place
    driven = job(backoff_max_s=backoff_max_s)
    fails(driven, "active-1", "exit code 1", at=driven.now)
    gathered(driven)
    driven.report_started(*driven.assigned())
    token = driven.token
    fails(driven, "active-0", "exit code 1", at=driven.now)
    gathered(driven)
    assert (driven.token == token) is (backoff_max_s > 0)
    # when a launcher reports 60 ms later that its worker was killed
    driven.now += 0.06
    is_killed(driven, "active-2", at=driven.now, token=token)
    # then this is the cause, it is charged, and the other failure is a consequence
    newest = driven.recovery()
    assert (newest.cause.pod, newest.cause.signal) == ("active-2", "SIGKILL")
    assert [x.pod for x in newest.consequences] == ["active-0"]
    assert charged_pods(driven) == ["uid-active-1", "uid-active-2"]


@pytest.mark.parametrize("first", ["exit code 1", LOST])
def test_after_the_decision_an_exit_code_is_not_the_cause(first: str) -> None:
    """A script may exit because it has lost a peer."""
    driven = job()
    token = driven.token
    fails(driven, "active-0", first, at=driven.now)
    gathered(driven)
    driven.now += 0.06
    fails(driven, "active-2", "exit code 13", at=driven.now - 0.5, token=token)
    assert blamed(driven)[0] == "active-0"


def test_after_the_end_of_the_recovery_a_killed_worker_is_not_the_cause() -> None:
    driven = job()
    token = driven.token
    fails(driven, "active-0", "exit code 1", at=driven.now)
    gathered(driven)
    driven.report_started(*driven.assigned())
    driven.report_step("active-0", 2, pause_s=0.4)
    is_killed(driven, "active-2", at=driven.now, token=token)
    assert blamed(driven)[0] == "active-0"
    assert charged_pods(driven) == ["uid-active-0"]


def test_an_exit_code_never_replaces_a_killed_worker_as_the_cause() -> None:
    driven = job()
    is_killed(driven, "active-1", at=driven.now)
    fails(driven, "active-0", "exit code 1", at=driven.now - 0.5)
    gathered(driven)
    assert blamed(driven) == ("active-1", 1, "killed by SIGKILL; out of memory")


def test_an_exception_remains_the_cause_if_another_worker_is_killed_after_it() -> None:
    driven = job()
    fails(driven, "active-0", RAISED, at=driven.now - 0.01)
    is_killed(driven, "active-1", at=driven.now)
    gathered(driven)
    assert blamed(driven)[0] == "active-0"


def test_an_abort_may_be_the_consequence_of_an_exit() -> None:
    driven = job()
    fails(driven, "active-0", "exit code 1", at=driven.now - 0.01)
    fails(driven, "active-1", ABORTED, at=driven.now)
    gathered(driven)
    assert blamed(driven)[0] == "active-0"
