"""What workers tell of their rollout servers: what the snapshot says of it, and what ends the world."""

from __future__ import annotations

from typing import Any

from tests.unit.sidecar.membership.driven import Driven, running
from tests.unit.sidecar.membership.test_uncounted import cut_off, settled, stood_still
from understudy_protocol import membership as m
from understudy_protocol.rollouts import Rollouts, UpdateFailure
from understudy_protocol.words import CloseReason, Fault, OnFailedUpdate, RoundToken
from understudy_sidecar.membership.desk import State

RESTARTS: dict[str, Any] = {"on_failed_update": OnFailedUpdate.RESTART_JOB}
FAILURE = UpdateFailure("u1", "step-7", "rollout-1 is gone", 1, 5.0)


def tells(
    office: Driven,
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
    told = m.Replicas(token or office.token, rank, fresh, updating, uncertain, version, failure)
    office.hear(name, told)


def rollouts(office: Driven) -> Rollouts:
    told = office.coordinator.snapshot().rollouts
    assert told is not None
    return told


def counts(office: Driven) -> tuple[int, int, int]:
    told = rollouts(office)
    return told.fresh, told.updating, told.uncertain


def test_where_no_worker_tells_of_any_nothing_is_known() -> None:
    assert running(**RESTARTS).coordinator.snapshot().rollouts is None


def test_the_newest_word_of_each_rank_counts() -> None:
    # given a rank that has updated its two, and begins again
    office = running(**RESTARTS)
    tells(office, "active-0", fresh=2, version="step-1")
    tells(office, "active-0", updating=2, version="step-1")
    assert counts(office) == (0, 2, 0)
    # when another rank tells of three of its own
    tells(office, "active-1", rank=1, fresh=3, version="step-2")
    # then both are told, and the newest version
    assert counts(office) == (3, 2, 0)
    assert rollouts(office).version == "step-2"


def test_a_change_is_news_to_the_operator() -> None:
    office = running(**RESTARTS)
    before = office.coordinator.desk.version
    tells(office, "active-0", fresh=2)
    assert office.coordinator.desk.version > before


def test_a_failed_update_ends_the_world_as_failed_and_says_whose_it_was() -> None:
    office = running(nproc=2, **RESTARTS)
    tells(office, "active-1", rank=3, uncertain=2, failure=FAILURE)
    office.answers(*list(office.sent))  # a majority confirms that the coordinator is followed
    closed = office.coordinator.closed
    assert closed is not None
    assert closed.reason is CloseReason.FAILED
    told = "the weights of version step-7 were not updated: rollout-1 is gone"
    assert closed.message == f"WeightUpdate: {told}; no retry is allowed"
    # and the recovery that the operator goes on with is open
    recovery = office.recovery()
    assert (recovery.fault, recovery.strategy, recovery.resumed_at) == (Fault.WEIGHT_UPDATE, None, None)
    assert (recovery.cause.rank, recovery.cause.pod, recovery.cause.message) == (3, "active-1", told)
    assert recovery.reason == "no retry is allowed"
    assert office.take("active-0", m.Close) == [closed]


def test_a_coordinator_that_does_not_know_yet_that_it_is_cut_off_does_not_end_the_job() -> None:
    """Found by the simulation (seed 82044): the job was told to have failed, and to have succeeded."""
    # given a coordinator whose majority is connected, as far as it knows
    office = running(3, spares=2, **RESTARTS)
    office.later(1.0, "active-0", "active-1", "active-2", "spare-0", "spare-1")
    # when it is told of a failed update, and only members of a minority answer it
    tells(office, "active-1", rank=1, uncertain=2, failure=FAILURE)
    office.answers("active-0", "active-1")
    assert office.coordinator.closed is None
    # then it steps down
    office.later(15.1, "active-0", "active-1")
    assert office.coordinator.closed is None
    assert office.resigned


def test_a_retry_that_is_allowed_is_left_to_the_worker() -> None:
    # given that one retry is allowed
    office = running(update_retries=1, **RESTARTS)
    # when a first update fails
    tells(office, "active-0", uncertain=2, failure=FAILURE)
    # then it is told, and the round goes on
    assert (office.coordinator.state, office.coordinator.snapshot().recoveries) == (State.RUNNING, ())
    assert rollouts(office).failure == FAILURE
    assert rollouts(office).cause is not None
    # when the next one fails, too
    second = UpdateFailure("u2", "step-8", "rollout-1 is gone", 2, 6.0)
    tells(office, "active-0", uncertain=2, failure=second)
    # then it is over
    office.answers(*list(office.sent))  # a majority confirms that the coordinator is followed
    assert office.coordinator.closed is not None
    assert "2 updates in a row have failed, and 1 retry is allowed" in office.coordinator.closed.message


def test_a_whole_update_takes_the_failure_back() -> None:
    office = running(update_retries=1, **RESTARTS)
    tells(office, "active-0", uncertain=2, failure=FAILURE)
    tells(office, "active-0", fresh=2, version="step-8")
    assert (rollouts(office).failure, counts(office)) == (None, (2, 0, 0))


def test_where_the_rollouts_restart_alone_training_goes_on_and_the_operator_is_told() -> None:
    office = running(on_failed_update=OnFailedUpdate.RESTART_ROLLOUTS)
    tells(office, "active-0", uncertain=2, failure=FAILURE)
    assert (office.coordinator.state, office.coordinator.closed) == (State.RUNNING, None)
    assert rollouts(office).failure == FAILURE


def test_an_update_does_not_outlive_the_round_of_its_worker() -> None:
    # given an update under way
    office = running(**RESTARTS)
    tells(office, "active-0", updating=2, version="step-1")
    # when the worker fails in it
    office.worker_fails("active-0")
    # then its replicas are Uncertain in the next round, and the fault is the worker's
    assert counts(office) == (0, 0, 2)
    assert [x.fault for x in office.coordinator.snapshot().recoveries] == [Fault.PROCESS]
    # until a worker of that round has updated them
    tells(office, "active-0", fresh=2, version="step-2")
    assert counts(office) == (2, 0, 0)


def test_an_older_round_brings_no_news_and_no_fault() -> None:
    # given a rank that has told of the second round
    office = running(**RESTARTS)
    former = office.token
    office.worker_fails("active-0")
    office.started("active-0", "active-1")
    tells(office, "active-0", fresh=2, version="step-2")
    # when a failure of the first one comes late, of this rank and of another one
    tells(office, "active-1", uncertain=2, failure=FAILURE, token=former)
    tells(office, "active-1", rank=1, uncertain=1, failure=FAILURE, token=former)
    # then nothing ends for it
    assert office.coordinator.state is State.RUNNING
    assert counts(office) == (2, 0, 1)


def test_what_fails_because_a_member_leaves_is_its_consequence() -> None:
    office = running(**RESTARTS)
    office.hear("active-1", m.Leaving("deleted", 30.0))
    tells(office, "active-0", uncertain=2, failure=FAILURE)
    assert office.coordinator.closed is None


def test_what_fails_while_a_member_is_silent_is_its_consequence() -> None:
    office = running(**RESTARTS)
    office.drop("active-1", silent=True)
    tells(office, "active-0", uncertain=2, failure=FAILURE)
    assert office.coordinator.closed is None
    assert office.lost() == {"active-1": "Node"}


def test_a_minority_does_not_end_the_job_for_a_failed_update() -> None:
    # given a coordinator that is cut off from most of its voters
    office = settled(**RESTARTS)
    cut_off(office, "active-0", "spare-0", "spare-1")
    # when a worker on its side tells of a failed update
    tells(office, "active-1", rank=1, uncertain=2, failure=FAILURE)
    office.later(5.0, "active-1", "active-2")
    # then it is told, and no more: the majority may go on under another coordinator
    assert rollouts(office).failure == FAILURE
    assert (office.coordinator.closed, office.coordinator.snapshot().recoveries) == (None, ())


def test_a_failed_update_that_was_told_to_a_minority_ends_the_job_once_a_majority_has_answered() -> None:
    # given a coordinator that has stood still for so long that its members look for another
    office = stood_still(**RESTARTS)
    # when it is told of a failed update
    tells(office, "active-1", rank=1, uncertain=2, failure=FAILURE)
    assert office.coordinator.closed is None
    # then that ends the world only when a majority still follows it
    office.now += 0.5
    office.answers("active-0", "active-2")
    assert office.coordinator.closed is None
    office.answers("spare-0")
    office.answers(*list(office.sent))  # a majority confirms that the coordinator is followed
    assert office.coordinator.closed is not None
    assert office.coordinator.closed.reason is CloseReason.FAILED
    assert office.recovery().fault is Fault.WEIGHT_UPDATE
