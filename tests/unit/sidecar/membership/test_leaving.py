"""A member is asked to end: who saves, who waits for whom, and who takes its rank."""

from __future__ import annotations

from tests.unit.sidecar.membership.driven import Driven, running
from understudy_protocol import membership as m
from understudy_protocol.observer import NodeFact, Nodes
from understudy_protocol.words import Fault, Strategy, Verdict, WorkersState
from understudy_sidecar.membership.desk import State
from understudy_sidecar.membership.events import Told

GRACE_S = 30.0
LEAVING = m.Leaving("deleted", GRACE_S)
FAULTY = m.Leaving("deleted", GRACE_S, Verdict.FAULTY)


def drained(office: Driven, *names: str) -> None:
    for name in names:
        office.hear(name, m.Drained(office.token))


def test_all_other_actives_are_drained_so_that_a_save_can_have_all_ranks() -> None:
    office = running(3)
    office.hear("active-0", LEAVING)
    assert [len(office.take(f"active-{rank}", m.Drain)) for rank in range(3)] == [0, 1, 1]
    assert office.take("spare-0", m.Drain) == []


def test_the_next_round_follows_when_all_have_saved_and_it_has_gone() -> None:
    office = running(3)
    office.hear("active-0", LEAVING)
    drained(office, "active-1")
    office.hear("active-0", m.Gone("its launcher has ended"))
    assert office.assigned() == {}  # active-2 still saves
    assert "members that are saving" in office.coordinator.snapshot().waiting_for
    drained(office, "active-2")
    assert office.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}
    assert office.recovery().cause.pod == "active-0"


def test_nobody_is_waited_for_longer_than_the_grace_less_a_margin() -> None:
    office = running(3)
    office.hear("active-0", LEAVING)
    office.hear("active-0", m.Gone("its launcher has ended"))
    office.later(GRACE_S - 3, "active-1", "active-2", "spare-0")
    assert office.assigned() == {}
    office.later(1.5, "active-1", "active-2", "spare-0")
    assert office.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}


def test_what_fails_during_a_drain_is_nobodys_fault() -> None:
    office = running(3, max_in_place=0)
    office.hear("active-0", LEAVING)
    office.worker_fails("active-1", "a peer has gone")
    drained(office, "active-1", "active-2")
    office.hear("active-0", m.Gone("its launcher has ended"))
    assert office.coordinator.closed is None
    assert [x.cause.pod for x in office.coordinator.snapshot().recoveries] == ["active-0"]


def test_from_a_faulty_node_it_is_swapped_at_once_and_nobody_saves() -> None:
    office = running(3)
    office.hear("active-0", FAULTY)
    assert office.take("active-1", m.Drain) == []
    assert office.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}
    assert office.recovery().fault is Fault.NODE


# A leave that is told late --------------------------------------------------------------------------------------------


def blamed(office: Driven) -> list[tuple[Fault, str]]:
    return [(x.fault, x.cause.pod) for x in office.coordinator.snapshot().recoveries]


def test_a_peer_whose_worker_failed_of_a_leave_that_is_told_after_it_is_not_blamed() -> None:
    """Found by the simulation (seed 1883): the network of the pod that was deleted was slow."""
    # given a worker that has failed because its peer ended, of which nobody knows, and the round that followed
    office = running(3)
    office.worker_fails("active-1", "a peer has gone")
    assert office.assigned() == {"active-0": 0, "active-1": 1, "active-2": 2}
    # when the word of that peer comes, before it has heard of that round
    office.hear("active-0", LEAVING)
    # then its leave is the cause, and costs nothing
    assert blamed(office) == [(Fault.POD, "active-0")]
    assert office.coordinator.desk.offences.within(office.now) == []
    # and its end, when all have saved, is no fault of its own
    drained(office, "active-1", "active-2")
    office.hear("active-0", m.Gone("its launcher has ended"))
    assert office.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}
    assert blamed(office) == [(Fault.POD, "active-0")]
    assert (office.recovery().strategy, office.recovery().reason) == (Strategy.SPARE_SWAP, "its pod was asked to end")


def test_nor_is_its_pod_given_up_for_it() -> None:
    office = running(3, in_place_max_per_pod=0)
    office.worker_fails("active-1", "a peer has gone")
    office.hear("active-0", LEAVING)
    office.answers("active-0", "active-2")
    assert office.take("active-1", m.GivenUp) == []
    office.hear("active-0", m.Gone("its launcher has ended"))
    assert office.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}
    assert blamed(office) == [(Fault.POD, "active-0")]


def test_who_leaves_the_round_that_followed_has_left_too_late_to_be_the_cause() -> None:
    office = running(3)
    office.worker_fails("active-1")
    office.started("active-0")
    office.hear("active-0", LEAVING)
    assert blamed(office) == [(Fault.PROCESS, "active-1")]


def test_nor_is_one_the_cause_that_leaves_long_after_while_the_next_round_waits() -> None:
    office = running(3, max_in_place=10, backoff_max_s=60.0)
    for pause_s in (0.0, 1.0, 2.0):
        office.worker_fails("active-1")
        office.later(pause_s, *OTHERS, "spare-0")
        office.started(*OTHERS)
    office.worker_fails("active-1")
    office.later(3.5, *OTHERS, "spare-0")
    assert office.coordinator.state is State.WAITING
    office.hear("active-0", LEAVING)
    assert set(blamed(office)) == {(Fault.PROCESS, "active-1")}


def test_a_worker_that_failed_before_its_own_pod_was_asked_to_end_is_blamed() -> None:
    office = running(3)
    office.worker_fails("active-1")
    office.hear("active-1", LEAVING)
    assert blamed(office) == [(Fault.PROCESS, "active-1")]


# Replica groups: 0 and 1 hold one part of what is saved, 2 and 3 another ----------------------------------------------

PAIRS = ((0, 1), (2, 3))
OTHERS = ("active-0", "active-1", "active-2")


def sharded(groups: tuple[tuple[int, ...], ...] = PAIRS, **given: object) -> Driven:
    return running(4, replica_groups=groups, grace_s=GRACE_S, **given)  # type: ignore[arg-type]


def drains(office: Driven) -> list[str]:
    """Who was told to drain since the last look."""
    return [name for name in list(office.sent) if office.take(name, m.Drain)]


def on_faulty_nodes(office: Driven, *names: str) -> None:
    office.do(Told(Nodes(tuple(NodeFact(f"node-of-{name}", faulty="Xid 79") for name in names))))


def test_where_another_pod_holds_its_shards_the_others_save_without_who_leaves_a_faulty_node() -> None:
    office = sharded()
    office.hear("active-3", FAULTY)
    (drain,) = office.take("active-2", m.Drain)
    assert drain.grace_s == GRACE_S - 2
    assert drains(office) == ["active-0", "active-1"]
    assert office.lost() == {"active-3": "Node"}, "it has ended its workers already"
    drained(office, "active-0", "active-1")
    assert office.assigned() == {}
    drained(office, "active-2")
    assert office.assigned() == {"active-0": 0, "active-1": 1, "active-2": 2, "spare-0": 3}
    assert (office.recovery().fault, office.recovery().cause.pod) == (Fault.NODE, "active-3")
    assert "no checkpoint" not in office.recovery().cause.message


def test_they_save_for_no_longer_than_the_grace_less_a_margin() -> None:
    office = sharded()
    office.hear("active-3", FAULTY)
    office.later(GRACE_S - 3, *OTHERS, "spare-0")
    assert office.assigned() == {}
    office.later(1.5, *OTHERS, "spare-0")
    assert len(office.assigned()) == 4


def test_what_fails_of_the_others_meanwhile_is_nobodys_fault() -> None:
    office = sharded(max_in_place=0)
    office.hear("active-3", FAULTY)
    office.worker_fails("active-0", "a peer has gone")
    drained(office, *OTHERS)
    assert [x.cause.pod for x in office.coordinator.snapshot().recoveries] == ["active-3"]
    assert office.coordinator.closed is None


def test_where_nobody_healthy_holds_its_shards_nobody_saves_and_the_cause_says_so() -> None:
    office = sharded()
    on_faulty_nodes(office, "active-2", "active-3")
    office.hear("active-3", FAULTY)
    assert drains(office) == []
    assert office.assigned() == {"active-0": 0, "active-1": 1, "active-2": 2, "spare-0": 3}
    left, _, why = office.recovery().cause.message.partition("; ")
    assert left == "its pod leaves a faulty node (Xid 79): deleted"
    assert why == "no checkpoint is tried: no healthy pod has the shards of group rank 3"


def test_a_rank_in_no_group_holds_what_nobody_else_has() -> None:
    office = sharded(((0, 1, 2),))
    office.hear("active-3", FAULTY)
    assert drains(office) == []


def test_one_in_two_groups_needs_somebody_in_each() -> None:
    office = sharded(((2, 3), (3,)))
    office.hear("active-3", FAULTY)
    assert drains(office) == []


def test_a_second_one_may_go_while_the_others_save() -> None:
    office = sharded()
    office.hear("active-3", FAULTY)
    drained(office, "active-0")
    office.hear("active-1", FAULTY)  # active-0 holds its shards, and has saved them
    assert office.assigned() == {}
    drained(office, "active-2")
    assert office.coordinator.state is State.WAITING
    office.join("spare-1")
    assert office.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2, "spare-1": 3}


def test_a_save_that_has_begun_is_given_up_with_the_last_who_holds_some_shards() -> None:
    office = sharded(spares=2)
    office.hear("active-3", FAULTY)
    assert drains(office) == list(OTHERS)
    office.hear("active-2", FAULTY)
    assert office.assigned() == {"active-0": 0, "active-1": 1, "spare-0": 2, "spare-1": 3}
    assert "no healthy pod has the shards of group rank 2" in office.recovery().cause.message


def test_who_leaves_anyhow_holds_nothing_for_others() -> None:
    office = sharded()
    office.hear("active-2", LEAVING)
    office.hear("active-3", FAULTY)
    assert "no healthy pod has the shards" in office.recovery().cause.message


def test_a_job_that_has_shrunk_has_other_shards() -> None:
    office = sharded(spares=0, min_actives=3, spare_timeout_s=0.0)
    office.drop("active-3")
    assert len(office.assigned()) == 3
    office.started(*OTHERS)
    office.hear("active-1", FAULTY)
    assert drains(office) == []
    assert office.recovery().cause.message == "its pod leaves a faulty node: deleted"


def test_what_it_leaves_behind_when_it_has_finished_needs_no_save() -> None:
    office = sharded()
    office.hear("active-3", m.Finished(office.token))
    office.hear("active-3", FAULTY)
    assert drains(office) == []


def test_a_spare_that_leaves_takes_no_rank_any_more() -> None:
    office = running(spares=2)
    office.hear("spare-0", LEAVING)
    assert office.take("active-0", m.Drain) == []
    office.drop("active-0")
    assert office.assigned() == {"spare-1": 0, "active-1": 1}


def test_one_that_has_finished_keeps_nobody_from_finishing() -> None:
    """Found by the simulation (seed 45): the others were drained in their last step, and the job never ended."""
    office = running()
    office.hear("active-0", m.Finished(office.token))
    office.hear("active-0", LEAVING)
    assert office.take("active-1", m.Drain) == []
    office.hear("active-0", m.Gone("its launcher has ended"))
    office.hear("active-1", m.Finished(office.token))
    assert office.coordinator.closed is not None


def test_where_the_others_had_finished_by_then_those_that_were_drained_run_again() -> None:
    office = running(3)
    office.hear("active-0", LEAVING)
    office.hear("active-0", m.Finished(office.token))
    office.hear("active-0", m.Gone("its launcher has ended"))
    office.hear("active-1", m.Finished(office.token))
    drained(office, "active-2")
    assert office.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}


def test_members_of_version_1_are_not_waited_for() -> None:
    office = Driven(2)
    office.join("spare-0")
    office.join("active-0")
    office.join("active-1", votes=False)
    office.assigned()
    office.hear("active-0", LEAVING)
    office.hear("active-0", m.Gone("its launcher has ended"))
    assert office.assigned() == {"spare-0": 0, "active-1": 1}


def test_a_leave_that_came_with_a_join_counts() -> None:
    """Found by the simulation (seed 1634): it was told to a hall, and the next coordinator never heard of it."""
    office = running()
    office.drop("active-0", silent=True)
    office.join("active-0", office.token, 0, WorkersState.RUNNING, leaving=LEAVING)
    assert len(office.take("active-1", m.Drain)) == 1
    assert office.coordinator.state is State.RUNNING


def test_a_coordinator_whose_own_pod_can_take_part_in_no_round_reports_it_as_lost_if_no_heir_is_there() -> None:
    """Found by the simulation (seeds 57 and 290): a job of two pods waited until a stopped launcher went on."""
    # given a job of one pod, which coordinates
    office = Driven(1)
    office.coordinator.desk.pod_uid = "uid-active-0"
    office.join("active-0")
    office.started("active-0")
    # when its sidecar finds that the launcher does not respond
    office.hear("active-0", m.Gone("its launcher has not responded for 15 s", launcher_lives=True))
    # then it stays in office, and the operator replaces the pod
    assert not office.resigned
    assert office.lost() == {"active-0": "Pod"}
    assert office.recovery().cause.message == "its launcher has not responded for 15 s"
