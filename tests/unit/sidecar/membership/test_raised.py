"""A worker has raised an exception, and its process has not ended: which failure is the cause, and whom it is charged
to.
"""

from __future__ import annotations

import math

import pytest

from tests.unit.sidecar.membership.driven import DrivenCoordinator, running
from understudy_protocol import membership as m
from understudy_protocol.enums import ConfigVersion, Fault, RoundToken, Strategy, Term, WorkersState
from understudy_protocol.observer import Recovery
from understudy_sidecar.membership.events import Received, Tick

ACTIVES = ("active-0", "active-1", "active-2")
DAMAGED = "DamagedSnapshotError: the snapshot of step 7 of rank 1 is damaged (its digest is wrong), and is discarded"
ENDED = "exit code 13"
LOST = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:544] Connection closed by peer [10.0.0.3]:41"
CRASHED = "killed by SIGSEGV"


def job(**given: object) -> DrivenCoordinator:
    """Three active members whose round has run for ten minutes."""
    driven = running(3, max_in_place=10, **given)  # type: ignore[arg-type]
    driven.later(600.0, *ACTIVES, "spare-0")
    driven.sent.clear()
    return driven


def raises(
    driven: DrivenCoordinator,
    name: str,
    age_s: float = 0.0,
    message: str = DAMAGED,
    token: RoundToken | None = None,
    local_rank: int = 0,
    at: float = 0.0,
) -> None:
    """The report about its exception arrives now."""
    raised = m.WorkerRaised(token or driven.token, local_rank, message, age_s, "line 7", at)
    driven.at_once(Received(driven.link(name), raised))


def fails(
    driven: DrivenCoordinator, name: str, message: str, *, token: RoundToken | None = None, exit_code: int = 13
) -> None:
    """Its worker has ended just now, by the clock of its machine."""
    failed = m.WorkerFailed(token or driven.token, 0, exit_code, None, message, driven.now)
    driven.at_once(Received(driven.link(name), failed))


def gathered(driven: DrivenCoordinator) -> None:
    """The failures of the round are gathered."""
    driven.now = driven.coordinator.state.round.gathers_until
    driven.at_once(Tick())


def cause(driven: DrivenCoordinator) -> tuple[str, str, int | None, str]:
    (recovery,) = driven.coordinator.snapshot().recoveries
    found = recovery.cause
    return found.pod, found.node, found.rank, found.message


def consequences(recovery: Recovery) -> list[tuple[int | None, str, str]]:
    return [(x.rank, x.pod, x.message) for x in recovery.consequences]


def charged(driven: DrivenCoordinator) -> list[tuple[str, int | None]]:
    faults = driven.coordinator.state.fault_history.in_window(driven.now)
    return [(fault.pod_uid, fault.rank) for fault in faults if fault.is_charged]


# Before a worker ends -------------------------------------------------------------------------------------------------


def test_an_exception_ends_no_round() -> None:
    """Exit handlers of the worker may still save something."""
    driven = job()
    raises(driven, "active-1")
    driven.later(60.0, *ACTIVES, "spare-0")
    assert driven.coordinator.snapshot().recoveries == ()
    assert driven.assigned() == {}


def test_an_exception_is_the_cause_of_the_failure_that_follows() -> None:
    # given a worker that has raised an exception
    driven = job()
    raises(driven, "active-1")
    # when a peer ends first, 50 ms later
    driven.now += 0.05
    fails(driven, "active-0", ENDED)
    gathered(driven)
    # then the exception is the cause, and its pod is charged
    assert cause(driven) == ("active-1", "node-of-active-1", 1, DAMAGED)
    assert driven.recovery().cause.traceback == "line 7"
    assert charged(driven) == [("uid-active-1", 1)]
    # and the failure of the peer is a consequence
    assert consequences(driven.recovery()) == [(0, "active-0", ENDED)]
    # and the recovery has begun with the end of the peer, and all restart in place
    assert driven.assigned() == {"active-0": 0, "active-1": 1, "active-2": 2}


def test_the_exception_gets_its_exit_code_when_the_process_ends_before_the_next_round() -> None:
    driven = job()
    raises(driven, "active-1")
    fails(driven, "active-0", ENDED)
    assert driven.recovery().cause.exit_code is None
    fails(driven, "active-1", DAMAGED, exit_code=1)
    gathered(driven)
    assert cause(driven) == ("active-1", "node-of-active-1", 1, DAMAGED)
    assert driven.recovery().cause.exit_code == 1
    assert consequences(driven.recovery()) == [(0, "active-0", ENDED)]


def test_a_worker_whose_process_ends_first_is_the_cause_with_its_exit_code() -> None:
    driven = running(1)
    raises(driven, "active-0")
    fails(driven, "active-0", DAMAGED, exit_code=1)
    assert cause(driven) == ("active-0", "node-of-active-0", 0, DAMAGED)
    assert driven.recovery().cause.exit_code == 1
    assert consequences(driven.recovery()) == []
    assert driven.assigned() == {"active-0": 0}


def test_the_older_one_of_two_exceptions_is_the_cause() -> None:
    driven = job()
    raises(driven, "active-0", age_s=0.0, message="ValueError: second")
    raises(driven, "active-1", age_s=0.5, message="ValueError: first")
    fails(driven, "active-0", "ValueError: second")
    gathered(driven)
    assert cause(driven)[3] == "ValueError: first"


def test_the_exception_of_a_round_that_was_replaced_is_not_the_cause_of_a_later_failure() -> None:
    # given an exception, and a round that was replaced because its pod was lost
    driven = job()
    raises(driven, "active-1")
    driven.drop("active-1")
    names = ("active-0", "spare-0", "active-2")
    driven.report_started(*names)
    driven.report_step("active-0")
    # when a worker of the next round fails
    driven.now += 1.0
    fails(driven, "active-2", ENDED)
    gathered(driven)
    # then it is the cause
    assert (driven.recovery().cause.pod, driven.recovery().cause.message) == ("active-2", ENDED)


def test_an_exception_that_is_reported_before_the_round_is_adopted_is_the_cause() -> None:
    # given a new coordinator that waits for a member of the running round
    uids = tuple(f"uid-{name}" for name in (*ACTIVES, "spare-0"))
    running_round = RoundToken(1, 1, 4)
    snapshot = m.LeaderSnapshot(ConfigVersion(1, 1, 1), uids, (), "uid-coordinator-0", {}, token=running_round)
    driven = DrivenCoordinator(3, elected=snapshot, in_place_max_per_pod=0)
    driven.join("spare-0", term=Term(1, 2))
    for rank in (0, 1):
        driven.join(ACTIVES[rank], running_round, rank, WorkersState.RUNNING, term=Term(1, 2))
    # when a member reports an exception
    raises(driven, "active-1", 0.3, token=running_round)
    driven.join("active-2", running_round, 2, WorkersState.RUNNING, term=Term(1, 2))
    assert driven.token == running_round
    # and a worker of another pod ends first
    fails(driven, "active-0", ENDED)
    # then the exception is the cause
    assert cause(driven) == ("active-1", "node-of-active-1", 1, DAMAGED)


def test_an_innocent_pod_is_not_evicted_for_the_exception_of_another_pod() -> None:
    # given a job whose pods are replaced at their first fault
    driven = job(in_place_max_per_pod=0)
    # when a worker raises an exception, and a peer ends first
    raises(driven, "active-1")
    driven.now += 0.3
    fails(driven, "active-0", ENDED)
    gathered(driven)
    driven.answer_heartbeats("active-0", "active-2")
    # then the pod with the exception is replaced
    assert driven.lost_pods() == {"active-1": "Process"}
    driven.later(0.1)
    assert driven.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}


# After a worker has ended ---------------------------------------------------------------------------------------------


def test_an_exception_that_is_reported_while_failures_are_gathered_is_the_cause() -> None:
    driven = job()
    fails(driven, "active-0", ENDED)
    driven.now += 0.01
    raises(driven, "active-1", age_s=0.5)
    gathered(driven)
    assert cause(driven)[0] == "active-1"
    assert charged(driven) == [("uid-active-1", 1)]


def test_an_exception_that_is_reported_by_the_next_round_replaces_the_cause_and_the_charge() -> None:
    # given a worker that has ended, for which all restart in place
    driven = job()
    token = driven.token
    fails(driven, "active-0", ENDED)
    gathered(driven)
    assert cause(driven)[0] == "active-0"
    assert charged(driven) == [("uid-active-0", 0)]
    assert driven.assigned() == {"active-0": 0, "active-1": 1, "active-2": 2}
    version = driven.coordinator.state.version
    # when the launcher of another worker finds an older exception while it starts the next round
    driven.now += 0.005
    raises(driven, "active-1", age_s=0.5, token=token)
    # then this exception is the cause, and the other failure a consequence
    assert cause(driven) == ("active-1", "node-of-active-1", 1, DAMAGED)
    assert consequences(driven.recovery()) == [(0, "active-0", ENDED)]
    # and observers and the next coordinator learn of it
    assert driven.coordinator.state.version > version
    history = driven.coordinator.leader_snapshot().history
    assert history is not None
    assert [(x.pod_uid, x.rank) for x in history.counted_faults] == [("uid-active-1", 1)]
    assert [x.cause.pod for x in history.open] == ["active-1"]
    # and the recovery itself goes on
    assert driven.assigned() == {}
    driven.report_started(*ACTIVES)
    driven.report_step("active-0", 2, pause_s=0.4)
    assert driven.recovery().strategy is Strategy.IN_PLACE
    assert driven.recovery().resumed_at is not None


@pytest.mark.parametrize(
    ("age_s", "first"),
    [
        pytest.param(0.13, "active-1", id="older"),
        pytest.param(0.11, "active-0", id="not older by more than the clocks may differ"),
        pytest.param(0.0, "active-0", id="younger"),
        pytest.param(-5.0, "active-0", id="in the future"),
        pytest.param(math.nan, "active-0", id="no age"),
        pytest.param(math.inf, "active-1", id="older than the round"),
    ],
)
def test_a_later_report_replaces_the_cause_only_if_the_exception_is_older(age_s: float, first: str) -> None:
    driven = job()
    token = driven.token
    fails(driven, "active-0", ENDED)
    gathered(driven)
    raises(driven, "active-1", age_s=age_s, token=token)
    assert cause(driven)[0] == first


def test_clocks_that_differ_do_not_affect_the_age_of_an_exception() -> None:
    """The report of the failure has the time of a clock that is a minute ahead."""
    driven = job()
    token = driven.token
    failed = m.WorkerFailed(token, 0, 13, None, ENDED, driven.now + 60.0)
    driven.at_once(Received(driven.link("active-0"), failed))
    gathered(driven)
    raises(driven, "active-1", age_s=0.5, token=token)
    assert cause(driven)[0] == "active-1"


def test_an_exception_stops_the_eviction_of_an_innocent_pod() -> None:
    # given a pod that is to be replaced as soon as the others have answered
    driven = job(in_place_max_per_pod=0)
    fails(driven, "active-0", ENDED)
    gathered(driven)
    assert "before pod active-0 is replaced" in driven.coordinator.snapshot().waiting_for
    # when the older exception of another pod is reported
    raises(driven, "active-1", age_s=0.5)
    assert "before pod active-1 is replaced" in driven.coordinator.snapshot().waiting_for
    driven.answer_heartbeats("active-0", "active-2")
    # then that pod is replaced
    assert driven.lost_pods() == {"active-1": "Process"}
    assert cause(driven)[0] == "active-1"
    assert charged(driven) == [("uid-active-1", 1)]


@pytest.mark.parametrize(
    ("earlier_s", "lost"),
    [
        pytest.param(0.3, {}, id="before the failure"),
        pytest.param(-0.3, {"active-0": "Process"}, id="after the failure"),
    ],
)
def test_no_pod_is_evicted_if_the_clock_of_an_exception_shows_that_it_may_be_earlier(
    earlier_s: float, lost: dict[str, str]
) -> None:
    """Found by the simulation (seed 1406540): the slow network delivered the report late, so the age said nothing."""
    driven = job(in_place_max_per_pod=0)
    failed_at = driven.now
    fails(driven, "active-0", ENDED)
    gathered(driven)
    # when the exception of another pod is reported 0.9 s later
    driven.now += 0.9
    raises(driven, "active-1", age_s=0.0, at=failed_at - earlier_s)
    driven.answer_heartbeats("active-1", "active-2")
    # then the pod that has reported first is evicted only if it certainly failed first
    assert driven.lost_pods() == lost
    assert cause(driven)[0] == "active-0"


def test_an_exception_that_is_reported_late_is_still_certainly_the_first_failure() -> None:
    # given an exception whose report took half a second, so that it seems later than its clock says
    driven = job(in_place_max_per_pod=0)
    raises(driven, "active-1", age_s=0.0, at=driven.now - 0.5)
    # when a peer fails
    driven.now += 0.3
    fails(driven, "active-0", ENDED)
    gathered(driven)
    driven.answer_heartbeats("active-0", "active-2")
    # then the pod of the exception is evicted
    assert driven.lost_pods() == {"active-1": "Process"}


def test_after_an_eviction_the_cause_remains() -> None:
    driven = job(in_place_max_per_pod=0)
    token = driven.token
    fails(driven, "active-0", ENDED)
    gathered(driven)
    driven.answer_heartbeats("active-1", "active-2")
    assert driven.lost_pods() == {"active-0": "Process"}
    raises(driven, "active-1", age_s=0.5, token=token)
    assert cause(driven)[0] == "active-0"
    assert charged(driven) == [("uid-active-0", 0)]


def test_after_the_end_of_the_recovery_the_cause_remains() -> None:
    driven = job()
    token = driven.token
    fails(driven, "active-0", ENDED)
    gathered(driven)
    driven.report_started(*ACTIVES)
    driven.report_step("active-0", 2, pause_s=0.4)
    raises(driven, "active-1", age_s=0.5, token=token)
    assert cause(driven)[0] == "active-0"
    assert charged(driven) == [("uid-active-0", 0)]


@pytest.mark.parametrize("has_round", [pytest.param(False, id="at once"), pytest.param(True, id="in the next round")])
def test_a_lost_pod_remains_the_cause(has_round: bool) -> None:
    """Its peers raise exceptions because of it."""
    driven = job()
    token = driven.token
    fails(driven, "active-0", ENDED)
    if has_round:
        gathered(driven)
        assert driven.assigned() == {"active-0": 0, "active-1": 1, "active-2": 2}
    driven.drop("active-2")
    gathered(driven)
    assert driven.assigned() == {"active-0": 0, "active-1": 1, "spare-0": 2}
    raises(driven, "active-1", age_s=0.5, token=token)
    assert driven.recovery().fault is Fault.POD
    assert cause(driven)[0] == "active-2"
    assert charged(driven) == []


def test_exceptions_of_a_spare_or_with_a_rank_that_the_pod_does_not_have_do_not_count() -> None:
    driven = job()
    raises(driven, "spare-0")
    raises(driven, "active-1", local_rank=1)
    raises(driven, "active-1", local_rank=-1)
    fails(driven, "active-0", ENDED)
    gathered(driven)
    assert cause(driven)[0] == "active-0"


def test_the_texts_of_an_exception_are_bounded() -> None:
    driven = job()
    raised = m.WorkerRaised(driven.token, 0, "x" * 5000, 0.0, "y" * 5000)
    driven.at_once(Received(driven.link("active-1"), raised))
    fails(driven, "active-0", ENDED)
    recovery = driven.recovery()
    assert (len(recovery.cause.message), len(recovery.cause.traceback)) == (500, 2000)


# Lost connections -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lost",
    [
        LOST,
        "DistBackendError: NCCL error in: NCCLUtils.cpp:94, remote process exited or there was a network error",
        "DistNetworkError: failed to recv, got 0 bytes",
        "RuntimeError: recvValue failed on SocketImpl(fd=12): Connection reset by peer",
        "DistStoreError: Connection was likely closed. Did the remote server shutdown or crash?",
    ],
)
def test_a_lost_connection_is_not_the_cause_if_another_worker_has_failed_otherwise(lost: str) -> None:
    """Its report came first, also by the clocks: the peer had closed its connections before it stored its exception."""
    driven = job()
    fails(driven, "active-0", lost)
    fails(driven, "active-2", lost)
    driven.now += 0.01
    raises(driven, "active-1", age_s=0.0)
    gathered(driven)
    assert cause(driven)[0] == "active-1"
    assert charged(driven) == [("uid-active-1", 1)]
    assert consequences(driven.recovery()) == [(0, "active-0", lost), (2, "active-2", lost)]


def test_the_crash_of_a_worker_is_the_cause_of_a_lost_connection_that_was_reported_before() -> None:
    """The launcher of the crashed worker had no CPU time."""
    driven = job()
    raises(driven, "active-0", message=LOST)
    fails(driven, "active-0", LOST)
    driven.now += 0.015
    fails(driven, "active-1", CRASHED)
    gathered(driven)
    assert cause(driven)[0] == "active-1"
    assert charged(driven) == [("uid-active-1", 1)]


def test_a_lost_connection_never_replaces_another_cause() -> None:
    """Its clock is wrong."""
    driven = job()
    fails(driven, "active-1", CRASHED)
    failed = m.WorkerFailed(driven.token, 0, 1, None, LOST, driven.now - 5.0)
    driven.at_once(Received(driven.link("active-0"), failed))
    gathered(driven)
    assert cause(driven)[0] == "active-1"
    assert charged(driven) == [("uid-active-1", 1)]


def test_a_failure_more_than_a_second_after_a_lost_connection_is_not_its_cause() -> None:
    driven = job()
    token = driven.token
    fails(driven, "active-0", LOST)
    gathered(driven)
    driven.now += 1.5
    raises(driven, "active-1", age_s=0.0, token=token)
    assert cause(driven)[0] == "active-0"
