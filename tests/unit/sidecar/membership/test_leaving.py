"""A member is asked to end: which members save, how long the next round waits, and which pod takes its rank."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.sidecar.membership.driven import DrivenCoordinator, running
from understudy_protocol import membership as m
from understudy_protocol.enums import NO_ROUND, Fault, Strategy, Verdict, WorkersState
from understudy_protocol.observer import NodeFact, Nodes
from understudy_sidecar.membership.events import FromOperator
from understudy_sidecar.membership.round_state import RoundPhase

GRACE_S = 30.0
LEAVING = m.Leaving("deleted", GRACE_S)
FAULTY = m.Leaving("deleted", GRACE_S, Verdict.FAULTY)


def drained(driven: DrivenCoordinator, *names: str) -> None:
    for name in names:
        driven.receive(name, m.Drained(driven.token))


def test_all_other_actives_are_drained_so_that_a_save_can_have_all_ranks() -> None:
    driven = running(3)
    driven.receive("active-0", LEAVING)
    assert [len(driven.take(f"active-{rank}", m.Drain)) for rank in range(3)] == [0, 1, 1]
    assert driven.take("spare-0", m.Drain) == []


def test_members_that_leave_together_drain_the_others_once() -> None:
    driven = running(5)
    # when a rack is drained
    for number in range(3):
        driven.receive(f"active-{number}", LEAVING)
    assert [len(driven.take(f"active-{rank}", m.Drain)) for rank in (3, 4)] == [1, 1]


def test_a_member_that_leaves_with_a_shorter_grace_drains_the_others_again() -> None:
    driven = running(3)
    driven.receive("active-0", LEAVING)
    driven.receive("active-1", m.Leaving("its node is preempted", 10.0))
    assert [x.grace_s for x in driven.take("active-2", m.Drain)] == [28.0, 9.0]


def test_the_next_round_follows_when_all_have_saved_and_the_member_has_gone() -> None:
    driven = running(3)
    driven.receive("active-0", LEAVING)
    drained(driven, "active-1")
    driven.receive("active-0", m.Gone("its launcher has ended"))
    assert driven.assigned() == {}  # active-2 still saves
    assert "members that are saving" in driven.coordinator.snapshot().waiting_for
    drained(driven, "active-2")
    assert driven.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}
    assert driven.recovery().cause.pod == "active-0"


def test_a_member_whose_connection_was_broken_when_the_others_were_drained_is_drained_too() -> None:
    # given a member whose connection has broken when another member leaves, which has 30 s
    driven = running(3)
    driven.drop("active-1", silent=True)
    driven.receive("active-0", LEAVING)
    assert driven.take("active-1", m.Drain) == []
    # when it connects again a second later, and its workers run
    driven.later(1.0, "active-0", "active-2", "spare-0")
    driven.join("active-1", driven.token, 1, WorkersState.RUNNING)
    # then it has the rest of the time to save, and the next round waits for it
    assert [x.grace_s for x in driven.take("active-1", m.Drain)] == [27.0]
    drained(driven, "active-2")
    driven.receive("active-0", m.Gone("its launcher has ended"))
    assert driven.assigned() == {}
    drained(driven, "active-1")
    assert driven.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}


def test_a_member_that_has_its_order_to_save_does_not_get_it_again() -> None:
    # given members that are drained
    driven = running(3)
    driven.receive("active-0", LEAVING)
    assert len(driven.take("active-1", m.Drain)) == 1
    # when one of them, and the leaving member, connect again while their workers save
    driven.join("active-1", driven.token, 1, WorkersState.RUNNING, drain_s=20.0)
    driven.join("active-0", driven.token, 0, WorkersState.RUNNING, leaving=LEAVING)
    # then no member gets another order
    assert [driven.take(name, m.Drain) for name in ("active-0", "active-1")] == [[], []]


def test_if_the_report_of_a_save_is_lost_the_next_round_follows_when_the_member_connects_again() -> None:
    # given a member that has gone, and two others that were drained. active-2 has not reported its save
    driven = running(3)
    driven.receive("active-0", LEAVING)
    drained(driven, "active-1")
    driven.receive("active-0", m.Gone("its launcher has ended"))
    # when its report is lost with its connection, and it joins again, before the coordinator sees the end of that
    driven.join("active-2", driven.token, 2, WorkersState.IDLE, drain_s=20.0)
    # then the next round does not wait for it
    assert driven.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}


def test_the_next_round_waits_no_longer_than_the_grace_less_a_margin() -> None:
    driven = running(3)
    driven.receive("active-0", LEAVING)
    driven.receive("active-0", m.Gone("its launcher has ended"))
    driven.later(GRACE_S - 3, "active-1", "active-2", "spare-0")
    assert driven.assigned() == {}
    driven.later(1.5, "active-1", "active-2", "spare-0")
    assert driven.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}


def test_the_next_round_does_not_wait_longer_for_a_pod_that_leaves_and_still_copies_its_snapshots() -> None:
    driven = running(3)
    driven.receive("active-0", LEAVING)
    drained(driven, "active-1", "active-2")
    driven.later(GRACE_S - 3, "active-0", "active-1", "active-2", "spare-0")
    assert driven.assigned() == {}
    driven.later(1.5, "active-0", "active-1", "active-2", "spare-0")
    assert driven.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}
    assert driven.recovery().cause.message == "its pod was asked to end, and its grace is almost over"


def test_an_answer_to_the_drain_of_another_round_ends_no_drain() -> None:
    driven = running(3)
    driven.receive("active-0", LEAVING)
    driven.receive("active-0", m.Gone("its launcher has ended"))
    token = driven.token
    for other in (replace(token, round=token.round - 1), replace(token, round=token.round + 1), NO_ROUND):
        for name in ("active-1", "active-2"):
            driven.receive(name, m.Drained(other))
    assert driven.assigned() == {}
    drained(driven, "active-1", "active-2")
    assert driven.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}


def test_a_failure_during_a_drain_is_not_charged() -> None:
    driven = running(3, max_in_place=0)
    driven.receive("active-0", LEAVING)
    driven.fail_worker("active-1", "a peer has gone")
    drained(driven, "active-1", "active-2")
    driven.receive("active-0", m.Gone("its launcher has ended"))
    assert driven.coordinator.closed is None
    assert [x.cause.pod for x in driven.coordinator.snapshot().recoveries] == ["active-0"]


def test_a_member_on_a_faulty_node_is_replaced_at_once_without_a_save() -> None:
    driven = running(3)
    driven.receive("active-0", FAULTY)
    assert driven.take("active-1", m.Drain) == []
    assert driven.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}
    assert driven.recovery().fault is Fault.NODE


# A leave that is reported late ----------------------------------------------------------------------------------------


def blamed(driven: DrivenCoordinator) -> list[tuple[Fault, str]]:
    return [(x.fault, x.cause.pod) for x in driven.coordinator.snapshot().recoveries]


def test_a_worker_that_failed_because_of_a_leave_that_is_reported_later_is_not_blamed() -> None:
    """Found by the simulation (seed 1883): the network of the pod that was deleted was slow."""
    # given a worker that has failed because its peer ended, which the coordinator does not know, and the round that
    # followed
    driven = running(3)
    driven.fail_worker("active-1", "a peer has gone")
    assert driven.assigned() == {"active-0": 0, "active-1": 1, "active-2": 2}
    # when the peer reports that it leaves, before it has received that round
    driven.receive("active-0", LEAVING)
    # then the leave is the cause, and is not charged
    assert blamed(driven) == [(Fault.POD, "active-0")]
    assert driven.coordinator.state.fault_history.in_window(driven.now) == []
    # and its end, when all have saved, is not another fault
    drained(driven, "active-1", "active-2")
    driven.receive("active-0", m.Gone("its launcher has ended"))
    assert driven.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}
    assert blamed(driven) == [(Fault.POD, "active-0")]
    assert (driven.recovery().strategy, driven.recovery().reason) == (Strategy.SPARE_SWAP, "its pod was asked to end")


def test_the_pod_of_that_worker_is_not_evicted() -> None:
    driven = running(3, in_place_max_per_pod=0)
    driven.fail_worker("active-1", "a peer has gone")
    driven.receive("active-0", LEAVING)
    driven.answer_heartbeats("active-0", "active-2")
    assert driven.take("active-1", m.Evicted) == []
    driven.receive("active-0", m.Gone("its launcher has ended"))
    assert driven.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}
    assert blamed(driven) == [(Fault.POD, "active-0")]


def test_a_member_that_leaves_the_round_that_followed_is_not_the_cause() -> None:
    driven = running(3)
    driven.fail_worker("active-1")
    driven.report_started("active-0")
    driven.receive("active-0", LEAVING)
    assert blamed(driven) == [(Fault.PROCESS, "active-1")]


def test_a_member_that_leaves_long_after_while_the_next_round_waits_is_not_the_cause() -> None:
    driven = running(3, max_in_place=10, backoff_max_s=60.0)
    for pause_s in (0.0, 1.0, 2.0):
        driven.fail_worker("active-1")
        driven.later(pause_s, *OTHERS, "spare-0")
        driven.report_started(*OTHERS)
    driven.fail_worker("active-1")
    driven.later(3.5, *OTHERS, "spare-0")
    assert driven.coordinator.phase is RoundPhase.WAITING
    driven.receive("active-0", LEAVING)
    assert set(blamed(driven)) == {(Fault.PROCESS, "active-1")}


def test_a_worker_that_failed_before_its_own_pod_was_asked_to_end_is_blamed() -> None:
    driven = running(3)
    driven.fail_worker("active-1")
    driven.receive("active-1", LEAVING)
    assert blamed(driven) == [(Fault.PROCESS, "active-1")]


# Replica groups: group ranks 0 and 1 have the same shards of a checkpoint, 2 and 3 the others -------------------------

PAIRS = ((0, 1), (2, 3))
OTHERS = ("active-0", "active-1", "active-2")


def sharded(groups: tuple[tuple[int, ...], ...] = PAIRS, **given: object) -> DrivenCoordinator:
    return running(4, replica_groups=groups, grace_s=GRACE_S, **given)  # type: ignore[arg-type]


def drains(driven: DrivenCoordinator) -> list[str]:
    """The pods that received a Drain since the last call."""
    return [name for name in list(driven.sent) if driven.take(name, m.Drain)]


def on_faulty_nodes(driven: DrivenCoordinator, *names: str) -> None:
    driven.do(FromOperator(Nodes(tuple(NodeFact(f"node-of-{name}", hardware_finding="Xid 79") for name in names))))


def test_if_another_pod_has_its_shards_the_others_save_without_the_member_on_a_faulty_node() -> None:
    driven = sharded()
    driven.receive("active-3", FAULTY)
    (drain,) = driven.take("active-2", m.Drain)
    assert drain.grace_s == GRACE_S - 2
    assert drains(driven) == ["active-0", "active-1"]
    assert driven.lost_pods() == {"active-3": "Node"}, "it has ended its workers already"
    drained(driven, "active-0", "active-1")
    assert driven.assigned() == {}
    drained(driven, "active-2")
    assert driven.assigned() == {"active-0": 0, "active-1": 1, "active-2": 2, "spare-0": 3}
    assert (driven.recovery().fault, driven.recovery().cause.pod) == (Fault.NODE, "active-3")
    assert "no checkpoint" not in driven.recovery().cause.message


def test_they_save_for_no_longer_than_the_grace_less_a_margin() -> None:
    driven = sharded()
    driven.receive("active-3", FAULTY)
    driven.later(GRACE_S - 3, *OTHERS, "spare-0")
    assert driven.assigned() == {}
    driven.later(1.5, *OTHERS, "spare-0")
    assert len(driven.assigned()) == 4


def test_a_failure_of_the_others_during_the_save_is_not_charged() -> None:
    driven = sharded(max_in_place=0)
    driven.receive("active-3", FAULTY)
    driven.fail_worker("active-0", "a peer has gone")
    drained(driven, *OTHERS)
    assert [x.cause.pod for x in driven.coordinator.snapshot().recoveries] == ["active-3"]
    assert driven.coordinator.closed is None


def test_if_no_healthy_pod_has_its_shards_no_member_saves_and_the_cause_reports_it() -> None:
    driven = sharded()
    on_faulty_nodes(driven, "active-2", "active-3")
    driven.receive("active-3", FAULTY)
    assert drains(driven) == []
    assert driven.assigned() == {"active-0": 0, "active-1": 1, "active-2": 2, "spare-0": 3}
    left, _, why = driven.recovery().cause.message.partition("; ")
    assert left == "its pod leaves a faulty node (Xid 79): deleted"
    assert why == "no checkpoint is tried: no healthy pod has the shards of group rank 3"


def test_a_rank_in_no_group_has_shards_that_no_other_pod_has() -> None:
    driven = sharded(((0, 1, 2),))
    driven.receive("active-3", FAULTY)
    assert drains(driven) == []


def test_a_rank_in_two_groups_needs_another_pod_in_each() -> None:
    driven = sharded(((2, 3), (3,)))
    driven.receive("active-3", FAULTY)
    assert drains(driven) == []


def test_a_second_member_may_leave_while_the_others_save() -> None:
    driven = sharded()
    driven.receive("active-3", FAULTY)
    drained(driven, "active-0")
    driven.receive("active-1", FAULTY)  # active-0 has the same shards, and has saved them
    assert driven.assigned() == {}
    drained(driven, "active-2")
    assert driven.coordinator.phase is RoundPhase.WAITING
    driven.join("spare-1")
    assert driven.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2, "spare-1": 3}


def test_a_save_is_aborted_with_the_loss_of_the_last_pod_that_has_some_shards() -> None:
    driven = sharded(spares=2)
    driven.receive("active-3", FAULTY)
    assert drains(driven) == list(OTHERS)
    driven.receive("active-2", FAULTY)
    assert driven.assigned() == {"active-0": 0, "active-1": 1, "spare-0": 2, "spare-1": 3}
    assert "no healthy pod has the shards of group rank 2" in driven.recovery().cause.message


def test_the_shards_of_a_pod_that_leaves_do_not_count() -> None:
    driven = sharded()
    driven.receive("active-2", LEAVING)
    driven.receive("active-3", FAULTY)
    assert "no healthy pod has the shards" in driven.recovery().cause.message


def test_a_job_that_has_shrunk_has_other_shards() -> None:
    driven = sharded(spares=0, min_actives=3, spare_timeout_s=0.0)
    driven.drop("active-3")
    assert len(driven.assigned()) == 3
    driven.report_started(*OTHERS)
    driven.receive("active-1", FAULTY)
    assert drains(driven) == []
    assert driven.recovery().cause.message == "its pod leaves a faulty node: deleted"


def test_a_member_that_has_finished_needs_no_save() -> None:
    driven = sharded()
    driven.receive("active-3", m.Finished(driven.token))
    driven.receive("active-3", FAULTY)
    assert drains(driven) == []


def test_a_spare_that_leaves_takes_no_rank() -> None:
    driven = running(spares=2)
    driven.receive("spare-0", LEAVING)
    assert driven.take("active-0", m.Drain) == []
    driven.drop("active-0")
    assert driven.assigned() == {"spare-1": 0, "active-1": 1}


def test_a_leave_of_a_finished_member_does_not_drain_the_others() -> None:
    """Found by the simulation (seed 45): the others were drained in their last step, and the job never ended."""
    driven = running()
    driven.receive("active-0", m.Finished(driven.token))
    driven.receive("active-0", LEAVING)
    assert driven.take("active-1", m.Drain) == []
    driven.receive("active-0", m.Gone("its launcher has ended"))
    driven.receive("active-1", m.Finished(driven.token))
    driven.answer_heartbeats("active-1", "spare-0")
    assert driven.coordinator.closed is not None


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_worker_that_fails_after_a_member_has_finished_and_leaves_is_a_fault(is_silent: bool) -> None:
    """Found by the simulation (seed 1587901): it counted as a consequence of the end of that member, after which no
    round is formed, so the job stood still.
    """
    # given a member whose workers have exited 0, and that leaves or is silent
    driven = running()
    driven.receive("active-0", m.Finished(driven.token))
    if is_silent:
        driven.drop("active-0", silent=True)
    else:
        driven.receive("active-0", m.Leaving("the trainer container got SIGTERM", 30.0, Verdict.UNKNOWN))
    # when a worker of another member fails
    driven.fail_worker("active-1")
    # then that is a fault
    recovery = driven.recovery()
    assert (recovery.fault, recovery.cause.pod) == (Fault.PROCESS, "active-1")


def test_drained_members_run_again_if_the_others_had_finished() -> None:
    driven = running(3)
    driven.receive("active-0", LEAVING)
    driven.receive("active-0", m.Finished(driven.token))
    driven.receive("active-0", m.Gone("its launcher has ended"))
    driven.receive("active-1", m.Finished(driven.token))
    drained(driven, "active-2")
    assert driven.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}


def test_a_leave_in_a_join_counts() -> None:
    """Found by the simulation (seed 1634): it was sent to a candidate, and the next coordinator never received it."""
    driven = running()
    driven.drop("active-0", silent=True)
    driven.join("active-0", driven.token, 0, WorkersState.RUNNING, leaving=LEAVING)
    assert len(driven.take("active-1", m.Drain)) == 1
    assert driven.coordinator.phase is RoundPhase.RUNNING


def test_a_coordinator_without_standby_coordinators_reports_its_own_unusable_pod_as_lost() -> None:
    """Found by the simulation (seeds 57 and 290): a job of two pods waited for a stopped launcher."""
    # given a job of one pod, which coordinates
    driven = DrivenCoordinator(1)
    driven.coordinator.state.pod_uid = "uid-active-0"
    driven.join("active-0")
    driven.report_started("active-0")
    # when its sidecar finds that the launcher does not respond
    driven.receive("active-0", m.Gone("its launcher has not responded for 15 s", launcher_is_alive=True))
    # then it stays the leader, and the operator replaces the pod
    assert not driven.step_down_reason
    assert driven.lost_pods() == {"active-0": "Pod"}
    assert driven.recovery().cause.message == "its launcher has not responded for 15 s"
