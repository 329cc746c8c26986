"""The coordinator's rules, one by one: who gets which rank, what a fault leads to, and how the job ends."""

from __future__ import annotations

import pytest

from tests.unit.sidecar.membership.driven import Driven, running
from understudy_protocol import membership as m
from understudy_protocol.observer import FreshStarts
from understudy_protocol.words import CloseReason, Fault, RoundToken, Strategy, WorkersState
from understudy_sidecar.membership.desk import State
from understudy_sidecar.membership.events import Received

CLOSE_ACK_S = 3.0
FIRST_ROUND_PATIENCE_S = 30.0

R0 = RoundToken(1, 1, 0)

# The first round


def test_the_first_round_starts_when_every_rank_can_be_filled() -> None:
    office = Driven()
    office.join("active-1")
    assert office.assigned() == {}
    assert "group ranks 0" in office.coordinator.snapshot().waiting_for
    office.join("active-0")
    assert office.assigned() == {"active-0": 0, "active-1": 1}
    assert office.coordinator.snapshot().waiting_for == ""


def test_each_member_is_told_its_own_ranks_and_where_rank_0_is() -> None:
    office = Driven(nproc=8)
    office.join("active-1")
    office.join("active-0")
    (assign,) = office.take("active-1", m.Assign)
    assert (assign.rank_offset, assign.world_size, assign.group_world_size) == (8, 16, 2)
    assert (assign.master_addr, assign.master_port) == ("10.0.0.970", 4000)


def test_a_spare_that_is_fast_takes_no_slow_pods_rank_before_its_time() -> None:
    office = Driven()
    office.join("spare-0")
    office.join("active-0")
    office.later(FIRST_ROUND_PATIENCE_S - 1, "spare-0", "active-0")
    assert office.assigned() == {}
    office.later(2, "spare-0", "active-0")
    assert office.assigned() == {"active-0": 0, "spare-0": 1}


# Faults


def test_a_failed_worker_restarts_the_same_members() -> None:
    office = running()
    office.worker_fails("active-1")
    assert office.assigned() == {"active-0": 0, "active-1": 1}
    assert office.token == RoundToken(1, 1, 1)
    assert (office.recovery().fault, office.recovery().strategy) == (Fault.PROCESS, Strategy.IN_PLACE)
    assert office.recovery().cause.rank == 1


@pytest.mark.parametrize("how", ["its connection ends", "its launcher ends"])
def test_a_lost_pod_is_replaced_by_a_spare_and_survivors_keep_their_ranks(how: str) -> None:
    office = running()
    if how == "its connection ends":
        office.drop("active-0")
    else:
        office.hear("active-0", m.Gone("its launcher has ended"))
    assert office.assigned() == {"spare-0": 0, "active-1": 1}
    assert (office.recovery().fault, office.recovery().strategy) == (Fault.POD, Strategy.SPARE_SWAP)
    assert office.lost() == {"active-0": "Pod"}


def test_without_a_spare_the_rank_waits_for_a_new_pod() -> None:
    office = running(spares=0)
    office.drop("active-0")
    assert office.assigned() == {}
    assert "group ranks 0" in office.coordinator.snapshot().waiting_for
    office.later(1, "active-1")
    office.join("spare-9")
    assert office.assigned() == {"spare-9": 0, "active-1": 1}
    assert office.recovery().strategy is Strategy.POD_RECREATE


def test_a_warm_spare_of_a_pool_that_comes_for_the_rank_is_a_spare() -> None:
    office = running(spares=0)
    office.drop("active-0")
    office.later(1, "active-1")
    office.join("spare-9", warm=True)
    assert office.assigned() == {"spare-9": 0, "active-1": 1}
    assert office.recovery().strategy is Strategy.SPARE_SWAP
    assert office.recovery().reason.endswith("; a warm spare was claimed from the pool")


def test_a_lost_spare_is_no_fault() -> None:
    office = running()
    office.drop("spare-0")
    assert office.assigned() == {}
    assert office.coordinator.snapshot().recoveries == ()
    assert office.lost() == {"spare-0": "Pod"}


def test_a_recovery_ends_with_the_first_step_and_lasts_as_long_as_a_survivor_has_measured() -> None:
    # given a training that has made steps, and a worker that fails
    office = running()
    office.worker_fails("active-1")
    # when its model takes two minutes to load
    office.started("active-0", "active-1")
    office.later(120.0, "active-0", "active-1", "spare-0")
    # then the recovery is open until the first step of a pod that had made one before
    assert (office.recovery().running_at, office.recovery().resumed_at) == (None, None)
    office.stepped("active-1")
    assert office.recovery().resumed_at is None
    office.stepped("active-0", pause_s=120.3)
    assert (office.recovery().resumed_at, office.recovery().pause_s) == (office.now, 120.3)
    assert office.coordinator.snapshot().recoveries_by_strategy["InPlace"] == 1


def test_where_no_pod_is_left_that_has_stepped_any_first_step_ends_a_recovery() -> None:
    office = running(1)  # whose one pod has made steps
    office.drop("active-0")
    office.started("spare-0")
    office.stepped("spare-0")
    assert (office.recovery().resumed_at, office.recovery().pause_s) == (office.now, None)


def test_where_the_script_reports_no_steps_a_recovery_ends_when_all_workers_run() -> None:
    # given a job whose workers have never reported a step
    office = Driven()
    for name in ("active-0", "active-1"):
        office.join(name)
    office.started("active-0", "active-1")
    # when a worker fails, and all workers run again
    both = ("active-0", "active-1")
    office.later(60.0, *both)
    office.worker_fails("active-1")
    office.started("active-0")
    assert office.recovery().running_at is None
    office.later(2.0, *both)
    office.started("active-1")
    # then that is when the recovery ended, and no number of seconds is claimed
    ended = office.recovery()
    assert (ended.running_at, ended.resumed_at, ended.pause_s) == (office.now, None, None)
    # and another fault has a time of its own
    office.later(100.0, *both)
    office.worker_fails("active-0")
    office.started(*both)
    assert [x.running_at for x in office.coordinator.snapshot().recoveries] == [ended.running_at, office.now]
    # and a first step after all is added to the recovery of its round
    office.stepped("active-0")
    assert [x.resumed_at for x in office.coordinator.snapshot().recoveries] == [None, office.now]


def test_peers_that_fail_before_their_dead_neighbour_is_known_pay_nothing() -> None:
    office = running(max_in_place=1)
    office.worker_fails("active-1", "a peer has gone")
    office.drop("active-0")
    assert (office.recovery().fault, office.recovery().cause.pod) == (Fault.POD, "active-0")
    office.started("spare-0", "active-1")
    office.stepped("active-1")
    office.worker_fails("active-1")  # the one that is allowed
    assert office.recovery().reason == "restart 1 of 1 within 1 h"


def test_what_is_said_of_a_round_that_is_over_is_dropped() -> None:
    office = running()
    office.worker_fails("active-1")
    office.assigned()
    office.worker_fails("active-0", at_round=R0)
    office.hear("active-0", m.Finished(R0))
    assert office.assigned() == {}
    assert len(office.coordinator.snapshot().recoveries) == 1


# Members that come back


def test_a_member_that_was_replaced_stands_by_and_is_a_spare() -> None:
    office = running()
    office.drop("active-0")
    office.sent.clear()
    office.join("active-0", R0, 0, WorkersState.RUNNING)
    assert office.take("active-0", m.Standby) == [m.Standby(office.token)]
    assert office.lost() == {}
    office.drop("active-1")
    assert office.assigned() == {"spare-0": 0, "active-0": 1}


def test_so_does_one_whose_fence_has_stopped_its_workers() -> None:
    """Found by the simulation's frozen node: it went on claiming the rank, and to each later coordinator."""
    office = running()
    office.drop("active-0")
    office.sent.clear()
    office.join("active-0", R0, 0, WorkersState.IDLE)
    assert office.take("active-0", m.Standby) == [m.Standby(office.token)]


def test_a_member_whose_link_broke_resumes_and_gets_what_it_missed() -> None:
    office = running()
    office.drop("active-0", silent=True)
    office.join("active-0", R0, 0, WorkersState.RUNNING)
    assert office.assigned() == {}
    office.drop("active-0", silent=True)
    office.coordinator.handle(Received(3, m.Ack(R0)), office.now)
    office.worker_fails("active-1")  # the silent one is lost with it, and the spare takes its rank
    assert office.assigned() == {"spare-0": 0, "active-1": 1}


def test_a_newer_connection_of_a_pod_takes_over() -> None:
    office = running()
    office.join("active-0", R0, 0, WorkersState.RUNNING)
    assert office.hung_up == ["active-0"]
    assert office.coordinator.state is State.RUNNING


@pytest.mark.parametrize("workers", [WorkersState.IDLE, WorkersState.FAILED])
def test_one_whose_workers_ended_while_it_was_apart_is_a_worker_failure(workers: WorkersState) -> None:
    office = running()
    office.drop("active-0", silent=True)
    office.join("active-0", R0, 0, workers)
    assert office.assigned() == {"active-0": 0, "active-1": 1}
    assert office.recovery().fault is Fault.PROCESS


def test_messages_of_a_link_that_never_joined_end_it() -> None:
    office = running()
    office._names[99] = "stranger"
    office.do(Received(99, m.Ack(R0)))
    assert office.hung_up == ["stranger"]


# Leaving


def test_the_next_round_waits_for_the_save_of_a_member_that_leaves() -> None:
    office = running()
    office.hear("active-0", m.Leaving("deleted", 30.0))
    (drain,) = office.take("active-1", m.Drain)
    assert drain.grace_s == 28.0
    office.worker_fails("active-1", "its peer has ended")
    office.hear("active-1", m.Drained(office.token))
    assert office.assigned() == {}
    office.hear("active-0", m.Gone("its launcher has ended"))
    assert office.assigned() == {"spare-0": 0, "active-1": 1}
    assert office.recovery().cause.pod == "active-0"


def test_but_not_longer_than_its_grace_period() -> None:
    office = running()
    office.hear("active-0", m.Leaving("deleted", 30.0))
    office.later(31, "active-0", "active-1", "spare-0")
    assert office.assigned() == {"spare-0": 0, "active-1": 1}


# The end


def finish(office: Driven, *names: str) -> None:
    for name in names:
        office.hear(name, m.Finished(office.token))


def test_when_all_workers_have_exited_0_everybody_is_told_and_the_office_adjourns() -> None:
    office = running()
    finish(office, "active-0")
    assert office.coordinator.closed is None
    finish(office, "active-1")
    closes = [office.take(name, m.Close)[0].reason for name in ("active-0", "active-1", "spare-0")]
    assert closes == [CloseReason.SUCCEEDED] * 3
    for name in ("active-0", "active-1", "spare-0"):
        assert not office.adjourned
        office.hear(name, m.CloseAck())
    assert office.adjourned
    assert office.coordinator.deadline() is None


def test_it_waits_a_limited_time_for_acknowledgements() -> None:
    office = running()
    finish(office, "active-0", "active-1")
    office.later(CLOSE_ACK_S + 0.1)
    assert office.adjourned


def test_a_member_that_joins_after_the_close_is_told() -> None:
    office = running()
    finish(office, "active-0", "active-1")
    office.join("spare-7")
    assert office.take("spare-7", m.Close)


def test_a_member_that_is_lost_after_it_finished_is_not_missed() -> None:
    office = running()
    finish(office, "active-0")
    office.drop("active-0")
    assert office.assigned() == {}
    finish(office, "active-1")
    assert office.coordinator.closed is not None


def test_unless_another_has_to_run_again() -> None:
    office = running()
    finish(office, "active-0")
    office.drop("active-0")
    office.worker_fails("active-1")
    assert office.assigned() == {"spare-0": 0, "active-1": 1}


# Observers


def test_a_snapshot_tells_it_all() -> None:
    office = running()
    snapshot = office.coordinator.snapshot()
    assert {x.pod_name: x.group_rank for x in snapshot.members} == {"spare-0": None, "active-0": 0, "active-1": 1}
    assert snapshot.progress is not None
    assert (snapshot.token, snapshot.progress.step, snapshot.closed) == (R0, 1, None)


def test_every_change_gives_a_new_version() -> None:
    office = running()
    before = office.coordinator.desk.version
    office.drop("spare-0")
    assert office.coordinator.desk.version > before


def test_a_tick_at_the_deadline_always_moves_it() -> None:
    office = running()
    office.drop("active-0", silent=True)
    for _ in range(100):
        due = office.coordinator.deadline()
        if office.resigned:
            return  # nobody is left
        assert due is not None
        office.later(max(0.0, due - office.now), "active-0", "active-1", "spare-0")
        assert office.coordinator.deadline() != due


def test_a_pod_of_an_index_beyond_the_job_takes_no_rank_before_its_time() -> None:
    office = Driven()
    office.join("active-7")
    office.join("active-0")
    assert office.assigned() == {}


def test_a_round_that_waits_for_the_start_of_workers_says_for_which() -> None:
    # given a round of two pods, one of which starts its workers at once
    office = running()
    office.worker_fails("active-1")
    office.started("active-0")
    office.hear("active-1", m.Ack(office.token))
    assert office.coordinator.snapshot().waiting_for == ""
    version = office.coordinator.desk.version
    # when the other one has not after five seconds
    office.later(5.0, "active-0", "active-1", "spare-0")
    # then status names it, until it has
    assert office.coordinator.snapshot().waiting_for == "the start of the workers of active-1"
    assert office.coordinator.desk.version > version
    office.started("active-1")
    assert office.coordinator.snapshot().waiting_for == ""


def test_the_snapshot_tells_whose_workers_are_not_forked_and_why() -> None:
    office = running()
    assert office.coordinator.snapshot().fresh_starts is None
    office.hear("active-0", m.StartsFresh("x" * 600))
    office.hear("active-1", m.StartsFresh("a thread of pyarrow"))
    assert office.coordinator.snapshot().fresh_starts == FreshStarts(2, "active-0", "x" * 500)
    office.hear("active-0", m.StartsFresh(""))
    assert office.coordinator.snapshot().fresh_starts == FreshStarts(1, "active-1", "a thread of pyarrow")


def test_the_rank_of_a_worker_that_cannot_be_killed_is_the_cause() -> None:
    # given pods with four workers each
    office = running(nproc=4)
    # when the member of ranks 4 to 7 cannot kill the worker of its local rank 2
    office.hear("active-1", m.Gone("the worker of local rank 2 is stuck in the kernel", 2, launcher_lives=True))
    # then the recovery names that rank
    assert (office.recovery().cause.rank, office.recovery().cause.pod) == (6, "active-1")


def test_a_pod_whose_workers_do_not_start_is_lost_after_four_minutes_and_a_spare_takes_its_ranks() -> None:
    # given a round in which one of two pods starts its workers, and the other one only acknowledges
    office = running()
    office.worker_fails("active-1")
    office.started("active-0")
    office.hear("active-1", m.Ack(office.token))
    office.sent.clear()
    # when four minutes have passed, in which all members answer
    office.later(239.0, "active-0", "active-1", "spare-0")
    assert office.lost() == {}
    office.later(2.0, "active-0", "active-1", "spare-0")
    # then it is lost, status says why, and the next round is without it
    assert office.lost() == {"active-1": "Pod"}
    assert office.recovery().cause.message == "its workers have not started within 240 s"
    assert office.assigned() == {"active-0": 0, "spare-0": 1}


def test_a_pod_that_joins_and_can_take_part_in_no_round_is_lost_and_gets_no_ranks() -> None:
    office = Driven()
    office.join("active-0")
    office.join("active-1", unable="its launcher has not responded for 15 s")
    assert office.assigned() == {}
    assert office.lost() == {"active-1": "Pod"}
    assert office.coordinator.snapshot().lost[0].reason == "its launcher has not responded for 15 s"


def test_where_the_workers_of_no_pod_start_no_pod_is_lost() -> None:
    office = running()
    office.worker_fails("active-1")
    for name in ("active-0", "active-1"):
        office.hear(name, m.Ack(office.token))
    office.later(300.0, "active-0", "active-1", "spare-0")
    assert office.lost() == {}
    # but as soon as one has
    office.started("active-0")
    office.later(6.0, "active-0", "active-1", "spare-0")
    assert office.lost() == {"active-1": "Pod"}


def test_a_pod_whose_workers_did_not_start_is_replaced_although_it_connects_again() -> None:
    # given a job without spares, and a pod that is lost because its workers have not started
    office = running(spares=0)
    office.worker_fails("active-1")
    office.started("active-0")
    office.hear("active-1", m.Ack(office.token))
    office.later(241.0, "active-0", "active-1")
    lost_at = office.coordinator.snapshot().lost[0].at
    # when it connects again later
    office.later(10.0, "active-0")
    office.sent.clear()
    office.join("active-1")
    # then it is told to end, and is still reported as lost since the first time
    assert [told.reason for told in office.take("active-1", m.GivenUp)] == ["its workers have not started within 240 s"]
    assert office.assigned() == {}
    assert office.lost() == {"active-1": "Pod"}
    assert office.coordinator.snapshot().lost[0].at == lost_at
