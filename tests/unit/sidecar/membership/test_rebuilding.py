"""A new coordinator of a job that trains already: it continues the round, or finds out which pods are missing."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.sidecar.membership.driven import START, DrivenCoordinator, running
from understudy_protocol import membership as m
from understudy_protocol.enums import (
    NO_ROUND,
    CloseReason,
    ConfigVersion,
    Fault,
    RoundToken,
    Strategy,
    Term,
    WorkersState,
)
from understudy_protocol.observer import Cause, Nodes, Recovery
from understudy_protocol.recovery import CountedFault, History
from understudy_sidecar.membership.events import FromOperator, Tick
from understudy_sidecar.membership.round_state import RoundPhase

SETTLE_S = 12.0

ROUND = RoundToken(1, 1, 3)
RUNNING, FINISHED = WorkersState.RUNNING, WorkersState.FINISHED


def successor(actives: int = 2) -> DrivenCoordinator:
    return DrivenCoordinator(actives, epoch=2, at_least_round=3)


def test_a_round_that_all_its_members_claim_continues_without_a_restart() -> None:
    driven = successor()
    driven.join("spare-0")
    driven.join("active-0", ROUND, 0, RUNNING)
    driven.join("active-1", ROUND, 1, RUNNING)
    assert driven.coordinator.phase is RoundPhase.RUNNING
    assert driven.token == ROUND
    assert driven.assigned() == {}


def test_a_round_that_continues_keeps_its_token_even_if_the_operator_knows_a_higher_number() -> None:
    """Found by the simulation (seed 20484): its members' messages were dropped, and the job was never closed."""
    # given an appointed coordinator, and an operator that has seen round 3 of an earlier coordinator
    driven = successor()
    # when all members of round 0 of a later term join
    later_round = RoundToken(1, 2, 0)
    driven.join("active-0", later_round, 0, RUNNING)
    driven.join("active-1", later_round, 1, RUNNING)
    # then this round continues, and ends the job
    assert driven.token == later_round
    driven.receive("active-0", m.Finished(later_round))
    driven.receive("active-1", m.Finished(later_round))
    driven.answer_heartbeats("active-0", "active-1")
    assert driven.coordinator.closed is not None


def test_an_elected_coordinator_numbers_its_rounds_after_those_of_the_previous_one() -> None:
    """Found by the simulation (seed 20484): the number of the round fell from 4 to 0."""
    # given members that have had no rank, and elect one of them after the loss of the coordinator and the only active
    # member
    voters = ("uid-active-0", "uid-spare-0", "uid-spare-1")
    rank_holders = (m.RankHolder(0, "uid-active-0", "active-0", "node-0"),)
    leader_snapshot = m.LeaderSnapshot(
        ConfigVersion(1, 1, 1), voters, (), "uid-active-0", {}, token=ROUND, rank_holders=rank_holders
    )
    driven = DrivenCoordinator(1, elected=leader_snapshot)
    driven.join("spare-0")
    driven.join("spare-1")
    # when the next round is formed
    driven.later(SETTLE_S + 1, "spare-0", "spare-1")
    # then its number is higher
    assert driven.token.round == 4


def test_the_next_round_waits_for_a_missing_member_and_then_takes_a_spare() -> None:
    driven = successor()
    driven.join("spare-0")
    driven.join("active-0", ROUND, 0, RUNNING)
    driven.later(SETTLE_S - 1, "spare-0", "active-0")
    assert driven.assigned() == {}
    driven.later(2, "spare-0", "active-0")
    assert driven.assigned() == {"active-0": 0, "spare-0": 1}
    assert driven.token == RoundToken(2, 1, 4)


def test_the_next_round_does_not_wait_for_a_pod_that_has_ended() -> None:
    driven = DrivenCoordinator(2, epoch=2, at_least_round=3, running_pods=("uid-spare-0", "uid-active-0"))
    driven.join("spare-0")
    assert driven.assigned() == {}
    driven.join("active-0", ROUND, 0, RUNNING)
    assert driven.assigned() == {"active-0": 0, "spare-0": 1}


def test_an_elected_coordinator_does_not_wait_for_pods_that_the_operator_reports_as_ended() -> None:
    """It waited 12 s: they could have been in the candidate pool of another pod."""
    # given two active pods and three spares, one of which coordinates, and an active pod and the coordinator are lost
    voters = ("uid-active-0", "uid-active-1", "uid-spare-0", "uid-spare-1", "uid-spare-2")
    leader_snapshot = m.LeaderSnapshot(ConfigVersion(1, 1, 1), voters, (), "uid-spare-2", {}, token=ROUND)
    driven = DrivenCoordinator(2, elected=leader_snapshot)
    driven.join("spare-0")
    driven.join("spare-1")
    driven.join("active-0", ROUND, 0, WorkersState.FAILED)
    assert driven.assigned() == {}
    # when the operator reports one of them, and then both
    driven.do(FromOperator(Nodes((), driven.now, ended_pods=("uid-spare-2",))))
    assert driven.assigned() == {}
    driven.do(FromOperator(Nodes((), driven.now, ended_pods=("uid-active-1", "uid-spare-2"))))
    # then the next round is formed at once
    assert driven.assigned() == {"active-0": 0, "spare-0": 1}


def test_ranks_that_had_moved_stay_where_they_are() -> None:
    driven = successor()
    driven.join("spare-0", ROUND, 1, RUNNING)
    driven.join("active-1")  # replaced in round 3, and back as a waiting member
    driven.join("active-0", ROUND, 0, RUNNING)
    ranks = {x.pod_name: x.group_rank for x in driven.coordinator.snapshot().members}
    assert ranks == {"active-0": 0, "spare-0": 1, "active-1": None}


def test_workers_that_finish_before_the_round_continues_have_finished() -> None:
    """Found by the simulation (seed 21): such a job was never closed."""
    driven = successor()
    driven.join("active-0", ROUND, 0, RUNNING)
    driven.receive("active-0", m.Finished(ROUND))
    driven.join("active-1", ROUND, 1, RUNNING)
    driven.receive("active-1", m.Finished(ROUND))
    driven.answer_heartbeats("active-0", "active-1")
    assert driven.coordinator.closed is not None
    assert driven.coordinator.closed.reason is CloseReason.SUCCEEDED


def test_a_member_that_was_asked_to_leave_in_the_meantime_is_the_cause_of_failures() -> None:
    """Found by the simulation (seed 601311): a worker that had only lost its peer was blamed and charged."""
    driven = successor()
    driven.join("spare-0")
    driven.join("active-0", ROUND, 0, RUNNING, leaving=m.Leaving("the trainer container got SIGTERM", 30.0))
    driven.join("active-1", ROUND, 1, WorkersState.FAILED)
    recovery = driven.recovery()
    assert (recovery.fault, recovery.cause.pod) == (Fault.POD, "active-0")


def test_a_failure_that_the_previous_coordinator_had_counted_is_counted_once() -> None:
    """Found by the simulation (seed 785915): that coordinator hung, and joined its successor with its history."""
    # given a worker's failure, which an appointed coordinator finds in its member's Join
    driven = successor(1)
    driven.join("active-0", ROUND, 0, WorkersState.FAILED)
    assert len(driven.coordinator.state.fault_history.in_window(driven.now)) == 1
    # when the previous coordinator joins, which had counted this failure, and formed no round
    counted = CountedFault(START - 9.0, "uid-active-0", 0)
    cause = Cause(0, "active-0", "node-of-active-0", None, "SIGKILL", "killed by SIGKILL")
    entry = Recovery(4, Fault.PROCESS, None, cause, START - 9.0, None, "restart 1 of 2 within 1 h")
    driven.join("spare-0", history=History(Term(1, 1), 1, (counted,), {}, (entry,), 0))
    # then its count stays
    assert driven.coordinator.state.fault_history.in_window(driven.now) == [counted]


def test_a_failure_whose_next_round_was_formed_and_reached_no_launcher_is_counted_once() -> None:
    """Found by the simulation (seed 1228041): a sidecar ended before its launcher had received the start message."""
    # given a failure in round 3, and round 4, which recovers it
    counted = CountedFault(START - 9.0, "uid-active-0", 0)
    cause = Cause(0, "active-0", "node-of-active-0", 1, None, "exit code 1")
    entry = Recovery(4, Fault.PROCESS, Strategy.IN_PLACE, cause, START - 9.0, None, "restart 1 of 2 within 1 h")
    history = History(Term(1, 1), 1, (counted,), {}, (entry,), 0)
    rank_holders = (m.RankHolder(0, "uid-active-0", "active-0", "node-of-active-0"),)
    leader_snapshot = m.LeaderSnapshot(
        ConfigVersion(1, 1, 1), ("uid-active-0",), (), "", {}, history, RoundToken(1, 1, 4), rank_holders=rank_holders
    )
    driven = DrivenCoordinator(1, elected=leader_snapshot)
    # when the pod joins the next coordinator, and claims round 3, whose workers have failed
    driven.join("active-0", ROUND, 0, WorkersState.FAILED)
    # then the same recovery goes on with the next round
    assert driven.assigned() == {"active-0": 0}
    assert driven.coordinator.state.fault_history.in_window(driven.now) == [counted]
    assert driven.coordinator.snapshot().recoveries == (replace(entry, round=5),)


# A drain that began before


def test_a_member_that_was_asked_to_end_before_the_round_continues_drains_the_others() -> None:
    driven = successor(3)
    driven.join("active-0", ROUND, 0, RUNNING, leaving=m.Leaving("the trainer container got SIGTERM", 30.0))
    driven.join("active-1", ROUND, 1, RUNNING)
    driven.join("active-2", ROUND, 2, RUNNING)
    assert driven.coordinator.phase is RoundPhase.RUNNING
    assert driven.take("active-1", m.Drain) == [m.Drain(ROUND, 28.0)]
    assert driven.take("active-2", m.Drain) == [m.Drain(ROUND, 28.0)]
    assert driven.take("active-0", m.Drain) == []


def test_a_drain_continues_with_the_time_that_is_left() -> None:
    """Found by the simulation (seed 721360): the workers that still saved got SIGKILL, and a restart was charged."""
    # given a drain by the previous coordinator, which no member of this one began
    driven = successor(3)
    driven.join("spare-0")
    driven.join("active-0", ROUND, 0, RUNNING, drain_s=20.0)
    driven.join("active-1", ROUND, 1, RUNNING, drain_s=20.0)
    driven.join("active-2", ROUND, 2, RUNNING, drain_s=20.0)
    assert driven.take("active-2", m.Drain) == [m.Drain(ROUND, 20.0)]
    # when the workers of one member have ended, and it connects again
    driven.join("active-1", ROUND, 1, WorkersState.IDLE, drain_s=19.0)
    # then the round waits for the others, and no worker failed
    assert driven.assigned() == {}
    for name in ("active-0", "active-2"):
        driven.receive(name, m.Drained(ROUND))
    assert driven.assigned() == {"active-0": 0, "active-1": 1, "active-2": 2}
    recovery = driven.recovery()
    assert (recovery.fault, driven.coordinator.state.fault_history.in_window(driven.now)) == (Fault.POD, [])
    assert recovery.cause.message == "it was drained for another pod, which had finished or has not ended"


def test_members_whose_workers_had_saved_when_the_coordinator_was_lost_wait_for_the_others() -> None:
    driven = successor(3)
    driven.join("active-0", ROUND, 0, WorkersState.IDLE, drain_s=20.0)
    driven.join("active-1", ROUND, 1, WorkersState.FAILED, drain_s=20.0)
    driven.join("active-2", ROUND, 2, RUNNING, drain_s=20.0)
    assert driven.assigned() == {}
    recovery = driven.recovery()
    assert (recovery.fault, recovery.cause.message) == (
        Fault.POD,
        "its workers were drained when the job lost its coordinator",
    )
    driven.receive("active-2", m.Drained(ROUND))
    assert driven.assigned() == {"active-0": 0, "active-1": 1, "active-2": 2}


def test_a_drain_that_continues_lasts_no_longer_than_the_grace_period() -> None:
    """A member may report any time."""
    driven = successor(2)
    driven.join("active-0", ROUND, 0, WorkersState.IDLE, drain_s=1e12)
    driven.join("active-1", ROUND, 1, RUNNING)
    assert driven.take("active-1", m.Drain) == [m.Drain(ROUND, 30.0)]


def test_a_drain_that_continues_ends_with_its_time() -> None:
    driven = successor(2)
    driven.join("active-0", ROUND, 0, WorkersState.IDLE, drain_s=20.0)
    driven.join("active-1", ROUND, 1, RUNNING, drain_s=20.0)
    driven.later(19.0, "active-0", "active-1")
    assert driven.assigned() == {}
    driven.later(1.1, "active-0", "active-1")
    assert driven.assigned() == {"active-0": 0, "active-1": 1}


def test_a_failure_before_the_round_continues_is_followed_by_a_new_round() -> None:
    driven = successor()
    driven.join("active-0", ROUND, 0, RUNNING)
    driven.fail_worker("active-0", at_round=ROUND)
    driven.join("active-1", ROUND, 1, RUNNING)
    assert driven.assigned() == {"active-0": 0, "active-1": 1}
    assert driven.token == RoundToken(2, 1, 4)


@pytest.mark.parametrize(
    ("message", "at", "peers_message", "peers_at"),
    [
        pytest.param("exit code 1", 9.94, "exit code 1: a peer has gone", 10.0, id="by its clock"),
        pytest.param(
            "CUDA error", 10.5, "gloo/transport/tcp/pair.cc: Connection closed by peer", 10.0, id="by the text"
        ),
    ],
)
def test_the_worker_that_failed_first_while_the_job_had_no_coordinator_is_the_cause(
    message: str, at: float, peers_message: str, peers_at: float
) -> None:
    """Found by the simulation (seed 1618439): the worker of the lowest rank was the cause."""
    # given two members that join a new coordinator, 100 s after their workers have failed
    driven = DrivenCoordinator(2, epoch=2, at_least_round=0)
    since = driven.now - 110.0
    for name, rank, text, failed_at in (("active-0", 0, peers_message, peers_at), ("active-1", 1, message, at)):
        failure = m.WorkerFailed(ROUND, 0, 1, None, text, since + failed_at, "")
        driven.join(name, ROUND, rank, WorkersState.FAILED, failure=failure)
    # then the first failure is the cause
    assert driven.recovery().fault is Fault.PROCESS
    assert (driven.recovery().cause.pod, driven.recovery().cause.message) == ("active-1", message)


@pytest.mark.parametrize("workers", [WorkersState.FAILED, WorkersState.IDLE])
def test_a_member_whose_workers_have_ended_causes_a_new_round_at_once(workers: WorkersState) -> None:
    driven = successor()
    driven.join("active-0", ROUND, 0, RUNNING)
    driven.join("active-1", ROUND, 1, workers)
    assert driven.assigned() == {"active-0": 0, "active-1": 1}
    assert driven.recovery().fault is (Fault.PROCESS if workers is WorkersState.FAILED else Fault.POD)
    assert driven.recovery().cause.pod == "active-1"


@pytest.mark.parametrize("known_to_be_gone", [True, False])
def test_an_appointed_coordinator_without_a_leader_snapshot_names_the_pods_that_the_operator_knows(
    known_to_be_gone: bool,
) -> None:
    """Found on a cluster: a spare that had joined after the loss was appointed, and the entry named no pod.

    The same happened if a node lost its power within half a second after the start of the job.
    """
    # given an appointed coordinator, to which the operator has sent the rank holders
    rank_holders = tuple(
        m.RankHolder(rank, f"uid-active-{rank}", f"active-{rank}", f"node-{rank}") for rank in range(2)
    )
    running_pods = ("uid-spare-0", "uid-active-0", *(() if known_to_be_gone else ("uid-active-1",)))
    driven = DrivenCoordinator(
        2,
        epoch=2,
        at_least_round=3,
        running_pods=running_pods,
        rank_holders=rank_holders,
        coordinator_uid="uid-active-1",
    )
    # when all others have joined, and they lost the coordinator without its kernel closing a connection
    driven.join("spare-0", disconnected_s=7.0, disconnected_silently=True)
    driven.join("active-0", ROUND, 0, RUNNING, disconnected_s=7.5, disconnected_silently=True)
    driven.later(0.0 if known_to_be_gone else SETTLE_S + 1, "spare-0", "active-0")
    # then the recovery names the coordinator's pod
    (reported,) = driven.coordinator.snapshot().recoveries
    assert (reported.fault, reported.cause.rank, reported.cause.pod, reported.cause.node) == (
        Fault.NODE,
        1,
        "active-1",
        "node-1",
    )
    assert reported.cause.message == "it was the coordinator, and it did not join the new coordinator"
    assert [(x.pod_name, x.node) for x in driven.coordinator.snapshot().lost] == [("active-1", "node-1")]


def test_if_no_member_of_the_newest_round_joins_the_pause_of_the_training_is_unknown() -> None:
    """Found by the simulation (seed 96358): the newest round had made steps, and both of its pods were gone."""
    # given a coordinator that received round 5 from the operator, and a member that stepped in round 3
    driven = DrivenCoordinator(2, epoch=2, at_least_round=5)
    driven.join("active-1", ROUND, 1, WorkersState.FAILED, stepped=ROUND)
    driven.join("spare-0")
    driven.later(SETTLE_S + 1, "active-1", "spare-0")
    driven.report_started("active-1", "spare-0")
    driven.report_step("active-1", pause_s=49.3)
    (reported,) = driven.coordinator.snapshot().recoveries
    assert reported.resumed_at is not None
    assert reported.pause_s is None


def test_a_pod_that_had_finished_and_was_lost_is_known_to_the_next_coordinator() -> None:
    """Found by the simulation (seed 60907): the recovery named no pod."""
    # given a coordinator of two pods that has lost one whose workers had all exited 0
    before = running(spares=2)
    before.later(1.0, "active-0", "active-1", "spare-0", "spare-1")
    before.receive("active-1", m.Finished(before.token))
    before.drop("active-1")
    before.later(1.0, "active-0", "spare-0", "spare-1")
    leader_snapshot = before.take("spare-0", m.LeaderSnapshot)[-1]
    # when the next one is elected
    after = DrivenCoordinator(2, elected=leader_snapshot)
    after.join("active-0", before.token, 0, FINISHED)
    after.later(SETTLE_S + 1, "active-0")
    # then it names that pod
    assert [(x.cause.pod, x.cause.rank) for x in after.coordinator.snapshot().recoveries] == [("active-1", 1)]


@pytest.mark.parametrize("appointed", [False, True])
def test_each_pod_that_was_lost_with_the_coordinator_is_an_entry_with_its_name_and_the_time_of_the_loss(
    appointed: bool,
) -> None:
    """Found on a cluster (appointed): the entry named no pod after two of three voters had been lost with a node."""
    # given a round of four pods, of which two are lost, one of them the coordinator
    pods = ("active-0", "active-1", "active-2", "active-3")
    rank_holders = tuple(m.RankHolder(rank, f"uid-{name}", name, f"node-{rank}") for rank, name in enumerate(pods))
    voters = tuple(f"uid-{name}" for name in (*pods, "spare-0"))
    leader_snapshot = m.LeaderSnapshot(
        ConfigVersion(1, 1, 1), voters, (), "uid-active-1", {}, token=ROUND, rank_holders=rank_holders
    )
    driven = (
        DrivenCoordinator(4, epoch=2, at_least_round=3, known=leader_snapshot)
        if appointed
        else DrivenCoordinator(4, elected=leader_snapshot)
    )
    # when the others join, the first of which lost its coordinator 7.5 s ago
    driven.join("spare-0", disconnected_s=7.0)
    driven.join("active-0", ROUND, 0, WorkersState.FAILED, disconnected_s=7.5)
    driven.join("active-3", ROUND, 3, WorkersState.FAILED, disconnected_s=6.0)
    joined_at = driven.now
    driven.later(SETTLE_S + 1, "spare-0", "active-0", "active-3")
    # then both are reported, detected when the coordinator was lost
    reported = driven.coordinator.snapshot().recoveries
    assert [(x.cause.rank, x.cause.pod, x.cause.node, x.cause.message) for x in reported] == [
        (1, "active-1", "node-1", "it was the coordinator, and it did not join the new coordinator"),
        (2, "active-2", "node-2", "it did not join the new coordinator"),
    ]
    assert {x.detected_at for x in reported} == {joined_at - 7.5}
    assert {(x.pod_name, x.node) for x in driven.coordinator.snapshot().lost} == {
        ("active-1", "node-1"),
        ("active-2", "node-2"),
    }


def test_a_lost_pod_is_named_although_a_recovery_from_an_earlier_fault_of_it_is_still_open() -> None:
    """Found by the simulation (seed 838344)."""
    # given a round after a failure on active-1, which no step has ended yet
    rank_holders = tuple(m.RankHolder(n, f"uid-active-{n}", f"active-{n}", f"node-{n}") for n in range(2))
    cause = Cause(1, "active-1", "node-1", None, "SIGKILL", "killed by SIGKILL")
    entry = Recovery(3, Fault.PROCESS, Strategy.IN_PLACE, cause, START - 9.0, None, "restart 1 of 2 within 1 h")
    history = History(Term(1, 1), 1, (), {}, (entry,), 0)
    voters = ("uid-active-0", "uid-active-1", "uid-spare-0")
    leader_snapshot = m.LeaderSnapshot(
        ConfigVersion(1, 1, 1), voters, (), "uid-spare-0", {}, history, ROUND, rank_holders=rank_holders
    )
    driven = DrivenCoordinator(2, elected=leader_snapshot)
    # when active-1 does not join the next coordinator
    driven.join("active-0", ROUND, 0, WorkersState.FAILED)
    driven.later(SETTLE_S + 1, "active-0")
    # then it is lost
    reported = driven.coordinator.snapshot().recoveries
    assert [(x.fault, x.cause.pod) for x in reported] == [(Fault.PROCESS, "active-1"), (Fault.POD, "active-1")]


@pytest.mark.parametrize("appointed_by", ["operator", "operator, with a leader snapshot", "members"])
def test_pods_of_a_round_of_which_no_pod_is_left_are_named_too(appointed_by: str) -> None:
    """Found by the simulation (seed 64): the entry of a lone pod that was lost with its coordinator named no pod."""
    # given a job of one pod, which is lost, and a spare whose sidecar is elected
    rank_holders = (m.RankHolder(0, "uid-active-0", "active-0", "node-0"),)
    voters = ("uid-active-0", "uid-spare-0", "uid-spare-1")
    leader_snapshot = m.LeaderSnapshot(
        ConfigVersion(1, 1, 1), voters, (), "uid-spare-1", {}, token=ROUND, rank_holders=rank_holders
    )
    match appointed_by:
        case "operator":
            driven = DrivenCoordinator(
                1, epoch=2, at_least_round=3, running_pods=("uid-spare-0",), rank_holders=rank_holders
            )
        case "operator, with a leader snapshot":
            driven = DrivenCoordinator(
                1, epoch=2, at_least_round=3, running_pods=("uid-spare-0",), known=leader_snapshot
            )
        case _:
            driven = DrivenCoordinator(1, elected=leader_snapshot)
    # when it has joined
    driven.join("spare-0", disconnected_s=7.0)
    driven.later(SETTLE_S + 1, "spare-0")
    # then the entry names the lost pod
    reported = driven.coordinator.snapshot().recoveries[0].cause
    assert (reported.rank, reported.pod, reported.node) == (0, "active-0", "node-0")


def test_an_observer_receives_which_pods_the_new_coordinator_finds_missing() -> None:
    """Found by the simulation (seed 57): the operator did not receive the loss, and did not replace the pod."""
    # given an appointed coordinator that waits for the pods of the previous round, and has sent a snapshot
    driven = successor()
    driven.join("active-0", ROUND, 0, FINISHED)
    driven.later(SETTLE_S - 1, "active-0")
    sent = driven.coordinator.state.version
    # when it finds that one does not join
    driven.later(2, "active-0")
    assert driven.recovery().fault is Fault.POD
    # then the snapshot is sent again
    assert driven.coordinator.state.version > sent


@pytest.mark.parametrize(("silently", "fault"), [(True, Fault.NODE), (False, Fault.POD)])
def test_pods_on_the_node_of_a_coordinator_that_stopped_responding_are_lost_with_their_node(
    silently: bool, fault: Fault
) -> None:
    # given a round of three pods, two of which are on the node of the coordinator
    nodes = ("node-0", "node-0", "node-1", "node-2")
    rank_holders = tuple(
        m.RankHolder(rank, f"uid-active-{rank}", f"active-{rank}", node) for rank, node in enumerate(nodes)
    )
    voters = tuple(f"uid-active-{rank}" for rank in range(4))
    leader_snapshot = m.LeaderSnapshot(
        ConfigVersion(1, 1, 1), voters, (), "uid-active-0", {}, token=ROUND, rank_holders=rank_holders
    )
    driven = DrivenCoordinator(4, elected=leader_snapshot)
    # when another member joins, whose connection to the coordinator no kernel has closed, or a kernel has
    driven.join("active-2", ROUND, 2, WorkersState.FAILED, disconnected_s=3.0, disconnected_silently=silently)
    driven.later(SETTLE_S + 1, "active-2")
    # then the pods of that node are reported as lost with it, and the pod of another node as a pod
    reported = driven.coordinator.snapshot().recoveries
    assert [(x.cause.pod, x.fault) for x in reported] == [
        ("active-0", fault),
        ("active-1", fault),
        ("active-3", Fault.POD),
    ]


@pytest.mark.parametrize(("silently", "fault"), [(True, Fault.NODE), (False, Fault.POD)])
def test_a_coordinator_that_was_lost_right_after_a_new_round_is_named(silently: bool, fault: Fault) -> None:
    # given a coordinator that was lost before it sent the pods of its newest round to its standby coordinators
    before = RoundToken(1, 1, ROUND.round - 1)
    voters = tuple(f"uid-active-{rank}" for rank in range(3))
    version = ConfigVersion(1, 1, 1)
    named = replace(
        m.LeaderSnapshot(version, voters, (), "uid-active-0", {}),
        coordinator_pod="active-0",
        coordinator_node="node-0",
    )
    leader_snapshot = replace(named, token=before)
    driven = DrivenCoordinator(3, elected=leader_snapshot)
    # when all others join from that round
    for rank in (1, 2):
        pod = f"active-{rank}"
        driven.join(pod, ROUND, rank, WorkersState.FAILED, disconnected_s=3.0, disconnected_silently=silently)
    driven.later(SETTLE_S + 1, "active-1", "active-2")
    # then the recovery names the coordinator, and the operator gets the name of its pod
    (reported,) = driven.coordinator.snapshot().recoveries
    assert (reported.cause.pod, reported.cause.node, reported.fault) == ("active-0", "node-0", fault)
    assert reported.cause.message == (
        "it was the coordinator, and it did not join the new coordinator; "
        "which other pods of its round were lost is unknown"
    )
    assert [(x.pod_name, x.node) for x in driven.coordinator.snapshot().lost] == [("active-0", "node-0")]


def test_a_lost_pod_of_a_newer_round_than_the_leader_snapshot_is_named_by_its_earlier_ranks() -> None:
    """Found by the simulation (seed 48900): the previous coordinator joined, and another pod of its round was lost."""
    # given a coordinator that sent the pods of round 2, and hung right after it had formed round 3
    rank_holders = tuple(
        m.RankHolder(rank, f"uid-active-{rank}", f"active-{rank}", f"node-{rank}") for rank in range(3)
    )
    voters = (*(rank_holder.pod_uid for rank_holder in rank_holders), "uid-spare-0")
    before = RoundToken(1, 1, ROUND.round - 1)
    leader_snapshot = m.LeaderSnapshot(
        ConfigVersion(1, 1, 1), voters, (), "uid-spare-0", {}, token=before, rank_holders=rank_holders
    )
    driven = DrivenCoordinator(3, elected=leader_snapshot)
    # when all but active-2 join from round 3, in which the coordinator's pod has taken rank 0
    driven.join("spare-0", ROUND, 0, WorkersState.FAILED)
    driven.join("active-1", ROUND, 1, WorkersState.FAILED)
    driven.later(SETTLE_S + 1, "spare-0", "active-1")
    # then that pod is named, with the source of its name
    (reported,) = driven.coordinator.snapshot().recoveries
    assert (reported.cause.pod, reported.cause.rank, reported.cause.node) == ("active-2", 2, "node-2")
    assert reported.cause.message == (
        "it did not join the new coordinator; it had these ranks in round 2, and the newest round is unknown"
    )


@pytest.mark.parametrize("holder_joins", [False, True])
def test_a_claim_of_an_older_round_is_ignored_if_no_pod_of_the_newest_one_has_joined(holder_joins: bool) -> None:
    """Found by the simulation (seed 631346): the snapshots of the older round were restored, after a newer one."""
    # given a coordinator that formed round 3 without active-0, took its rank, and is lost
    voters = ("uid-active-0", "uid-active-1", "uid-spare-0")
    rank_holders = (
        m.RankHolder(0, "uid-spare-0", "spare-0", "node-s"),
        m.RankHolder(1, "uid-active-1", "active-1", "node-1"),
    )
    leader_snapshot = m.LeaderSnapshot(
        ConfigVersion(1, 1, 1), voters, (), "uid-spare-0", {}, token=ROUND, rank_holders=rank_holders
    )
    driven = DrivenCoordinator(2, elected=leader_snapshot)
    # when active-0 joins, whose workers have failed in round 2, and perhaps a pod that had missed round 3
    before = RoundToken(1, 1, 2)
    driven.join("active-0", before, 0, WorkersState.FAILED, group_world_size=2)
    if holder_joins:
        driven.join("active-1", before, 1, WorkersState.FAILED, group_world_size=2)
    driven.join("spare-1")
    driven.later(SETTLE_S + 1, "active-0", "active-1", "spare-1")
    # then active-0 has to give up round 2, because round 3 may have trained: not so if that pod shows that it did not
    assert driven.take("active-0", m.Standby) == ([] if holder_joins else [m.Standby(ROUND)])
    causes = {x.cause.pod for x in driven.coordinator.snapshot().recoveries}
    assert ("spare-0" in causes) is not holder_joins


def test_a_pod_that_joins_the_new_coordinator_and_is_disconnected_again_is_named() -> None:
    """Found by the simulation (seed 134505): after a second partition the recovery named no pod."""
    # given a round whose pods have finished, and whose coordinator, a spare, is lost
    rank_holders = tuple(
        m.RankHolder(rank, f"uid-active-{rank}", f"active-{rank}", f"node-{rank}") for rank in range(3)
    )
    voters = (*(rank_holder.pod_uid for rank_holder in rank_holders), "uid-spare-0")
    leader_snapshot = m.LeaderSnapshot(
        ConfigVersion(1, 1, 1), voters, (), "uid-spare-0", {}, token=ROUND, rank_holders=rank_holders
    )
    new = DrivenCoordinator(3, elected=leader_snapshot)
    new.join("active-0", ROUND, 0, FINISHED, group_world_size=3)
    # when a member joins the new coordinator, and the connection to it is lost before the last one joins
    new.join("active-2", ROUND, 2, FINISHED, group_world_size=3)
    new.drop("active-2", silent=True)
    new.join("active-1", ROUND, 1, FINISHED, group_world_size=3)
    new.join("spare-0")
    new.later(5.1, "active-0", "active-1", "spare-0")
    # then the recovery names that pod
    (reported,) = new.coordinator.snapshot().recoveries
    assert (reported.cause.pod, reported.cause.rank, reported.cause.node) == ("active-2", 2, "node-2")
    assert reported.cause.message == "it lost its connection to the new coordinator"


def test_a_pod_whose_loss_was_reported_is_not_reported_again_by_its_earlier_ranks() -> None:
    # given a coordinator that sent the pods of round 2, and then the loss of active-2, from which round 3 recovered
    rank_holders = tuple(
        m.RankHolder(rank, f"uid-active-{rank}", f"active-{rank}", f"node-{rank}") for rank in range(3)
    )
    voters = (*(rank_holder.pod_uid for rank_holder in rank_holders), "uid-spare-0")
    version, before = ConfigVersion(1, 1, 1), RoundToken(1, 1, ROUND.round - 1)
    cause = Cause(2, "active-2", "node-2", None, None, "its connection ended")
    reported = Recovery(ROUND.round, Fault.POD, Strategy.SPARE_SWAP, cause, START - 5.0, None, "its pod is lost")
    history = History(Term(1, 1), 1, (), {}, (reported,), 0)
    leader_snapshot = m.LeaderSnapshot(version, voters, (), "uid-spare-0", {}, history, before, rank_holders)
    named = replace(leader_snapshot, coordinator_pod="spare-0", coordinator_node="node-3")
    driven = DrivenCoordinator(3, elected=named)
    # when the coordinator, which has taken its rank, is lost as well
    driven.join("active-0", ROUND, 0, WorkersState.FAILED)
    driven.join("active-1", ROUND, 1, WorkersState.FAILED)
    driven.later(SETTLE_S + 1, "active-0", "active-1")
    # then the next recovery names the coordinator
    assert [x.cause.pod for x in driven.coordinator.snapshot().recoveries] == ["active-2", "spare-0"]


def test_round_numbers_do_not_fall_when_members_continue_an_older_round() -> None:
    """Found by the simulation (seed 45210): a frozen pod returned from a round whose replacement had failed."""
    # given a coordinator that received round 5
    leader_snapshot = m.LeaderSnapshot(
        ConfigVersion(1, 1, 1), ("uid-active-0",), (), "uid-spare-0", {}, token=RoundToken(1, 1, 5)
    )
    driven = DrivenCoordinator(1, elected=leader_snapshot)
    assert driven.coordinator.snapshot().token.round == 5
    # when the only member joins from round 3, and trains
    driven.join("active-0", ROUND, 0, RUNNING)
    # then its round continues, the number that observers see stays, and the next round has a higher number
    assert (driven.coordinator.phase, driven.token) == (RoundPhase.RUNNING, ROUND)
    assert driven.coordinator.snapshot().token.round == 5
    driven.fail_worker("active-0", at_round=ROUND)
    assert driven.token.round == 6


def test_a_step_that_a_late_member_reports_makes_the_pause_of_others_unknown() -> None:
    """Found by the simulation (seed 47988): active-1 knew only the steps of an older round."""
    # given a coordinator whose first round has a pod that made its last step in round 3
    driven = DrivenCoordinator(2, epoch=2, at_least_round=3)
    driven.join("active-1", ROUND, 1, WorkersState.FAILED, stepped=ROUND)
    driven.join("spare-0")
    driven.later(SETTLE_S + 1, "active-1", "spare-0")
    driven.report_started("active-1", "spare-0")
    # when a pod of round 4 joins late, before the first step
    driven.join("active-0", RoundToken(1, 1, 4), 0, WorkersState.FAILED, stepped=RoundToken(1, 1, 4))
    driven.report_step("active-1", pause_s=276.4)
    # then the recovery ends without a pause of the training
    (reported,) = driven.coordinator.snapshot().recoveries
    assert reported.resumed_at is not None
    assert reported.pause_s is None


@pytest.mark.parametrize(("silent", "fault"), [(True, Fault.NODE), (False, Fault.POD)])
def test_a_pod_whose_connection_went_silent_before_its_coordinator_stepped_down_is_lost_with_its_node(
    silent: bool, fault: Fault
) -> None:
    # given a coordinator of two pods that has lost the connection to one of them, and with it its majority
    before = DrivenCoordinator(2)
    before.join("active-0")
    before.join("active-1")
    before.later(1.0, "active-0", "active-1")
    before.report_started("active-0", "active-1")
    before.later(1.0, "active-0", "active-1")
    if silent:
        before.drop("active-1", silent=True)
    before.later(1.0, "active-0")
    snapshot = before.take("active-0", m.LeaderSnapshot)[-1]
    # when the operator appoints the other pod
    after = DrivenCoordinator(2, epoch=2, at_least_round=before.token.round, known=snapshot)
    after.join("active-0", before.token, 0, WorkersState.FAILED, disconnected_s=3.0)
    after.later(SETTLE_S + 1, "active-0")
    # then the lost pod is lost with its node, or as a pod if its connection was not silent
    assert [(x.cause.pod, x.fault) for x in after.coordinator.snapshot().recoveries] == [("active-1", fault)]


@pytest.mark.parametrize("appointed", [False, True])
def test_a_step_before_rounds_of_which_no_pod_is_left_is_not_the_last_one(appointed: bool) -> None:
    # given a round that has stepped, whose pods are all lost with their coordinator
    rank_holders = tuple(m.RankHolder(rank, f"uid-lost-{rank}", f"lost-{rank}", f"node-{rank}") for rank in range(2))
    voters = ("uid-lost-0", "uid-lost-1", "uid-active-0", "uid-spare-0", "uid-spare-1")
    leader_snapshot = m.LeaderSnapshot(
        ConfigVersion(1, 1, 1), voters, (), "uid-lost-0", {}, token=ROUND, rank_holders=rank_holders, stepped=ROUND
    )
    driven = (
        DrivenCoordinator(2, epoch=2, at_least_round=3, known=leader_snapshot)
        if appointed
        else DrivenCoordinator(2, elected=leader_snapshot)
    )
    # and a pod that stepped in an earlier round
    driven.join("active-0", stepped=RoundToken(1, 1, 2))
    driven.join("spare-0")
    driven.join("spare-1")
    driven.later(SETTLE_S + 1, "active-0", "spare-0", "spare-1")
    assert set(driven.assigned()) == {"active-0", "spare-0"}
    # when the next round steps, and that pod has measured the time since its own last step
    driven.report_step("active-0", pause_s=24.9)
    # then the pause of the training is unknown
    assert driven.recovery().resumed_at is not None
    assert driven.recovery().pause_s is None


def test_a_member_that_has_joined_and_is_disconnected_was_not_lost() -> None:
    """Found by a scenario: the member of the new coordinator's own pod, while it changed its connection."""
    # given a round of three pods, whose coordinator is lost
    pods = ("active-0", "active-1", "active-2")
    rank_holders = tuple(m.RankHolder(rank, f"uid-{name}", name, f"node-{rank}") for rank, name in enumerate(pods))
    voters = tuple(f"uid-{name}" for name in pods)
    leader_snapshot = m.LeaderSnapshot(
        ConfigVersion(1, 1, 1), voters, (), "uid-active-0", {}, token=ROUND, rank_holders=rank_holders
    )
    driven = DrivenCoordinator(3, elected=leader_snapshot)
    # when one of the others joins and calls elsewhere, and the other one reports the failure of its worker
    driven.join("active-1", ROUND, 1, RUNNING, group_world_size=3)
    driven.receive("active-1", m.Disconnecting("its own sidecar became the coordinator"))
    driven.join("active-2", ROUND, 2, WorkersState.FAILED, group_world_size=3)
    # then only the coordinator was lost
    assert [x.cause.pod for x in driven.coordinator.snapshot().recoveries] == ["active-0"]


def test_a_coordinator_that_freezes_before_it_knows_the_round_waits_for_its_majority() -> None:
    """Found by the simulation (seed 83443): it gave the rank of a member away, and stopped its workers."""
    # given a coordinator that was just elected, and is frozen for longer than it waits for members
    driven = loses_an_active_coordinator(RUNNING)
    driven.now += SETTLE_S + 5.0
    driven.do(Tick())
    assert driven.coordinator.snapshot().recoveries == ()
    # when a majority has answered, then members have 2 s to connect again
    driven.answer_heartbeats("spare-0", "active-1", "active-2")
    driven.later(1.9, "spare-0", "active-1", "active-2")
    assert driven.coordinator.snapshot().recoveries == ()
    # and then the coordinator decides
    driven.later(0.2, "spare-0", "active-1", "active-2")
    assert [x.cause.pod for x in driven.coordinator.snapshot().recoveries] == ["active-0"]


def loses_an_active_coordinator(workers: WorkersState) -> DrivenCoordinator:
    """A job of three active members and a spare, whose coordinator had rank 0; the others, in this state, elect a new
    one.
    """
    pods = ("active-0", "active-1", "active-2")
    rank_holders = tuple(m.RankHolder(rank, f"uid-{name}", name, f"node-{rank}") for rank, name in enumerate(pods))
    voters = tuple(f"uid-{name}" for name in (*pods, "spare-0"))
    leader_snapshot = m.LeaderSnapshot(
        ConfigVersion(1, 1, 1), voters, (), "uid-active-0", {}, token=ROUND, rank_holders=rank_holders
    )
    driven = DrivenCoordinator(3, elected=leader_snapshot)
    driven.join("spare-0")
    driven.join("active-1", ROUND, 1, workers)
    driven.join("active-2", ROUND, 2, workers)
    return driven


def test_if_the_workers_of_its_peers_hang_the_next_round_waits_5_s_for_a_lost_coordinator() -> None:
    """Perhaps only its sidecar has crashed, and its workers train."""
    driven = loses_an_active_coordinator(RUNNING)
    driven.later(4.5, "spare-0", "active-1", "active-2")
    assert driven.assigned() == {}
    driven.later(1.0, "spare-0", "active-1", "active-2")
    assert driven.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}


def test_if_the_workers_of_its_peers_fail_the_next_round_follows_at_once() -> None:
    assert loses_an_active_coordinator(WorkersState.FAILED).assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}
    # and as soon as one of them fails during the wait
    driven = loses_an_active_coordinator(RUNNING)
    driven.later(1.0, "spare-0", "active-1", "active-2")
    driven.fail_worker("active-1", at_round=ROUND)
    assert driven.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}


def after_a_coordinator_with_ranks(*, knows_ranks: bool = True, min_actives: int = 0) -> DrivenCoordinator:
    """The successor of active-0, which coordinated a round of three pods, with the spares spare-0 and spare-1."""
    ranks = tuple(m.RankHolder(rank, f"uid-active-{rank}", f"active-{rank}", f"node-{rank}") for rank in range(3))
    voters = (*(f"uid-active-{rank}" for rank in range(3)), "uid-spare-0", "uid-spare-1")
    leader_snapshot = m.LeaderSnapshot(ConfigVersion(1, 1, 1), voters, (), "uid-active-0", {})
    known = replace(leader_snapshot, token=ROUND, rank_holders=ranks if knows_ranks else ())
    return DrivenCoordinator(3, elected=known, min_actives=min_actives)


def join_without_step(
    driven: DrivenCoordinator, *pods: str, silently: bool = True, late: bool = True, node: str = ""
) -> None:
    for pod in pods:
        rank = None if pod.startswith("spare") else int(pod[-1])
        token, workers = (NO_ROUND, WorkersState.IDLE) if rank is None else (ROUND, RUNNING)
        is_late = late and rank is not None
        lost: dict[str, Any] = {"disconnected_s": 1.5, "disconnected_silently": silently, "has_stopped": is_late}
        driven.join(pod, token, rank, workers, node=node, **lost)


NEXT_RANKS = {"spare-0": 0, "active-1": 1, "active-2": 2}


def test_if_the_training_stopped_with_the_machine_of_the_coordinator_nobody_waits_for_its_sidecar() -> None:
    # given members whose next step is late, and whose connections to the coordinator no kernel has closed
    driven = after_a_coordinator_with_ranks()
    # when all of them have joined
    join_without_step(driven, "spare-0", "spare-1", "active-1", "active-2")
    # then the next round is formed at once, and the node is named
    assert driven.assigned() == NEXT_RANKS
    assert (driven.recovery().fault, driven.recovery().cause.node) == (Fault.NODE, "node-0")


@pytest.mark.parametrize(
    ("silently", "late"),
    [(False, True), (True, False)],
    ids=["a kernel closed the connections, so only the sidecar may have crashed", "the training may make steps"],
)
def test_otherwise_the_sidecar_of_the_coordinator_may_return(silently: bool, late: bool) -> None:
    driven = after_a_coordinator_with_ranks()
    join_without_step(driven, "spare-0", "spare-1", "active-1")
    join_without_step(driven, "active-2", silently=silently, late=late)
    driven.later(4.9, "spare-0", "spare-1", "active-1", "active-2")
    assert driven.assigned() == {}
    driven.join("active-0", ROUND, 0, RUNNING)
    assert driven.token == ROUND


def test_a_step_after_the_join_shows_that_the_training_goes_on() -> None:
    # given members that have joined with a late step
    driven = after_a_coordinator_with_ranks()
    join_without_step(driven, "active-1", "active-2")
    # when one of them makes a step before all have joined
    driven.receive("active-1", m.Progress(ROUND, 7, None, 0.1, START))
    join_without_step(driven, "spare-0", "spare-1")
    # then the sidecar of the coordinator may return
    driven.later(4.9, "spare-0", "spare-1", "active-1", "active-2")
    assert driven.assigned() == {}
    driven.later(0.2, "spare-0", "spare-1", "active-1", "active-2")
    assert driven.assigned() == NEXT_RANKS


def test_a_stopped_training_waits_for_no_spare_that_it_does_not_need() -> None:
    """Its kernel ends its connection to the coordinator only after 3 s."""
    # given a training that has stopped, and two spares; one of them joins later
    driven = after_a_coordinator_with_ranks()
    join_without_step(driven, "active-1", "active-2")
    assert driven.assigned() == {}
    # when the other spare joins
    join_without_step(driven, "spare-0")
    # then the next round is formed, and the missing spare is not reported as lost
    assert driven.assigned() == NEXT_RANKS
    assert [x.pod_name for x in driven.coordinator.snapshot().lost] == ["active-0"]


def test_a_stopped_training_waits_for_all_voters_if_its_ranks_are_unknown() -> None:
    driven = after_a_coordinator_with_ranks(knows_ranks=False)
    join_without_step(driven, "active-1", "active-2", "spare-0")
    driven.later(11.9, "active-1", "active-2", "spare-0")
    assert driven.assigned() == {}


def test_an_elastic_training_that_has_stopped_waits_for_a_spare() -> None:
    driven = after_a_coordinator_with_ranks(min_actives=2)
    join_without_step(driven, "active-1", "active-2")
    driven.later(3.0, "active-1", "active-2")
    assert driven.coordinator.phase is RoundPhase.REBUILDING
    join_without_step(driven, "spare-0")
    assert driven.assigned() == NEXT_RANKS


def test_a_stopped_training_waits_for_a_second_pod_with_ranks() -> None:
    driven = after_a_coordinator_with_ranks()
    join_without_step(driven, "active-1", "spare-0", "spare-1")
    driven.later(11.9, "active-1", "spare-0", "spare-1")
    assert driven.assigned() == {}


# Other pods on the node of the coordinator


def after_a_coordinator_beside(*ranks: int) -> DrivenCoordinator:
    """The successor of spare-9, which coordinated a round of five pods on node-9, as did the pods of these ranks."""
    nodes = {rank: "node-9" if rank in ranks else f"node-{rank}" for rank in range(5)}
    holders = tuple(m.RankHolder(x, f"uid-active-{x}", f"active-{x}", node) for x, node in nodes.items())
    voters = (*(x.pod_uid for x in holders), "uid-spare-0", "uid-spare-1", "uid-spare-9")
    known = m.LeaderSnapshot(
        ConfigVersion(1, 1, 1),
        voters,
        (),
        "uid-spare-9",
        {},
        token=ROUND,
        rank_holders=holders,
        coordinator_pod="spare-9",
        coordinator_node="node-9",
    )
    return DrivenCoordinator(5, elected=known)


OTHERS = ("spare-0", "spare-1", "active-0", "active-1", "active-2")


def test_pods_on_the_node_of_a_coordinator_whose_machine_does_not_respond_have_a_second_to_join() -> None:
    # given a training that has stopped with the machine of the coordinator, which had two pods with ranks
    driven = after_a_coordinator_beside(3, 4)
    join_without_step(driven, *OTHERS)
    # when neither has joined
    driven.later(0.9, *OTHERS)
    assert driven.assigned() == {}
    # then after 1 s their ranks go to spares, and the node is the cause for both
    driven.later(0.2, *OTHERS)
    assert driven.assigned() == {"active-0": 0, "active-1": 1, "active-2": 2, "spare-0": 3, "spare-1": 4}
    causes = [(x.fault, x.cause.pod, x.cause.node) for x in driven.coordinator.snapshot().recoveries]
    assert causes == [(Fault.NODE, "active-3", "node-9"), (Fault.NODE, "active-4", "node-9")]


def test_a_pod_on_that_node_that_joins_within_a_second_keeps_its_ranks() -> None:
    driven = after_a_coordinator_beside(4)
    join_without_step(driven, *OTHERS, "active-3")
    driven.later(0.9, *OTHERS, "active-3")
    # when it joins after all others
    join_without_step(driven, "active-4")
    # then the round continues
    assert driven.assigned() == {}
    assert driven.token == ROUND


def test_if_one_pod_on_that_node_has_joined_the_others_may_join_too() -> None:
    """Only the network of the coordinator's pod may have ended."""
    # given two pods on the node, and one of them is alive
    driven = after_a_coordinator_beside(3, 4)
    join_without_step(driven, *OTHERS)
    join_without_step(driven, "active-3", node="node-9")
    # when the other has not joined for 11.9 s
    driven.later(11.9, *OTHERS, "active-3")
    # then it still may
    assert driven.assigned() == {}
    join_without_step(driven, "active-4", node="node-9")
    assert driven.token == ROUND


@pytest.mark.parametrize(
    ("silently", "late"),
    [(False, True), (True, False)],
    ids=["a kernel closed a connection to the coordinator", "the training may make steps"],
)
def test_otherwise_all_pods_on_that_node_may_join(silently: bool, late: bool) -> None:
    driven = after_a_coordinator_beside(4)
    join_without_step(driven, *OTHERS)
    join_without_step(driven, "active-3", silently=silently, late=late)
    driven.later(11.9, *OTHERS, "active-3")
    assert driven.assigned() == {}
    driven.later(0.2, *OTHERS, "active-3")
    assert driven.assigned()["spare-0"] == 4


def test_the_pods_on_that_node_are_reported_as_lost_after_a_second_even_if_too_few_others_are_left() -> None:
    """The operator creates other pods for their ranks."""
    driven = after_a_coordinator_beside(2, 3, 4)
    join_without_step(driven, "spare-0", "spare-1", "active-0", "active-1")
    driven.later(1.1, "spare-0", "spare-1", "active-0", "active-1")
    assert driven.assigned() == {}
    assert [(x.pod_name, x.fault) for x in driven.coordinator.snapshot().lost] == [
        ("active-2", Fault.NODE),
        ("active-3", Fault.NODE),
        ("active-4", Fault.NODE),
        ("spare-9", Fault.NODE),
    ]


def test_a_missing_pod_on_another_node_may_join_too() -> None:
    driven = after_a_coordinator_beside(4)
    join_without_step(driven, *OTHERS)
    driven.later(11.9, *OTHERS)
    assert driven.assigned() == {}
