"""Workers report their rollout servers: the reports in the snapshot, and the reports that end the job."""

from __future__ import annotations

from typing import Any

from tests.unit.sidecar.membership.driven import DrivenCoordinator, running
from tests.unit.sidecar.membership.test_pending_faults import committed, cut_off, frozen
from understudy_protocol import membership as m
from understudy_protocol.enums import CloseReason, Fault, OnFailedUpdate, RoundToken
from understudy_protocol.rollouts import Rollouts, UpdateFailure
from understudy_sidecar.membership.round_state import RoundPhase

RESTARTS: dict[str, Any] = {"on_failed_update": OnFailedUpdate.RESTART_JOB}
FAILURE = UpdateFailure("u1", "step-7", "rollout-1 is gone", 1, 5.0)


def reports(
    driven: DrivenCoordinator,
    name: str,
    *,
    rank: int = 0,
    fresh: int = 0,
    updating: int = 0,
    uncertain: int = 0,
    version: str = "",
    failure: UpdateFailure | None = None,
    token: RoundToken | None = None,
) -> None:
    reported = m.Replicas(token or driven.token, rank, fresh, updating, uncertain, version, failure)
    driven.receive(name, reported)


def rollouts(driven: DrivenCoordinator) -> Rollouts:
    reported = driven.coordinator.snapshot().rollouts
    assert reported is not None
    return reported


def counts(driven: DrivenCoordinator) -> tuple[int, int, int]:
    reported = rollouts(driven)
    return reported.fresh, reported.updating, reported.uncertain


def test_without_reports_of_workers_the_snapshot_has_no_rollouts() -> None:
    assert running(**RESTARTS).coordinator.snapshot().rollouts is None


def test_the_newest_report_of_each_rank_counts() -> None:
    # given a rank that has updated its two servers, and begins again
    driven = running(**RESTARTS)
    reports(driven, "active-0", fresh=2, version="step-1")
    reports(driven, "active-0", updating=2, version="step-1")
    assert counts(driven) == (0, 2, 0)
    # when another rank reports three servers of its own
    reports(driven, "active-1", rank=1, fresh=3, version="step-2")
    # then the snapshot has both, and the newest version
    assert counts(driven) == (3, 2, 0)
    assert rollouts(driven).version == "step-2"


def test_a_change_makes_a_new_version_of_the_snapshot() -> None:
    driven = running(**RESTARTS)
    before = driven.coordinator.state.version
    reports(driven, "active-0", fresh=2)
    assert driven.coordinator.state.version > before


def test_a_failed_update_fails_the_job_and_names_its_rank() -> None:
    driven = running(nproc=2, **RESTARTS)
    reports(driven, "active-1", rank=3, uncertain=2, failure=FAILURE)
    driven.answer_heartbeats(*list(driven.sent))  # a majority confirms that the coordinator is followed
    closed = driven.coordinator.closed
    assert closed is not None
    assert closed.reason is CloseReason.FAILED
    reported = "the weights of version step-7 were not updated: rollout-1 is gone"
    assert closed.message == f"WeightUpdate: {reported}; no retry is allowed"
    # and the recovery that the operator continues is open
    recovery = driven.recovery()
    assert (recovery.fault, recovery.strategy, recovery.resumed_at) == (Fault.WEIGHT_UPDATE, None, None)
    assert (recovery.cause.rank, recovery.cause.pod, recovery.cause.message) == (3, "active-1", reported)
    assert recovery.reason == "no retry is allowed"
    assert driven.take("active-0", m.Close) == [closed]


def test_a_coordinator_that_does_not_know_yet_that_it_is_cut_off_does_not_end_the_job() -> None:
    """Found by the simulation (seed 82044): the job was reported as failed, and as succeeded."""
    # given a coordinator whose majority is connected, as far as it knows
    driven = running(3, spares=2, **RESTARTS)
    driven.later(1.0, "active-0", "active-1", "active-2", "spare-0", "spare-1")
    # when it receives a failed update, and only members of a minority answer it
    reports(driven, "active-1", rank=1, uncertain=2, failure=FAILURE)
    driven.answer_heartbeats("active-0", "active-1")
    assert driven.coordinator.closed is None
    # then it steps down
    driven.later(15.1, "active-0", "active-1")
    assert driven.coordinator.closed is None
    assert driven.step_down_reason


def test_an_allowed_retry_is_left_to_the_worker() -> None:
    # given a job that allows one retry
    driven = running(update_retries=1, **RESTARTS)
    # when a first update fails
    reports(driven, "active-0", uncertain=2, failure=FAILURE)
    # then it is reported, and the round continues
    assert (driven.coordinator.phase, driven.coordinator.snapshot().recoveries) == (RoundPhase.RUNNING, ())
    assert rollouts(driven).failure == FAILURE
    assert rollouts(driven).cause is not None
    # when the next one fails, too
    second = UpdateFailure("u2", "step-8", "rollout-1 is gone", 2, 6.0)
    reports(driven, "active-0", uncertain=2, failure=second)
    # then the job fails
    driven.answer_heartbeats(*list(driven.sent))  # a majority confirms that the coordinator is followed
    assert driven.coordinator.closed is not None
    assert "2 updates in a row have failed, and 1 retry is allowed" in driven.coordinator.closed.message


def test_a_complete_update_withdraws_the_failure() -> None:
    driven = running(update_retries=1, **RESTARTS)
    reports(driven, "active-0", uncertain=2, failure=FAILURE)
    reports(driven, "active-0", fresh=2, version="step-8")
    assert (rollouts(driven).failure, counts(driven)) == (None, (2, 0, 0))


def test_if_only_the_rollouts_restart_training_continues_and_the_operator_receives_the_failure() -> None:
    driven = running(on_failed_update=OnFailedUpdate.RESTART_ROLLOUTS)
    reports(driven, "active-0", uncertain=2, failure=FAILURE)
    assert (driven.coordinator.phase, driven.coordinator.closed) == (RoundPhase.RUNNING, None)
    assert rollouts(driven).failure == FAILURE


def test_an_update_does_not_outlive_the_round_of_its_worker() -> None:
    # given an update under way
    driven = running(**RESTARTS)
    reports(driven, "active-0", updating=2, version="step-1")
    # when the worker fails in it
    driven.fail_worker("active-0")
    # then its replicas are Uncertain in the next round, and the fault is the worker's
    assert counts(driven) == (0, 0, 2)
    assert [x.fault for x in driven.coordinator.snapshot().recoveries] == [Fault.PROCESS]
    # until a worker of that round has updated them
    reports(driven, "active-0", fresh=2, version="step-2")
    assert counts(driven) == (2, 0, 0)


def test_a_report_of_an_older_round_is_no_fault() -> None:
    # given a rank that has reported servers in the second round
    driven = running(**RESTARTS)
    first_token = driven.token
    driven.fail_worker("active-0")
    driven.report_started("active-0", "active-1")
    reports(driven, "active-0", fresh=2, version="step-2")
    # when failures of the first round arrive late, of this rank and of another one
    reports(driven, "active-1", uncertain=2, failure=FAILURE, token=first_token)
    reports(driven, "active-1", rank=1, uncertain=1, failure=FAILURE, token=first_token)
    # then no round ends because of them
    assert driven.coordinator.phase is RoundPhase.RUNNING
    assert counts(driven) == (2, 0, 1)


def test_an_update_that_fails_because_a_member_leaves_does_not_end_the_job() -> None:
    driven = running(**RESTARTS)
    driven.receive("active-1", m.Leaving("deleted", 30.0))
    reports(driven, "active-0", uncertain=2, failure=FAILURE)
    assert driven.coordinator.closed is None


def test_an_update_that_fails_while_a_member_is_silent_does_not_end_the_job() -> None:
    driven = running(**RESTARTS)
    driven.drop("active-1", silent=True)
    reports(driven, "active-0", uncertain=2, failure=FAILURE)
    assert driven.coordinator.closed is None
    assert driven.lost_pods() == {"active-1": "Node"}


def test_a_minority_does_not_end_the_job_for_a_failed_update() -> None:
    # given a coordinator that is cut off from most of its voters
    driven = committed(**RESTARTS)
    cut_off(driven, "active-0", "spare-0", "spare-1")
    # when a worker on its side reports a failed update
    reports(driven, "active-1", rank=1, uncertain=2, failure=FAILURE)
    driven.later(5.0, "active-1", "active-2")
    # then the failure is only reported: the majority may follow another coordinator
    assert rollouts(driven).failure == FAILURE
    assert (driven.coordinator.closed, driven.coordinator.snapshot().recoveries) == (None, ())


def test_a_failed_update_during_a_freeze_ends_the_job_once_a_majority_has_answered() -> None:
    # given a coordinator that was frozen for so long that its members look for another
    driven = frozen(**RESTARTS)
    # when it receives a failed update
    reports(driven, "active-1", rank=1, uncertain=2, failure=FAILURE)
    assert driven.coordinator.closed is None
    # then that ends the job only when a majority still follows it
    driven.now += 0.5
    driven.answer_heartbeats("active-0", "active-2")
    assert driven.coordinator.closed is None
    driven.answer_heartbeats("spare-0")
    driven.answer_heartbeats(*list(driven.sent))  # a majority confirms that the coordinator is followed
    assert driven.coordinator.closed is not None
    assert driven.coordinator.closed.reason is CloseReason.FAILED
    assert driven.recovery().fault is Fault.WEIGHT_UPDATE
