"""A coordinator that takes office over a job that trains already: it adopts the round, or knows what is missing."""

from dataclasses import replace

import pytest

from tests.unit.sidecar.membership.driven import START, Driven, running
from understudy_protocol import membership as m
from understudy_protocol.observer import Cause, Recovery
from understudy_protocol.recovery import History
from understudy_protocol.words import (
    CloseReason,
    ElectorateVersion,
    Fault,
    Office,
    RoundToken,
    Strategy,
    WorkersState,
)
from understudy_sidecar.membership.desk import State
from understudy_sidecar.membership.events import Tick

SETTLE_S = 12.0

ROUND = RoundToken(1, 1, 3)
RUNNING, FINISHED = WorkersState.RUNNING, WorkersState.FINISHED


def successor(actives: int = 2) -> Driven:
    return Driven(actives, epoch=2, at_least_round=3)


def test_a_round_that_is_claimed_whole_goes_on_and_nobody_restarts() -> None:
    office = successor()
    office.join("spare-0")
    office.join("active-0", ROUND, 0, RUNNING)
    office.join("active-1", ROUND, 1, RUNNING)
    assert office.coordinator.state is State.RUNNING
    assert office.token == ROUND
    assert office.assigned() == {}


def test_a_round_that_goes_on_keeps_its_token_even_if_the_operator_knows_a_higher_number() -> None:
    """Found by the simulation (seed 20484): its members' messages were dropped, and the job was never closed."""
    # given an appointed coordinator, and an operator that has seen round 3 of an earlier coordinator
    office = successor()
    # when all members of round 0 of a later term come
    later_round = RoundToken(1, 2, 0)
    office.join("active-0", later_round, 0, RUNNING)
    office.join("active-1", later_round, 1, RUNNING)
    # then this round goes on, and ends the job
    assert office.token == later_round
    office.hear("active-0", m.Finished(later_round))
    office.hear("active-1", m.Finished(later_round))
    assert office.coordinator.closed is not None


def test_an_elected_coordinator_numbers_its_rounds_after_those_of_the_former_one() -> None:
    """Found by the simulation (seed 20484): the number of the round fell from 4 to 0."""
    # given members that have held no rank, and elect one of them after the loss of the coordinator and the only active
    voters = ("uid-active-0", "uid-spare-0", "uid-spare-1")
    seats = (m.Seat(0, "uid-active-0", "active-0", "node-0"),)
    estate = m.Estate(ElectorateVersion(1, 1, 1), voters, (), "uid-active-0", (), {}, token=ROUND, seats=seats)
    office = Driven(1, elected=estate)
    office.join("spare-0")
    office.join("spare-1")
    # when the next round is formed
    office.later(SETTLE_S + 1, "spare-0", "spare-1")
    # then its number is higher
    assert office.token.round == 4


def test_without_a_member_the_next_round_waits_for_it_and_then_takes_a_spare() -> None:
    office = successor()
    office.join("spare-0")
    office.join("active-0", ROUND, 0, RUNNING)
    office.later(SETTLE_S - 1, "spare-0", "active-0")
    assert office.assigned() == {}
    office.later(2, "spare-0", "active-0")
    assert office.assigned() == {"active-0": 0, "spare-0": 1}
    assert office.token == RoundToken(2, 1, 4)


def test_nobody_is_waited_for_whose_pod_has_ended() -> None:
    office = Driven(2, epoch=2, at_least_round=3, may_come=("uid-spare-0", "uid-active-0"))
    office.join("spare-0")
    assert office.assigned() == {}
    office.join("active-0", ROUND, 0, RUNNING)
    assert office.assigned() == {"active-0": 0, "spare-0": 1}


def test_ranks_that_had_moved_stay_where_they_are() -> None:
    office = successor()
    office.join("spare-0", ROUND, 1, RUNNING)
    office.join("active-1")  # replaced in round 3, and back as one that waits
    office.join("active-0", ROUND, 0, RUNNING)
    ranks = {x.pod_name: x.group_rank for x in office.coordinator.snapshot().members}
    assert ranks == {"active-0": 0, "spare-0": 1, "active-1": None}


def test_what_finishes_before_the_round_is_adopted_is_finished() -> None:
    """Found by the simulation (seed 21): such a job was never closed."""
    office = successor()
    office.join("active-0", ROUND, 0, RUNNING)
    office.hear("active-0", m.Finished(ROUND))
    office.join("active-1", ROUND, 1, RUNNING)
    office.hear("active-1", m.Finished(ROUND))
    assert office.coordinator.closed is not None
    assert office.coordinator.closed.reason is CloseReason.SUCCEEDED


def test_who_was_asked_to_leave_meanwhile_is_the_cause_of_what_failed_then() -> None:
    """Found by the simulation (seed 601311): a worker was blamed, and charged, that had only lost its peer."""
    office = successor()
    office.join("spare-0")
    office.join("active-0", ROUND, 0, RUNNING, leaving=m.Leaving("the trainer container got SIGTERM", 30.0))
    office.join("active-1", ROUND, 1, WorkersState.FAILED)
    recovery = office.recovery()
    assert (recovery.fault, recovery.cause.pod) == (Fault.POD, "active-0")


def test_what_fails_before_the_round_is_adopted_is_mended() -> None:
    office = successor()
    office.join("active-0", ROUND, 0, RUNNING)
    office.worker_fails("active-0", at_round=ROUND)
    office.join("active-1", ROUND, 1, RUNNING)
    assert office.assigned() == {"active-0": 0, "active-1": 1}
    assert office.token == RoundToken(2, 1, 4)


@pytest.mark.parametrize("workers", [WorkersState.FAILED, WorkersState.IDLE])
def test_a_member_whose_workers_have_ended_makes_a_new_round_at_once(workers: WorkersState) -> None:
    office = successor()
    office.join("active-0", ROUND, 0, RUNNING)
    office.join("active-1", ROUND, 1, workers)
    assert office.assigned() == {"active-0": 0, "active-1": 1}
    assert office.recovery().fault is (Fault.PROCESS if workers is WorkersState.FAILED else Fault.POD)
    assert office.recovery().cause.pod == "active-1"


@pytest.mark.parametrize("known_to_be_gone", [True, False])
def test_an_appointee_that_was_told_nothing_by_the_former_coordinator_names_the_pods_that_the_operator_knows(
    known_to_be_gone: bool,
) -> None:
    """Found on a cluster: a spare that had come after the loss was appointed, and the entry named no pod.

    So it was if a node lost its power within half a second after the start of the job.
    """
    # given an appointee, to which the operator has sent which pods held the ranks
    seats = tuple(m.Seat(rank, f"uid-active-{rank}", f"active-{rank}", f"node-{rank}") for rank in range(2))
    may_come = ("uid-spare-0", "uid-active-0", *(() if known_to_be_gone else ("uid-active-1",)))
    office = Driven(2, epoch=2, at_least_round=3, may_come=may_come, seats=seats, holder="uid-active-1")
    # when all others have come, which lost the coordinator without its kernel closing a connection
    office.join("spare-0", disconnected_s=7.0, disconnected_silently=True)
    office.join("active-0", ROUND, 0, RUNNING, disconnected_s=7.5, disconnected_silently=True)
    office.later(0.0 if known_to_be_gone else SETTLE_S + 1, "spare-0", "active-0")
    # then that one is named
    (told,) = office.coordinator.snapshot().recoveries
    assert (told.fault, told.cause.rank, told.cause.pod, told.cause.node) == (Fault.NODE, 1, "active-1", "node-1")
    assert told.cause.message == "it was the coordinator, and it did not join the new coordinator"
    assert [(x.pod_name, x.node) for x in office.coordinator.snapshot().lost] == [("active-1", "node-1")]


def test_where_nobody_comes_from_the_newest_round_how_long_training_paused_is_unknown() -> None:
    """Found by the simulation (seed 96358): the newest round had made steps, and both of its pods were gone."""
    # given a coordinator that the operator told of round 5, and a member that stepped in round 3
    office = Driven(2, epoch=2, at_least_round=5)
    office.join("active-1", ROUND, 1, WorkersState.FAILED, stepped=ROUND)
    office.join("spare-0")
    office.later(SETTLE_S + 1, "active-1", "spare-0")
    office.started("active-1", "spare-0")
    office.stepped("active-1", pause_s=49.3)
    (told,) = office.coordinator.snapshot().recoveries
    assert told.resumed_at is not None
    assert told.pause_s is None


def test_a_pod_that_had_finished_and_was_lost_is_known_to_the_next_coordinator() -> None:
    """Found by the simulation (seed 60907): the recovery named no pod."""
    # given a coordinator of two pods that has lost one whose workers had all exited 0
    before = running(spares=2)
    before.later(1.0, "active-0", "active-1", "spare-0", "spare-1")
    before.hear("active-1", m.Finished(before.token))
    before.drop("active-1")
    before.later(1.0, "active-0", "spare-0", "spare-1")
    estate = before.take("spare-0", m.Estate)[-1]
    # when the next one is elected
    after = Driven(2, elected=estate)
    after.join("active-0", before.token, 0, FINISHED)
    after.later(SETTLE_S + 1, "active-0")
    # then it names that pod
    assert [(x.cause.pod, x.cause.rank) for x in after.coordinator.snapshot().recoveries] == [("active-1", 1)]


@pytest.mark.parametrize("appointed", [False, True])
def test_each_pod_that_was_lost_with_the_coordinator_is_an_entry_with_its_name_and_the_time_of_the_loss(
    appointed: bool,
) -> None:
    """Found on a cluster (appointed): the entry named no pod after two of three voters had been lost with a node."""
    # given a round of four pods, of which two are lost, one with the coordinator in it
    pods = ("active-0", "active-1", "active-2", "active-3")
    seats = tuple(m.Seat(rank, f"uid-{name}", name, f"node-{rank}") for rank, name in enumerate(pods))
    voters = tuple(f"uid-{name}" for name in (*pods, "spare-0"))
    estate = m.Estate(ElectorateVersion(1, 1, 1), voters, (), "uid-active-1", (), {}, token=ROUND, seats=seats)
    office = Driven(4, epoch=2, at_least_round=3, known=estate) if appointed else Driven(4, elected=estate)
    # when the others come, the first of which lost its coordinator 7.5 s ago
    office.join("spare-0", disconnected_s=7.0)
    office.join("active-0", ROUND, 0, WorkersState.FAILED, disconnected_s=7.5)
    office.join("active-3", ROUND, 3, WorkersState.FAILED, disconnected_s=6.0)
    joined_at = office.now
    office.later(SETTLE_S + 1, "spare-0", "active-0", "active-3")
    # then both are told, detected when the coordinator was lost
    told = office.coordinator.snapshot().recoveries
    assert [(x.cause.rank, x.cause.pod, x.cause.node, x.cause.message) for x in told] == [
        (1, "active-1", "node-1", "it was the coordinator, and it did not join the new coordinator"),
        (2, "active-2", "node-2", "it did not join the new coordinator"),
    ]
    assert {x.detected_at for x in told} == {joined_at - 7.5}
    assert {(x.pod_name, x.node) for x in office.coordinator.snapshot().lost} == {
        ("active-1", "node-1"),
        ("active-2", "node-2"),
    }


@pytest.mark.parametrize("appointed_by", ["operator", "operator, with an estate", "members"])
def test_pods_of_a_round_that_no_pod_is_left_of_are_named_too(appointed_by: str) -> None:
    """Found by the simulation (seed 64): the entry of a lone pod that was lost with its coordinator named no pod."""
    # given a job of one pod, which is lost, and a spare whose sidecar takes office
    seats = (m.Seat(0, "uid-active-0", "active-0", "node-0"),)
    voters = ("uid-active-0", "uid-spare-0", "uid-spare-1")
    estate = m.Estate(ElectorateVersion(1, 1, 1), voters, (), "uid-spare-1", (), {}, token=ROUND, seats=seats)
    match appointed_by:
        case "operator":
            office = Driven(1, epoch=2, at_least_round=3, may_come=("uid-spare-0",), seats=seats)
        case "operator, with an estate":
            office = Driven(1, epoch=2, at_least_round=3, may_come=("uid-spare-0",), known=estate)
        case _:
            office = Driven(1, elected=estate)
    # when it has come
    office.join("spare-0", disconnected_s=7.0)
    office.later(SETTLE_S + 1, "spare-0")
    # then the entry names the lost pod
    told = office.coordinator.snapshot().recoveries[0].cause
    assert (told.rank, told.pod, told.node) == (0, "active-0", "node-0")


def test_an_observer_is_sent_what_the_new_coordinator_finds_missing() -> None:
    """Found by the simulation (seed 57): the operator never heard of the loss, and did not replace the pod."""
    # given an appointed coordinator that waits for the pods of the former round, and has sent a snapshot
    office = successor()
    office.join("active-0", ROUND, 0, FINISHED)
    office.later(SETTLE_S - 1, "active-0")
    sent = office.coordinator.desk.version
    # when it finds that one does not come
    office.later(2, "active-0")
    assert office.recovery().fault is Fault.POD
    # then the snapshot is sent again
    assert office.coordinator.desk.version > sent


@pytest.mark.parametrize(("silently", "fault"), [(True, Fault.NODE), (False, Fault.POD)])
def test_pods_on_the_node_of_a_coordinator_that_stopped_responding_are_lost_with_their_node(
    silently: bool, fault: Fault
) -> None:
    # given a round of three pods, two of which are on the node of the coordinator
    nodes = ("node-0", "node-0", "node-1", "node-2")
    seats = tuple(m.Seat(rank, f"uid-active-{rank}", f"active-{rank}", node) for rank, node in enumerate(nodes))
    voters = tuple(f"uid-active-{rank}" for rank in range(4))
    estate = m.Estate(ElectorateVersion(1, 1, 1), voters, (), "uid-active-0", (), {}, token=ROUND, seats=seats)
    office = Driven(4, elected=estate)
    # when another member comes, whose connection to the coordinator no kernel has closed, or one has
    office.join("active-2", ROUND, 2, WorkersState.FAILED, disconnected_s=3.0, disconnected_silently=silently)
    office.later(SETTLE_S + 1, "active-2")
    # then the pods of that node are told as lost with it, and the pod of another node as a pod
    told = office.coordinator.snapshot().recoveries
    assert [(x.cause.pod, x.fault) for x in told] == [
        ("active-0", fault),
        ("active-1", fault),
        ("active-3", Fault.POD),
    ]


@pytest.mark.parametrize(("silently", "fault"), [(True, Fault.NODE), (False, Fault.POD)])
def test_a_coordinator_that_was_lost_at_once_after_a_new_round_is_named(silently: bool, fault: Fault) -> None:
    # given a coordinator that was lost before it told its standby coordinators the pods of its newest round
    before = RoundToken(1, 1, ROUND.round - 1)
    voters = tuple(f"uid-active-{rank}" for rank in range(3))
    version = ElectorateVersion(1, 1, 1)
    named = replace(m.Estate(version, voters, (), "uid-active-0", (), {}), holder_name="active-0", holder_node="node-0")
    estate = replace(named, token=before)
    office = Driven(3, elected=estate)
    # when all others come from that round
    for rank in (1, 2):
        who = f"active-{rank}"
        office.join(who, ROUND, rank, WorkersState.FAILED, disconnected_s=3.0, disconnected_silently=silently)
    office.later(SETTLE_S + 1, "active-1", "active-2")
    # then the recovery names the coordinator, and the operator gets the name of its pod
    (told,) = office.coordinator.snapshot().recoveries
    assert (told.cause.pod, told.cause.node, told.fault) == ("active-0", "node-0", fault)
    assert told.cause.message == (
        "it was the coordinator, and it did not join the new coordinator; "
        "which other pods of its round were lost is unknown"
    )
    assert [(x.pod_name, x.node) for x in office.coordinator.snapshot().lost] == [("active-0", "node-0")]


def test_of_a_newer_round_than_the_coordinator_told_a_lost_pod_is_named_by_its_earlier_ranks() -> None:
    """Found by the simulation (seed 48900): the former coordinator came, and another pod of its round was lost."""
    # given a coordinator that told the pods of round 2, and hung right after it had formed round 3
    seats = tuple(m.Seat(rank, f"uid-active-{rank}", f"active-{rank}", f"node-{rank}") for rank in range(3))
    voters = (*(seat.pod_uid for seat in seats), "uid-spare-0")
    before = RoundToken(1, 1, ROUND.round - 1)
    estate = m.Estate(ElectorateVersion(1, 1, 1), voters, (), "uid-spare-0", (), {}, token=before, seats=seats)
    office = Driven(3, elected=estate)
    # when all but active-2 come from round 3, in which the coordinator's pod has taken rank 0
    office.join("spare-0", ROUND, 0, WorkersState.FAILED)
    office.join("active-1", ROUND, 1, WorkersState.FAILED)
    office.later(SETTLE_S + 1, "spare-0", "active-1")
    # then that pod is named, and how that is known
    (told,) = office.coordinator.snapshot().recoveries
    assert (told.cause.pod, told.cause.rank, told.cause.node) == ("active-2", 2, "node-2")
    assert told.cause.message == (
        "it did not join the new coordinator; it had these ranks in round 2, and the newest round is unknown"
    )


def test_a_pod_that_joins_the_new_coordinator_and_is_disconnected_again_is_named() -> None:
    """Found by the simulation (seed 134505): after a second partition the recovery named no pod."""
    # given a round whose pods have finished, and whose coordinator, a spare, is lost
    seats = tuple(m.Seat(rank, f"uid-active-{rank}", f"active-{rank}", f"node-{rank}") for rank in range(3))
    voters = (*(seat.pod_uid for seat in seats), "uid-spare-0")
    estate = m.Estate(ElectorateVersion(1, 1, 1), voters, (), "uid-spare-0", (), {}, token=ROUND, seats=seats)
    new = Driven(3, elected=estate)
    new.join("active-0", ROUND, 0, FINISHED, world=3)
    # when a member joins the new coordinator, and the connection to it is lost before the last one joins
    new.join("active-2", ROUND, 2, FINISHED, world=3)
    new.drop("active-2", silent=True)
    new.join("active-1", ROUND, 1, FINISHED, world=3)
    new.join("spare-0")
    new.later(5.1, "active-0", "active-1", "spare-0")
    # then the recovery names that pod
    (reported,) = new.coordinator.snapshot().recoveries
    assert (reported.cause.pod, reported.cause.rank, reported.cause.node) == ("active-2", 2, "node-2")
    assert reported.cause.message == "it lost its connection to the new coordinator"


def test_a_pod_whose_loss_was_told_is_not_told_again_by_its_earlier_ranks() -> None:
    # given a coordinator that told the pods of round 2, and then the loss of active-2, which round 3 mended
    seats = tuple(m.Seat(rank, f"uid-active-{rank}", f"active-{rank}", f"node-{rank}") for rank in range(3))
    voters = (*(seat.pod_uid for seat in seats), "uid-spare-0")
    version, before = ElectorateVersion(1, 1, 1), RoundToken(1, 1, ROUND.round - 1)
    cause = Cause(2, "active-2", "node-2", None, None, "its connection ended")
    told = Recovery(ROUND.round, Fault.POD, Strategy.SPARE_SWAP, cause, START - 5.0, None, "its pod is lost")
    history = History(Office(1, 1), 1, (), {}, (told,), 0)
    estate = m.Estate(version, voters, (), "uid-spare-0", (), {}, history, before, seats)
    named = replace(estate, holder_name="spare-0", holder_node="node-3")
    office = Driven(3, elected=named)
    # when the coordinator, which has taken its rank, is lost as well
    office.join("active-0", ROUND, 0, WorkersState.FAILED)
    office.join("active-1", ROUND, 1, WorkersState.FAILED)
    office.later(SETTLE_S + 1, "active-0", "active-1")
    # then the next recovery names the coordinator
    assert [x.cause.pod for x in office.coordinator.snapshot().recoveries] == ["active-2", "spare-0"]


def test_round_numbers_do_not_fall_when_members_continue_an_older_round() -> None:
    """Found by the simulation (seed 45210): a frozen pod returned from a round that had been replaced in vain."""
    # given a coordinator that was told of round 5
    estate = m.Estate(
        ElectorateVersion(1, 1, 1), ("uid-active-0",), (), "uid-spare-0", (), {}, token=RoundToken(1, 1, 5)
    )
    office = Driven(1, elected=estate)
    assert office.coordinator.snapshot().token.round == 5
    # when the only member comes from round 3, and trains
    office.join("active-0", ROUND, 0, RUNNING)
    # then its round continues, the number that observers see stays, and the next round has a higher one
    assert (office.coordinator.state, office.token) == (State.RUNNING, ROUND)
    assert office.coordinator.snapshot().token.round == 5
    office.worker_fails("active-0", at_round=ROUND)
    assert office.token.round == 6


def test_a_step_that_a_late_member_brings_makes_the_pause_of_others_unknown() -> None:
    """Found by the simulation (seed 47988): active-1 knew only the steps of an older round."""
    # given a coordinator whose first round has a pod that made its last step in round 3
    office = Driven(2, epoch=2, at_least_round=3)
    office.join("active-1", ROUND, 1, WorkersState.FAILED, stepped=ROUND)
    office.join("spare-0")
    office.later(SETTLE_S + 1, "active-1", "spare-0")
    office.started("active-1", "spare-0")
    # when a pod of round 4 comes late, before the first step
    office.join("active-0", RoundToken(1, 1, 4), 0, WorkersState.FAILED, stepped=RoundToken(1, 1, 4))
    office.stepped("active-1", pause_s=276.4)
    # then the recovery ends, and how long training paused is not told
    (told,) = office.coordinator.snapshot().recoveries
    assert told.resumed_at is not None
    assert told.pause_s is None


@pytest.mark.parametrize(("silent", "fault"), [(True, Fault.NODE), (False, Fault.POD)])
def test_a_pod_whose_connection_went_silent_before_its_coordinator_stepped_down_is_lost_with_its_node(
    silent: bool, fault: Fault
) -> None:
    # given a coordinator of two pods that has lost the connection to one of them, and with it its majority
    before = Driven(2)
    before.join("active-0")
    before.join("active-1")
    before.later(1.0, "active-0", "active-1")
    before.started("active-0", "active-1")
    before.later(1.0, "active-0", "active-1")
    if silent:
        before.drop("active-1", silent=True)
    before.later(1.0, "active-0")
    snapshot = before.take("active-0", m.Estate)[-1]
    # when the operator appoints the other pod
    after = Driven(2, epoch=2, at_least_round=before.token.round, known=snapshot)
    after.join("active-0", before.token, 0, WorkersState.FAILED, disconnected_s=3.0)
    after.later(SETTLE_S + 1, "active-0")
    # then the lost one is lost with its node, or as a pod if its connection was not silent
    assert [(x.cause.pod, x.fault) for x in after.coordinator.snapshot().recoveries] == [("active-1", fault)]


@pytest.mark.parametrize("appointed", [False, True])
def test_a_step_before_rounds_that_no_pod_is_left_of_is_not_the_last_one(appointed: bool) -> None:
    # given a round that has stepped, whose pods are all lost with their coordinator
    seats = tuple(m.Seat(rank, f"uid-lost-{rank}", f"lost-{rank}", f"node-{rank}") for rank in range(2))
    voters = ("uid-lost-0", "uid-lost-1", "uid-active-0", "uid-spare-0", "uid-spare-1")
    estate = m.Estate(
        ElectorateVersion(1, 1, 1), voters, (), "uid-lost-0", (), {}, token=ROUND, seats=seats, stepped=ROUND
    )
    office = Driven(2, epoch=2, at_least_round=3, known=estate) if appointed else Driven(2, elected=estate)
    # and a pod that stepped in an earlier round
    office.join("active-0", stepped=RoundToken(1, 1, 2))
    office.join("spare-0")
    office.join("spare-1")
    office.later(SETTLE_S + 1, "active-0", "spare-0", "spare-1")
    assert set(office.assigned()) == {"active-0", "spare-0"}
    # when the next round steps, and that pod has measured the time since its own last step
    office.stepped("active-0", pause_s=24.9)
    # then nobody knows how long training stood still
    assert office.recovery().resumed_at is not None
    assert office.recovery().pause_s is None


def test_a_member_that_has_come_and_is_out_of_touch_is_not_one_that_was_lost() -> None:
    """Found by a scenario: the member of the new coordinator's own pod, in the moment in which it changed its link."""
    # given a round of three pods, whose coordinator is lost
    pods = ("active-0", "active-1", "active-2")
    seats = tuple(m.Seat(rank, f"uid-{name}", name, f"node-{rank}") for rank, name in enumerate(pods))
    voters = tuple(f"uid-{name}" for name in pods)
    estate = m.Estate(ElectorateVersion(1, 1, 1), voters, (), "uid-active-0", (), {}, token=ROUND, seats=seats)
    office = Driven(3, elected=estate)
    # when one of the others comes and calls elsewhere, and the other one brings the failure of its worker
    office.join("active-1", ROUND, 1, RUNNING, world=3)
    office.hear("active-1", m.Apart("its own sidecar became the coordinator"))
    office.join("active-2", ROUND, 2, WorkersState.FAILED, world=3)
    # then the coordinator alone was lost
    assert [x.cause.pod for x in office.coordinator.snapshot().recoveries] == ["active-0"]


def test_a_coordinator_that_stands_still_before_it_knows_the_round_waits_for_its_majority() -> None:
    """Found by the simulation (seed 83443): it gave the rank of a member away, and stopped its workers."""
    # given one that was just elected, and stands still for longer than it waits for members
    office = loses_an_active_coordinator(RUNNING)
    office.now += SETTLE_S + 5.0
    office.do(Tick())
    assert office.coordinator.snapshot().recoveries == ()
    # when a majority has answered, then members have 2 s to connect again
    office.answers("spare-0", "active-1", "active-2")
    office.later(1.9, "spare-0", "active-1", "active-2")
    assert office.coordinator.snapshot().recoveries == ()
    # and then it decides
    office.later(0.2, "spare-0", "active-1", "active-2")
    assert [x.cause.pod for x in office.coordinator.snapshot().recoveries] == ["active-0"]


def loses_an_active_coordinator(workers: WorkersState) -> Driven:
    """A job of three actives and a spare, whose coordinator held rank 0; the others elect, in this state of theirs."""
    pods = ("active-0", "active-1", "active-2")
    seats = tuple(m.Seat(rank, f"uid-{name}", name, f"node-{rank}") for rank, name in enumerate(pods))
    voters = tuple(f"uid-{name}" for name in (*pods, "spare-0"))
    estate = m.Estate(ElectorateVersion(1, 1, 1), voters, (), "uid-active-0", (), {}, token=ROUND, seats=seats)
    office = Driven(3, elected=estate)
    office.join("spare-0")
    office.join("active-1", ROUND, 1, workers)
    office.join("active-2", ROUND, 2, workers)
    return office


def test_if_the_workers_of_its_peers_hang_a_lost_coordinator_is_waited_for_5_s() -> None:
    """It may be that only its sidecar has crashed, and that its workers train."""
    office = loses_an_active_coordinator(RUNNING)
    office.later(4.5, "spare-0", "active-1", "active-2")
    assert office.assigned() == {}
    office.later(1.0, "spare-0", "active-1", "active-2")
    assert office.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}


def test_if_they_fail_the_next_round_follows_at_once() -> None:
    assert loses_an_active_coordinator(WorkersState.FAILED).assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}
    # and as soon as one of them fails during the wait
    office = loses_an_active_coordinator(RUNNING)
    office.later(1.0, "spare-0", "active-1", "active-2")
    office.worker_fails("active-1", at_round=ROUND)
    assert office.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}
