"""The coordinator's rules, one by one: the assignment of ranks, the reaction to each fault, and the end of the job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.sidecar.membership.driven import DrivenCoordinator, running
from understudy_protocol import membership as m
from understudy_protocol.enums import CloseReason, Fault, RoundToken, Strategy, WorkersState
from understudy_protocol.observer import Appoint, ForkFallbacks, NodeFact, Nodes, SnapshotTime, StepProgress
from understudy_protocol.snapshots import MadeStep, SnapshotAge
from understudy_sidecar.membership.events import FromOperator, Received
from understudy_sidecar.membership.round_state import RoundPhase

CLOSE_ACK_S = 3.0
FIRST_ROUND_PATIENCE_S = 30.0

R0 = RoundToken(1, 1, 0)

# The first round


def test_the_first_round_starts_when_every_rank_can_be_filled() -> None:
    driven = DrivenCoordinator()
    driven.join("active-1")
    assert driven.assigned() == {}
    assert "group ranks 0" in driven.coordinator.snapshot().waiting_for
    driven.join("active-0")
    assert driven.assigned() == {"active-0": 0, "active-1": 1}
    assert driven.coordinator.snapshot().waiting_for == ""


def test_each_member_receives_its_own_ranks_and_the_address_of_rank_0() -> None:
    driven = DrivenCoordinator(nproc=8)
    driven.join("active-1")
    driven.join("active-0")
    (assign,) = driven.take("active-1", m.Assign)
    assert (assign.rank_offset, assign.world_size, assign.group_world_size) == (8, 16, 2)
    assert (assign.master_addr, assign.master_port) == ("10.0.0.970", 4000)


def test_the_store_of_pods_that_share_the_address_of_a_node_has_that_address_without_the_sidecars_port() -> None:
    driven = DrivenCoordinator()
    driven.join("active-1", address="10.9.0.1:24002")
    driven.join("active-0", address="10.9.0.1:24000")
    (assign,) = driven.take("active-1", m.Assign)
    assert (assign.master_addr, assign.master_port) == ("10.9.0.1", 4000)


def test_a_spare_that_is_fast_takes_no_slow_pods_rank_before_its_time() -> None:
    driven = DrivenCoordinator()
    driven.join("spare-0")
    driven.join("active-0")
    driven.later(FIRST_ROUND_PATIENCE_S - 1, "spare-0", "active-0")
    assert driven.assigned() == {}
    driven.later(2, "spare-0", "active-0")
    assert driven.assigned() == {"active-0": 0, "spare-0": 1}


# Faults


def test_a_failed_worker_restarts_the_same_members() -> None:
    driven = running()
    driven.fail_worker("active-1")
    assert driven.assigned() == {"active-0": 0, "active-1": 1}
    assert driven.token == RoundToken(1, 1, 1)
    assert (driven.recovery().fault, driven.recovery().strategy) == (Fault.PROCESS, Strategy.IN_PLACE)
    assert driven.recovery().cause.rank == 1


@pytest.mark.parametrize("how", ["its connection ends", "its launcher ends"])
def test_a_lost_pod_is_replaced_by_a_spare_and_survivors_keep_their_ranks(how: str) -> None:
    driven = running()
    if how == "its connection ends":
        driven.drop("active-0")
    else:
        driven.receive("active-0", m.Gone("its launcher has ended"))
    assert driven.assigned() == {"spare-0": 0, "active-1": 1}
    assert (driven.recovery().fault, driven.recovery().strategy) == (Fault.POD, Strategy.SPARE_SWAP)
    assert driven.lost_pods() == {"active-0": "Pod"}
    assert driven.recovery().vacant_until is None


def test_without_a_spare_the_rank_waits_for_a_new_pod() -> None:
    driven = running(spares=0)
    driven.drop("active-0")
    assert driven.assigned() == {}
    assert "group ranks 0" in driven.coordinator.snapshot().waiting_for
    driven.later(1, "active-1")
    driven.join("spare-9")
    assert driven.assigned() == {"spare-9": 0, "active-1": 1}
    assert driven.recovery().strategy is Strategy.POD_RECREATE
    # and the recovery has the time until which the rank was vacant without a pod for it
    assert driven.recovery().vacant_until == driven.now


def test_a_warm_spare_of_a_pool_that_joins_for_the_rank_is_a_spare() -> None:
    driven = running(spares=0)
    driven.drop("active-0")
    driven.later(1, "active-1")
    driven.join("spare-9", warm=True)
    assert driven.assigned() == {"spare-9": 0, "active-1": 1}
    assert driven.recovery().strategy is Strategy.SPARE_SWAP
    assert driven.recovery().reason.endswith("; a warm spare was claimed from the pool")


def test_a_lost_spare_is_no_fault() -> None:
    driven = running()
    driven.drop("spare-0")
    assert driven.assigned() == {}
    assert driven.coordinator.snapshot().recoveries == ()
    assert driven.lost_pods() == {"spare-0": "Pod"}


def test_a_recovery_ends_with_the_first_step_and_lasts_as_long_as_a_survivor_has_measured() -> None:
    # given a training that has made steps, and a worker that fails
    driven = running()
    driven.fail_worker("active-1")
    # when its model takes two minutes to load
    driven.report_started("active-0", "active-1")
    driven.later(120.0, "active-0", "active-1", "spare-0")
    # then the recovery is open until the first step of a pod that had made one before
    assert (driven.recovery().running_at, driven.recovery().resumed_at) == (None, None)
    driven.report_step("active-1")
    assert driven.recovery().resumed_at is None
    driven.report_step("active-0", pause_s=120.3)
    assert (driven.recovery().resumed_at, driven.recovery().pause_s) == (driven.now, 120.3)
    assert driven.coordinator.snapshot().recoveries_by_strategy["InPlace"] == 1


@pytest.mark.parametrize(
    ("since_first_s", "expected"),
    [
        pytest.param(0.75, 2.25, id="it reads the steps 0.75 s late"),
        pytest.param(900.0, 0.0, id="it reports a step from before the round"),
    ],
)
def test_a_recovery_ends_when_the_first_step_is_made_and_not_when_its_launcher_reads_it(
    since_first_s: float, expected: float
) -> None:
    # given a round that replaces one whose worker has failed
    driven = running()
    driven.fail_worker("active-1")
    driven.report_started("active-0", "active-1")
    formed_at = driven.now
    driven.later(3.0, "active-0", "active-1", "spare-0")
    # when a launcher has read its workers' steps late
    driven.report_step("active-0", pause_s=3.2, since_first_s=since_first_s)
    # then the recovery ends with the first of them, but not before the round was formed
    assert driven.recovery().resumed_at == formed_at + expected


def test_the_steps_that_a_round_repeats_are_lost() -> None:
    # given a training that has made 20 steps, with a checkpoint after the 15th
    driven = running()
    driven.report_step("active-0", 20)
    driven.fail_worker("active-1")
    driven.report_started("active-0", "active-1")
    # when a pod that cannot measure the pause makes step 16 first, and the other one a moment later
    driven.report_step("active-1", 16)
    driven.report_step("active-0", 16, pause_s=3.0)
    # then steps 16 to 20 were repeated
    assert driven.recovery().lost_steps == 5
    assert driven.coordinator.snapshot().stepping_since == driven.now
    # and the recovery has the time at which step 20 was made again
    driven.later(1.0, "active-0", "active-1", "spare-0")
    driven.report_step("active-0", 19)
    assert driven.recovery().caught_up_at is None
    driven.later(0.5, "active-0", "active-1", "spare-0")
    driven.report_step("active-0", 21)
    assert driven.recovery().caught_up_at == driven.now


def test_a_pod_knows_newer_steps_than_rank_0_has_reported() -> None:
    # given step 20, which rank 0 has reported, and step 23, after which its progress was due
    driven = running()
    driven.report_step("active-0", 20)
    made = MadeStep(driven.token, 23)
    driven.fail_worker("active-1")
    # when the pods of the next round report the newest step of their workers
    driven.report_started("active-0", newest=made)
    driven.report_started("active-1", newest=MadeStep(made.token, 22))
    driven.report_step("active-0", 16, pause_s=3.0)
    # then steps 16 to 23 were lost
    assert driven.recovery().lost_steps == 8


@pytest.mark.parametrize("is_reported", [True, False])
def test_steps_of_a_round_that_another_one_has_replaced_are_not_the_newest(is_reported: bool) -> None:
    # given round 0 has made step 90, and round 1 has repeated steps until 40
    driven = running()
    old = MadeStep(driven.token, 90)
    driven.report_step("active-0", 90)
    driven.fail_worker("active-1")
    driven.report_started("active-0", "active-1", newest=old)
    driven.report_step("active-0", 31, pause_s=3.0)
    driven.report_step("active-0", 40)
    made = MadeStep(driven.token, 40)
    # when a pod that had no rank in round 1 gets one again
    driven.drop("active-1")
    driven.report_started("active-0", newest=made if is_reported else None)
    driven.report_started("spare-0", newest=old)
    driven.report_step("active-0", 31, pause_s=3.0)
    # then steps 31 to 40 were lost
    assert driven.recovery().lost_steps == 10


def test_a_new_coordinator_learns_the_newest_step_from_the_pods_that_have_made_it() -> None:
    # given a coordinator that was appointed after the loss of the previous one, and knows no progress
    made = RoundToken(1, 1, 3)
    driven = DrivenCoordinator(2, epoch=2, at_least_round=3)
    driven.join("spare-0")
    driven.join("active-1", made, 1, WorkersState.RUNNING, stepped=made)
    driven.later(13.0, "spare-0", "active-1")
    assert (driven.token.round, driven.coordinator.snapshot().progress) == (4, None)
    # when the next round starts, and a pod has made step 20 in the one before
    driven.report_started("active-1", newest=MadeStep(made, 20))
    driven.report_started("spare-0")
    driven.report_step("active-1", 16, pause_s=9.0)
    # then steps 16 to 20 were lost
    assert driven.recovery().lost_steps == 5


def test_a_round_that_continues_with_the_next_step_has_lost_none() -> None:
    driven = running()
    driven.report_step("active-0", 20)
    driven.fail_worker("active-1")
    driven.report_started("active-0", "active-1")
    driven.report_step("active-0", 21, pause_s=3.0)
    assert driven.recovery().lost_steps == 0


def test_the_progress_has_the_newest_snapshots_of_the_report_and_when_they_were_saved() -> None:
    driven = running()
    progress = m.Progress(driven.token, 5, 100, 0.1, driven.now)
    driven.receive("active-0", replace(progress, snapshot=SnapshotAge(4, 2.0), copied=SnapshotAge(3, 5.0)))
    now = driven.now
    expected = StepProgress(5, 100, now, snapshot=SnapshotTime(4, now - 2.0), copied=SnapshotTime(3, now - 5.0))
    assert driven.coordinator.snapshot().progress == expected
    # when a later report has none
    driven.receive("active-0", replace(progress, step=6))
    assert driven.coordinator.snapshot().progress == StepProgress(6, 100, now)


def test_lost_steps_are_unknown_if_one_of_the_rounds_counts_its_steps() -> None:
    # given a round that counts its steps, after one that does not
    driven = running()
    driven.report_step("active-0", 20)
    driven.fail_worker("active-1")
    driven.report_started("active-0", "active-1")
    driven.report_step("active-0", 1, 3.0, is_counted=True)
    # then the recovery has ended, and has no number of lost steps
    assert driven.coordinator.snapshot().progress == StepProgress(1, None, driven.now, is_counted=True)
    assert driven.recovery().resumed_at is not None
    assert driven.recovery().lost_steps is None
    # and if the next round does not count, it cannot be compared with this one either
    driven.later(10.0, "active-0", "active-1", "spare-0")
    driven.report_step("active-0", 30, is_counted=True)
    driven.fail_worker("active-1")
    driven.report_started("active-0", "active-1")
    driven.report_step("active-0", 26, 3.0)
    assert driven.recovery().lost_steps is None


def test_a_round_that_counts_its_steps_does_not_show_when_earlier_ones_were_made_again() -> None:
    # given a round that has to repeat the steps 11 to 20
    driven = running()
    driven.report_step("active-0", 20)
    driven.fail_worker("active-1")
    driven.report_started("active-0", "active-1")
    driven.report_step("active-0", 11, 3.0)
    # when the worker of another pod counts to more than 20
    driven.later(1.0, "active-0", "active-1", "spare-0")
    driven.report_step("active-1", 25, is_counted=True)
    # and the next round counts its steps
    driven.fail_worker("active-1")
    driven.report_started("active-0", "active-1")
    for step in (1, 25):
        driven.later(10.0, "active-0", "active-1", "spare-0")
        driven.report_step("active-0", step, 3.0, is_counted=True)
    # then nothing says that these were made again
    assert [x.caught_up_at for x in driven.coordinator.snapshot().recoveries] == [None, None]


def test_if_no_pod_that_has_stepped_is_left_any_first_step_ends_a_recovery() -> None:
    driven = running(1)  # its only pod has made steps
    driven.drop("active-0")
    driven.report_started("spare-0")
    driven.report_step("spare-0")
    assert (driven.recovery().resumed_at, driven.recovery().pause_s) == (driven.now, None)


def test_a_recovery_ends_when_all_workers_run_if_the_script_reports_no_steps() -> None:
    # given a job whose workers have never reported a step
    driven = DrivenCoordinator()
    for name in ("active-0", "active-1"):
        driven.join(name)
    driven.report_started("active-0", "active-1")
    # when a worker fails, and all workers run again
    both = ("active-0", "active-1")
    driven.later(60.0, *both)
    driven.fail_worker("active-1")
    driven.report_started("active-0")
    assert driven.recovery().running_at is None
    driven.later(2.0, *both)
    driven.report_started("active-1")
    # then the recovery ends at that time, and reports no number of seconds
    ended = driven.recovery()
    assert (ended.running_at, ended.resumed_at, ended.pause_s) == (driven.now, None, None)
    # and another fault has a time of its own
    driven.later(100.0, *both)
    driven.fail_worker("active-0")
    driven.report_started(*both)
    assert [x.running_at for x in driven.coordinator.snapshot().recoveries] == [ended.running_at, driven.now]
    # and if a first step follows after all, it is added to the recovery of its round
    driven.report_step("active-0")
    assert [x.resumed_at for x in driven.coordinator.snapshot().recoveries] == [None, driven.now]


def test_peers_that_fail_before_the_loss_of_their_neighbor_is_known_are_not_charged() -> None:
    driven = running(max_in_place=1)
    driven.fail_worker("active-1", "a peer has gone")
    driven.drop("active-0")
    assert (driven.recovery().fault, driven.recovery().cause.pod) == (Fault.POD, "active-0")
    driven.report_started("spare-0", "active-1")
    driven.report_step("spare-0")
    driven.report_step("active-1")
    driven.fail_worker("active-1")  # the one that is allowed
    assert driven.recovery().reason == "restart 1 of 1 within 1 h"


def test_messages_about_an_earlier_round_are_dropped() -> None:
    driven = running()
    driven.fail_worker("active-1")
    driven.assigned()
    driven.fail_worker("active-0", at_round=R0)
    driven.receive("active-0", m.Finished(R0))
    assert driven.assigned() == {}
    assert len(driven.coordinator.snapshot().recoveries) == 1


# Members that come back


def test_a_member_that_was_replaced_waits_as_a_spare() -> None:
    driven = running()
    driven.drop("active-0")
    driven.sent.clear()
    driven.join("active-0", R0, 0, WorkersState.RUNNING)
    assert driven.take("active-0", m.Standby) == [m.Standby(driven.token)]
    assert driven.lost_pods() == {}
    driven.drop("active-1")
    assert driven.assigned() == {"spare-0": 0, "active-0": 1}


def test_a_member_that_returns_before_anybody_has_its_ranks_is_not_made_a_spare() -> None:
    """Found by the simulation (seed 560564): it got its ranks again at once, but had given up its snapshots."""
    # given two lost members, whose ranks nobody can take
    driven = running(actives=3, spares=0)
    driven.drop("active-0")
    driven.drop("active-1")
    # when both return from the newest round
    driven.join("active-0", R0, 0, WorkersState.RUNNING)
    driven.join("active-1", R0, 1, WorkersState.RUNNING)
    # then the next round has them
    assert driven.assigned() == {"active-0": 0, "active-1": 1, "active-2": 2}
    assert [driven.take(name, m.Standby) for name in ("active-0", "active-1")] == [[], []]


@pytest.mark.parametrize("is_connected", [True, False])
def test_a_member_that_has_returned_is_a_spare_once_another_one_has_its_ranks(is_connected: bool) -> None:
    # given a lost member that has returned, and gets no rank because its node is broken
    driven = running(spares=0)
    driven.drop("active-0")
    driven.do(FromOperator(Nodes((NodeFact("node-of-active-0", hardware_finding="Xid 79"),))))
    driven.join("active-0", R0, 0, WorkersState.RUNNING)
    assert driven.take("active-0", m.Standby) == []
    if not is_connected:
        driven.drop("active-0", silent=True)
    # when a spare takes its ranks
    driven.join("spare-0")
    assert driven.assigned() == {"spare-0": 0, "active-1": 1}
    # then its workers have to stop, once
    if not is_connected:
        driven.join("active-0", R0, 0, WorkersState.RUNNING)
    assert driven.take("active-0", m.Standby) == [m.Standby(driven.token)]
    driven.report_started("spare-0", "active-1")
    driven.report_step("spare-0")
    driven.fail_worker("active-1")
    assert driven.assigned() == {"spare-0": 0, "active-1": 1}
    assert driven.take("active-0", m.Standby) == []


def test_a_member_that_missed_its_last_assignment_is_not_made_a_spare_when_it_returns() -> None:
    """Found by the simulation (seed 567977): it had its ranks in the newest round too, and gave up its snapshots."""
    # given a second round whose assignment does not reach active-0, which is lost then; another member too
    driven = running(actives=3, spares=0)
    driven.fail_worker("active-2")
    driven.drop("active-0")
    driven.drop("active-1")
    driven.sent.clear()
    # when it returns, and knows only the first round
    driven.join("active-0", R0, 0, WorkersState.RUNNING)
    assert driven.take("active-0", m.Standby) == []


def test_a_member_that_returns_from_an_older_round_is_a_spare_if_another_one_had_its_ranks_since() -> None:
    # given a second round in which a spare has the ranks of active-0, and is lost too
    driven = running(actives=3, spares=1)
    driven.drop("active-0")
    driven.drop("active-1")
    driven.drop("spare-0")
    driven.sent.clear()
    # when active-0 returns, and knows only the first round
    driven.join("active-0", R0, 0, WorkersState.RUNNING)
    assert driven.take("active-0", m.Standby) == [m.Standby(driven.token)]


def test_a_member_whose_fence_has_stopped_its_workers_waits_as_a_spare() -> None:
    """Found by the simulation's frozen node: the member kept claiming its rank, from each later coordinator."""
    driven = running()
    driven.drop("active-0")
    driven.sent.clear()
    driven.join("active-0", R0, 0, WorkersState.IDLE)
    assert driven.take("active-0", m.Standby) == [m.Standby(driven.token)]


def test_a_member_that_missed_its_order_to_wait_as_a_spare_gets_it_again() -> None:
    # given a member that returns from an older round, after a spare has taken its ranks
    driven = running()
    driven.drop("active-0")
    assert driven.assigned() == {"spare-0": 0, "active-1": 1}
    driven.join("active-0", R0, 0, WorkersState.RUNNING)
    driven.sent.clear()
    # when its connection breaks before the order arrives, and it joins again with running workers
    driven.drop("active-0", silent=True)
    driven.join("active-0", R0, 0, WorkersState.RUNNING)
    # then it has to stop them
    assert driven.take("active-0", m.Standby) == [m.Standby(driven.token)]
    # and if the next joins show that it has done so, nothing follows
    driven.drop("active-0", silent=True)
    driven.join("active-0", R0, None, WorkersState.IDLE)
    assert driven.take("active-0", m.Standby) == []


def test_a_member_that_missed_its_order_to_wait_gets_it_again_while_the_next_round_waits() -> None:
    # given a job of three pods without spares, in which a member returns from an older round
    driven = running(actives=3)
    driven.drop("active-0")
    assert driven.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}
    driven.join("active-0", R0, 0, WorkersState.RUNNING)
    driven.drop("active-0", silent=True)
    driven.drop("active-1")
    driven.drop("active-2")
    driven.sent.clear()
    # when it joins again, while the ranks of two other pods are vacant
    driven.join("active-0", R0, 0, WorkersState.RUNNING)
    # then it has to stop its workers
    assert driven.take("active-0", m.Standby) == [m.Standby(driven.token)]


def test_a_member_whose_connection_broke_resumes_and_gets_the_messages_that_it_missed() -> None:
    driven = running()
    driven.drop("active-0", silent=True)
    driven.join("active-0", R0, 0, WorkersState.RUNNING)
    assert driven.assigned() == {}
    driven.drop("active-0", silent=True)
    driven.coordinator.handle(Received(3, m.Ack(R0)), driven.now)
    driven.fail_worker("active-1")  # the silent member is lost at the same time, and the spare takes its rank
    assert driven.assigned() == {"spare-0": 0, "active-1": 1}


def test_a_newer_connection_of_a_pod_replaces_the_older_one() -> None:
    driven = running()
    driven.join("active-0", R0, 0, WorkersState.RUNNING)
    assert driven.hung_up == ["active-0"]
    assert driven.coordinator.phase is RoundPhase.RUNNING


@pytest.mark.parametrize("workers", [WorkersState.IDLE, WorkersState.FAILED])
def test_workers_that_ended_while_their_member_was_disconnected_are_a_worker_failure(workers: WorkersState) -> None:
    driven = running()
    driven.drop("active-0", silent=True)
    driven.join("active-0", R0, 0, workers)
    assert driven.assigned() == {"active-0": 0, "active-1": 1}
    assert driven.recovery().fault is Fault.PROCESS


def test_messages_on_a_connection_that_never_joined_end_it() -> None:
    driven = running()
    driven._names[99] = "stranger"
    driven.do(Received(99, m.Ack(R0)))
    assert driven.hung_up == ["stranger"]


# Leaving


def test_the_next_round_waits_for_the_save_of_a_member_that_leaves() -> None:
    driven = running()
    driven.receive("active-0", m.Leaving("deleted", 30.0))
    (drain,) = driven.take("active-1", m.Drain)
    assert drain.grace_s == 28.0
    driven.fail_worker("active-1", "its peer has ended")
    driven.receive("active-1", m.Drained(driven.token))
    assert driven.assigned() == {}
    driven.receive("active-0", m.Gone("its launcher has ended"))
    assert driven.assigned() == {"spare-0": 0, "active-1": 1}
    assert driven.recovery().cause.pod == "active-0"


def test_the_next_round_waits_no_longer_than_the_grace_period_of_the_member() -> None:
    driven = running()
    driven.receive("active-0", m.Leaving("deleted", 30.0))
    driven.later(31, "active-0", "active-1", "spare-0")
    assert driven.assigned() == {"spare-0": 0, "active-1": 1}


# The end


ALL = ("active-0", "active-1", "spare-0")


def finish(driven: DrivenCoordinator, *names: str) -> None:
    for name in names:
        driven.receive(name, m.Finished(driven.token))


def test_when_all_workers_have_exited_0_all_members_receive_the_close_and_the_coordinator_shuts_down() -> None:
    driven = running()
    finish(driven, "active-0")
    assert driven.coordinator.closed is None
    finish(driven, "active-1")
    driven.answer_heartbeats(*ALL)  # a majority confirms that the coordinator is followed
    closes = [driven.take(name, m.Close)[0].reason for name in ("active-0", "active-1", "spare-0")]
    assert closes == [CloseReason.SUCCEEDED] * 3
    for name in ("active-0", "active-1", "spare-0"):
        assert not driven.has_completed_shutdown
        driven.receive(name, m.CloseAck())
    assert driven.has_completed_shutdown
    assert driven.coordinator.deadline() is None


def test_it_waits_a_limited_time_for_acknowledgements() -> None:
    driven = running()
    finish(driven, "active-0", "active-1")
    driven.answer_heartbeats(*ALL)
    driven.later(CLOSE_ACK_S + 0.1)
    assert driven.has_completed_shutdown


def test_a_member_that_joins_after_the_close_receives_it() -> None:
    driven = running()
    finish(driven, "active-0", "active-1")
    driven.answer_heartbeats(*ALL)
    driven.join("spare-7")
    assert driven.take("spare-7", m.Close)


def test_the_loss_of_a_member_that_has_finished_is_no_fault() -> None:
    driven = running()
    finish(driven, "active-0")
    driven.drop("active-0")
    assert driven.assigned() == {}
    finish(driven, "active-1")
    driven.answer_heartbeats("active-1", "spare-0")
    assert driven.coordinator.closed is not None


def test_a_member_that_was_lost_after_its_workers_had_finished_keeps_its_rank_when_it_returns() -> None:
    """Found by the simulation (seed 1399955): it forgot that they had finished. When the coordinator stepped down, the
    next one trained again, and could not name the pod that it missed.
    """
    # given a member that is lost after its workers have finished, while others still train
    driven = running()
    finish(driven, "active-0")
    driven.drop("active-0")
    # when it returns
    driven.join("active-0", driven.token, 0, WorkersState.FINISHED)
    # then it has its rank, and is no spare
    assert driven.take("active-0", m.Standby) == []
    assert driven.coordinator.state.roster.members["uid-active-0"].group_rank == 0


def test_a_member_that_has_finished_another_round_is_a_spare_when_it_returns() -> None:
    # given a round in which another member has finished
    driven = running()
    driven.fail_worker("active-1")
    driven.report_started("active-0", "active-1")
    finish(driven, "active-0")
    driven.drop("active-0")
    # when it returns with what it had in an older round
    driven.join("active-0", R0, 0, WorkersState.FINISHED)
    assert driven.take("active-0", m.Standby) == [m.Standby(driven.token)]


def test_a_coordinator_that_is_cut_off_does_not_close_the_job_as_succeeded() -> None:
    """Found by the simulation (seed 872669): the others had elected a coordinator, and trained again."""
    driven = running()
    driven.later(5, *ALL)  # they become voters
    finish(driven, "active-0", "active-1")
    driven.answer_heartbeats("active-0")  # one of three voters
    assert driven.coordinator.closed is None
    driven.answer_heartbeats("active-1")
    assert driven.coordinator.closed is not None


def test_a_coordinator_whose_finished_members_are_gone_reports_that_it_lacks_a_majority() -> None:
    """The operator then appoints it again, in an epoch without these voters."""
    driven = running(spares=0)
    driven.later(5, "active-0", "active-1")
    finish(driven, "active-1")
    driven.drop("active-1")
    finish(driven, "active-0")
    assert driven.coordinator.closed is None
    assert driven.coordinator.snapshot().lacks_quorum
    driven.coordinator.appoint(Appoint(2, driven.token.round, {}), driven.now)
    assert driven.coordinator.closed is not None


def test_a_success_is_forgotten_if_workers_have_to_run_again_before_a_majority_confirms_it() -> None:
    driven = running()
    driven.later(5, *ALL)
    finish(driven, "active-0", "active-1")
    driven.fail_worker("active-1")
    driven.answer_heartbeats(*ALL)
    assert driven.coordinator.closed is None


def test_the_loss_of_a_member_that_has_finished_is_a_fault_if_another_has_to_run_again() -> None:
    driven = running()
    finish(driven, "active-0")
    driven.drop("active-0")
    driven.fail_worker("active-1")
    assert driven.assigned() == {"spare-0": 0, "active-1": 1}


# Observers


def test_a_snapshot_contains_the_whole_state() -> None:
    driven = running()
    snapshot = driven.coordinator.snapshot()
    assert {x.pod_name: x.group_rank for x in snapshot.members} == {"spare-0": None, "active-0": 0, "active-1": 1}
    assert snapshot.progress is not None
    assert (snapshot.token, snapshot.progress.step, snapshot.closed) == (R0, 1, None)


def test_every_change_gives_a_new_version() -> None:
    driven = running()
    before = driven.coordinator.state.version
    driven.drop("spare-0")
    assert driven.coordinator.state.version > before


def test_a_tick_at_the_deadline_always_moves_it() -> None:
    driven = running()
    driven.drop("active-0", silent=True)
    for _ in range(100):
        due = driven.coordinator.deadline()
        if driven.step_down_reason:
            return  # no member is left
        assert due is not None
        driven.later(max(0.0, due - driven.now), "active-0", "active-1", "spare-0")
        assert driven.coordinator.deadline() != due


def test_a_pod_of_an_index_beyond_the_job_takes_no_rank_before_its_time() -> None:
    driven = DrivenCoordinator()
    driven.join("active-7")
    driven.join("active-0")
    assert driven.assigned() == {}


def test_a_round_that_waits_for_the_start_of_workers_reports_the_pods() -> None:
    # given a round of two pods, one of which starts its workers at once
    driven = running()
    driven.fail_worker("active-1")
    driven.report_started("active-0")
    driven.receive("active-1", m.Ack(driven.token))
    assert driven.coordinator.snapshot().waiting_for == ""
    version = driven.coordinator.state.version
    # when the other one has not started its workers after five seconds
    driven.later(5.0, "active-0", "active-1", "spare-0")
    # then status names it until it has
    assert driven.coordinator.snapshot().waiting_for == "the start of the workers of active-1"
    assert driven.coordinator.state.version > version
    driven.report_started("active-1")
    assert driven.coordinator.snapshot().waiting_for == ""


def test_the_snapshot_reports_the_pods_whose_workers_are_not_forked_and_the_reason() -> None:
    driven = running()
    assert driven.coordinator.snapshot().fork_fallbacks is None
    driven.receive("active-0", m.ForkFallback("x" * 600))
    driven.receive("active-1", m.ForkFallback("a thread of pyarrow"))
    assert driven.coordinator.snapshot().fork_fallbacks == ForkFallbacks(2, "active-0", "x" * 500)
    driven.receive("active-0", m.ForkFallback(""))
    assert driven.coordinator.snapshot().fork_fallbacks == ForkFallbacks(1, "active-1", "a thread of pyarrow")


def test_spares_import_the_modules_that_a_pod_has_learned_and_no_other_pod_does() -> None:
    # given a job with a spare, whose rank 0 has learned modules
    driven = running()
    driven.receive("active-0", m.Learned(("transformers", "x" * 201, "é")))
    # then the spare imports them, except for names that no launcher sends
    assert driven.take("spare-0", m.Preload) == [m.Preload(("transformers",))]
    # and so does a spare that joins later
    driven.join("spare-1")
    assert driven.take("spare-1", m.Preload) == [m.Preload(("transformers",))]
    # but not one that claims ranks, as after the loss of a coordinator
    driven.join("active-2", driven.token, 1, WorkersState.RUNNING)
    assert driven.take("active-2", m.Preload) == []
    # and a second report changes nothing
    driven.receive("active-1", m.Learned(("datasets",)))
    assert not [name for name in ("active-0", "active-1", "spare-0", "spare-1") if driven.take(name, m.Preload)]


def test_spares_get_about_as_many_modules_as_a_launcher_sends() -> None:
    driven = running()
    driven.receive("active-0", m.Learned(tuple(f"m{number:0199d}" for number in range(101))))
    (order,) = driven.take("spare-0", m.Preload)
    assert len(order.modules) == 100


def test_the_rank_of_a_worker_that_cannot_be_killed_is_the_cause() -> None:
    # given pods with four workers each
    driven = running(nproc=4)
    # when the member of ranks 4 to 7 cannot kill the worker of its local rank 2
    driven.receive("active-1", m.Gone("the worker of local rank 2 is stuck in the kernel", 2, launcher_is_alive=True))
    # then the recovery names that rank
    assert (driven.recovery().cause.rank, driven.recovery().cause.pod) == (6, "active-1")


def test_a_pod_whose_workers_do_not_start_is_lost_after_four_minutes_and_a_spare_takes_its_ranks() -> None:
    # given a round in which one of two pods starts its workers, and the other one only acknowledges
    driven = running()
    driven.fail_worker("active-1")
    driven.report_started("active-0")
    driven.receive("active-1", m.Ack(driven.token))
    driven.sent.clear()
    # when four minutes have passed, in which all members answer
    driven.later(239.0, "active-0", "active-1", "spare-0")
    assert driven.lost_pods() == {}
    driven.later(2.0, "active-0", "active-1", "spare-0")
    # then it is lost, status has the reason, and the next round excludes it
    assert driven.lost_pods() == {"active-1": "Pod"}
    assert driven.recovery().cause.message == "its workers have not started within 240 s"
    assert driven.assigned() == {"active-0": 0, "spare-0": 1}


def test_a_pod_whose_workers_started_while_it_was_disconnected_is_not_lost() -> None:
    # given a round in which the connection of a pod ends before its workers start
    driven = running()
    driven.fail_worker("active-1")
    driven.report_started("active-0")
    driven.receive("active-1", m.Ack(driven.token))
    driven.drop("active-1", silent=True)
    # when it joins again with running workers, and all members answer for more than four minutes
    driven.join("active-1", driven.token, 1, WorkersState.RUNNING)
    driven.report_step("active-0", 2)
    driven.later(300.0, "active-0", "active-1", "spare-0")
    # then the round continues
    assert driven.lost_pods() == {}
    assert driven.coordinator.phase is RoundPhase.RUNNING


def test_a_pod_that_joins_and_can_take_part_in_no_round_is_lost_and_gets_no_ranks() -> None:
    driven = DrivenCoordinator()
    driven.join("active-0")
    driven.join("active-1", unable_reason="its launcher has not responded for 15 s")
    assert driven.assigned() == {}
    assert driven.lost_pods() == {"active-1": "Pod"}
    assert driven.coordinator.snapshot().lost[0].reason == "its launcher has not responded for 15 s"


def test_if_the_workers_of_no_pod_start_no_pod_is_lost() -> None:
    driven = running()
    driven.fail_worker("active-1")
    for name in ("active-0", "active-1"):
        driven.receive(name, m.Ack(driven.token))
    driven.later(300.0, "active-0", "active-1", "spare-0")
    assert driven.lost_pods() == {}
    # but the pod is lost a minute after another pod has started its workers
    driven.report_started("active-0")
    driven.later(59.0, "active-0", "active-1", "spare-0")
    assert driven.lost_pods() == {}
    driven.later(2.0, "active-0", "active-1", "spare-0")
    assert driven.lost_pods() == {"active-1": "Pod"}


def test_if_the_workers_of_all_pods_start_late_no_pod_is_lost() -> None:
    # given a round of three pods. For four minutes, no pod starts its workers, because their file system hangs
    driven = running(actives=3)
    driven.fail_worker("active-1")
    everyone = ("active-0", "active-1", "active-2", "spare-0")
    for name in everyone[:3]:
        driven.receive(name, m.Ack(driven.token))
    driven.later(250.0, *everyone)
    # when the pods start their workers one after the other, within 50 s
    driven.report_started("active-0")
    driven.later(20.0, *everyone)
    driven.report_started("active-1")
    driven.later(30.0, *everyone)
    driven.report_started("active-2")
    # then none is replaced
    assert driven.lost_pods() == {}
    assert driven.coordinator.phase is RoundPhase.RUNNING


def test_a_pod_whose_workers_did_not_start_is_replaced_although_it_connects_again() -> None:
    # given a job without spares, and a pod that is lost because its workers have not started
    driven = running(spares=0)
    driven.fail_worker("active-1")
    driven.report_started("active-0")
    driven.receive("active-1", m.Ack(driven.token))
    driven.later(241.0, "active-0", "active-1")
    lost_at = driven.coordinator.snapshot().lost[0].at
    # when it connects again later
    driven.later(10.0, "active-0")
    driven.sent.clear()
    driven.join("active-1")
    # then the coordinator evicts it, and still reports it as lost since the first time
    assert [reported.reason for reported in driven.take("active-1", m.Evicted)] == [
        "its workers have not started within 240 s"
    ]
    assert driven.assigned() == {}
    assert driven.lost_pods() == {"active-1": "Pod"}
    assert driven.coordinator.snapshot().lost[0].at == lost_at
