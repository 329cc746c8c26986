"""The history that one coordinator leaves to the next: offenses, evicted pods, open recoveries, and failed rounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.sidecar.membership.driven import START, DrivenCoordinator, running
from understudy_protocol import compiled
from understudy_protocol import membership as m
from understudy_protocol.enums import ConfigVersion, Fault, RoundToken, Strategy, Term, WorkersState
from understudy_protocol.observer import Cause, Recovery
from understudy_protocol.recovery import CountedFault, History
from understudy_sidecar.membership.round_state import RoundPhase

MESSAGE_LIMIT = 500
CONFIG_CHANGE_S = 0.5
FAULTY_REASON_LIMIT = 200
INHERITED = 100
SETTLE_S = 12.0
MEMBER_BYTES = 64 * 1024

V1 = ConfigVersion(1, 1, 1)
ROUND = RoundToken(1, 1, 3)
RUNNING, FAILED = WorkersState.RUNNING, WorkersState.FAILED
PREVIOUS = Term(1, 1)
LOST = Cause(1, "active-1", "node-of-active-1", None, None, "its connection ended")
BAD = Cause(1, "active-1", "node-of-active-1", 1, None, "exit code 1")
ALL_MEMBERS = ("active-0", "active-1", "spare-0")


def lasting(fault: Fault, cause: Cause, *, of_round: int = 4, strategy: Strategy | None = None) -> Recovery:
    return Recovery(of_round, fault, strategy, cause, START - 5.0, None, "as reported")


def history(number: int = 1, **given: object) -> History:
    facts: dict[str, object] = {"counted_faults": (), "evicted": {}, "open": (), "failed_starts": 0}
    return History(PREVIOUS, number, **{**facts, **given})  # type: ignore[arg-type]


def elected(known: History, **given: object) -> DrivenCoordinator:
    leader_snapshot = m.LeaderSnapshot(
        V1, tuple(f"uid-{x}" for x in ALL_MEMBERS), (), "uid-coordinator", {"InPlace": 2}, known
    )
    return DrivenCoordinator(2, elected=leader_snapshot, **given)  # type: ignore[arg-type]


def claims(driven: DrivenCoordinator, first: WorkersState = RUNNING, second: WorkersState | None = RUNNING) -> None:
    """All members join. second: None: active-1 does not come."""
    driven.join("spare-0")
    driven.join("active-0", ROUND, 0, first)
    if second is not None:
        driven.join("active-1", ROUND, 1, second)


# Contents of the history


def test_standby_coordinators_receive_the_whole_history() -> None:
    driven = running(in_place_max_per_pod=1)
    driven.later(CONFIG_CHANGE_S + 0.1, *ALL_MEMBERS)
    driven.fail_worker("active-1")
    driven.later(CONFIG_CHANGE_S + 0.1, *ALL_MEMBERS)
    driven.report_started("active-0", "active-1")
    driven.fail_worker("active-1")  # right at the start
    driven.answer_heartbeats("active-0")
    driven.later(CONFIG_CHANGE_S + 0.1, *ALL_MEMBERS)
    first, *_, last = (leader_snapshot.history for leader_snapshot in driven.take("spare-0", m.LeaderSnapshot))
    assert (first.term, first.number < last.number) == (driven.coordinator.term, True)
    assert [(x.pod_uid, x.rank, x.caused_eviction) for x in last.counted_faults] == [
        ("uid-active-1", 1, False),
        ("uid-active-1", 1, True),
    ]
    assert last.evicted == {"uid-active-1": "pod active-1 failed twice within 1 h"}
    assert [x.reason for x in last.open] == ["restart 1 of 2 within 1 h", "pod active-1 failed twice within 1 h"]
    assert last.failed_starts == 1


def test_a_withdrawn_charge_does_not_come_back_from_a_standby_coordinator() -> None:
    """Found by the simulation (seed 4907): a standby coordinator was frozen, and brought back a charge that had since
    become the loss of the pod.
    """
    # given a failure that was sent to the standby coordinators, and that turned out to be the loss of its pod
    driven = running()
    driven.fail_worker("active-1")
    driven.later(CONFIG_CHANGE_S + 0.1, *ALL_MEMBERS)
    reported = driven.take("spare-0", m.LeaderSnapshot)[-1].history
    assert reported is not None
    (fault,) = reported.counted_faults
    driven.coordinator.state.fault_history.take_back(fault.at)
    # when a standby coordinator joins again with that history
    driven.join("spare-1", history=reported)
    # then the charge stays withdrawn
    assert driven.coordinator.state.fault_history.in_window(driven.now) == []


def test_a_join_with_the_whole_history_is_not_too_long_for_a_coordinator() -> None:
    driven = running()
    driven.later(CONFIG_CHANGE_S + 0.1, *ALL_MEMBERS)
    state = driven.coordinator.state
    long_name, long_message = "n" * 63, "ü" * MESSAGE_LIMIT
    cause = Cause(99999, long_name, long_name, None, "SIGKILL", long_message)
    for number in range(300):
        uid = f"{number:036}"
        state.fault_history.add(CountedFault(driven.now + number / 1000, uid, 99999))
        state.fault_history.record_eviction(uid, f"node {long_name} is Faulty: {'ü' * FAULTY_REASON_LIMIT}")
        state.recovery_log.begin(Fault.PROCESS, cause, number, driven.now + number / 1000, long_message)
    state.config_changes.send_snapshot_later(driven.now)
    driven.later(CONFIG_CHANGE_S + 0.1, *ALL_MEMBERS)
    history = driven.take("spare-0", m.LeaderSnapshot)[-1].history
    assert len(history.counted_faults) == INHERITED
    join = m.Join("u" * 36, long_name, long_name, "10.0.0.1", 1, ROUND, 1, RUNNING, 4000, history=history)
    assert len(compiled.encode(join)) < MEMBER_BYTES


def test_a_recovery_that_has_just_ended_is_in_the_history_for_half_a_minute() -> None:
    """Observers get a snapshot five times a second, and this coordinator may be lost before the next one."""
    driven = running()
    driven.later(CONFIG_CHANGE_S + 0.1, *ALL_MEMBERS)
    driven.fail_worker("active-1")
    driven.report_started("active-0", "active-1")
    driven.report_step("active-0", 2, 0.125)
    ended = driven.recovery()
    driven.later(CONFIG_CHANGE_S + 0.1, *ALL_MEMBERS)
    history = driven.take("spare-0", m.LeaderSnapshot)[-1].history
    assert (history.open, [(x.detected_at, x.pause_s) for x in history.ended]) == ((), [(ended.detected_at, 0.125)])
    driven.later(36.0, *ALL_MEMBERS)
    later = driven.coordinator.leader_snapshot().history
    assert later is not None
    assert later.ended == ()


def test_a_new_coordinator_reports_a_recovery_that_had_just_ended() -> None:
    """Found by the simulation (seed 951021): the operator took the whole pause for training."""
    entry = replace(lasting(Fault.POD, LOST, strategy=Strategy.SPARE_SWAP), resumed_at=START - 1.0, pause_s=4.2)
    driven = elected(history(ended=(entry,)))
    claims(driven)
    assert driven.coordinator.snapshot().recoveries == (entry,)


def test_of_two_recoveries_that_wait_for_their_round_each_lost_pod_is_reported() -> None:
    """Found by the simulation (seed 83528): the older recovery was reported as a replacement without a reason."""
    # given that a worker of active-0 failed, and then active-1 and the coordinator on active-0 were lost
    worker = Cause(0, "active-0", "node-of-active-0", 1, None, "exit code 1")
    open_ = (lasting(Fault.PROCESS, worker), lasting(Fault.POD, LOST))
    driven = elected(history(open=open_))
    # when neither of them comes to the next coordinator
    driven.join("spare-0")
    driven.later(SETTLE_S + 1, "spare-0")
    # then the first recovery reports that its pod is lost, too
    first, second = driven.coordinator.snapshot().recoveries
    assert (first.cause.pod, first.reason) == ("active-0", "as reported; its pod is lost")
    assert second.cause.pod == "active-1"


def test_a_failure_that_was_not_charged_is_not_charged_by_the_next_coordinator_if_a_pod_is_missing() -> None:
    """Found by the simulation (seed 105289): the worker had failed because the other pod was gone."""
    # given a coordinator that had no majority when a worker of active-0 failed, and reported that
    worker = Cause(0, "active-0", "node-of-active-0", 1, None, "a peer has gone")
    pending = Recovery(4, Fault.PROCESS, None, worker, START - 5.0, None, "")
    rank_holders = (
        m.RankHolder(0, "uid-active-0", "active-0", "node-0"),
        m.RankHolder(1, "uid-active-1", "active-1", "node-1"),
    )
    voters = tuple(f"uid-{x}" for x in ALL_MEMBERS)
    leader_snapshot = m.LeaderSnapshot(
        V1, voters, (), "uid-coordinator", {}, history(open=(pending,)), ROUND, rank_holders
    )
    driven = DrivenCoordinator(2, elected=leader_snapshot)
    # when active-1 does not come to the next one
    driven.join("spare-0")
    driven.join("active-0", ROUND, 0, FAILED)
    driven.later(SETTLE_S + 1, "spare-0", "active-0")
    # then nothing is charged, and the lost pod is the cause
    assert driven.coordinator.state.fault_history.in_window(driven.now) == []
    assert [x.cause.pod for x in driven.coordinator.snapshot().recoveries] == ["active-1"]


# Offenses


def test_a_failure_under_the_previous_coordinator_counts_once() -> None:
    driven = elected(history(counted_faults=(CountedFault(START - 10, "uid-active-1", 1),)), in_place_max_per_pod=1)
    claims(driven)
    driven.fail_worker("active-1")
    driven.answer_heartbeats("active-0")
    assert driven.assigned() == {"active-0": 0, "spare-0": 1}


def test_an_appointed_coordinator_receives_the_history_from_a_previous_standby_coordinator() -> None:
    known = history(counted_faults=(CountedFault(START - 10, "uid-active-1", 1),))
    driven = DrivenCoordinator(2, epoch=2, at_least_round=3, in_place_max_per_pod=1)
    driven.join("spare-0", history=known)
    driven.join("active-0", ROUND, 0, RUNNING)
    driven.join("active-1", ROUND, 1, RUNNING)
    driven.fail_worker("active-1")
    driven.answer_heartbeats("active-0")
    assert driven.assigned() == {"active-0": 0, "spare-0": 1}


def test_the_newest_history_counts_and_no_offense_counts_twice() -> None:
    counted_faults = (CountedFault(START - 10, "uid-active-1", 1), CountedFault(START - 9, "uid-active-0", 0))
    driven = elected(history(2, counted_faults=counted_faults, failed_starts=2))
    driven.join("spare-0", history=history(1, counted_faults=counted_faults[:1], failed_starts=1))
    driven.join("active-0", ROUND, 0, RUNNING, history=history(3, counted_faults=counted_faults, failed_starts=3))
    assert driven.coordinator.state.fault_history.in_window(driven.now) == list(counted_faults)
    assert driven.coordinator.state.backoff.failures == 3


def test_a_pod_that_the_previous_coordinator_evicted_is_no_member_of_the_next() -> None:
    driven = elected(history(evicted={"uid-active-1": "it failed twice"}))
    claims(driven, FAILED, FAILED)
    assert driven.take("active-1", m.Evicted)[0].reason == "it failed twice"
    assert driven.assigned() == {"active-0": 0, "spare-0": 1}, "no round waits for it"


def test_a_member_is_evicted_if_its_eviction_becomes_known_after_it_has_joined() -> None:
    driven = DrivenCoordinator(2, epoch=2, at_least_round=3)
    driven.join("active-1", ROUND, 1, FAILED)
    driven.join("spare-0", history=history(evicted={"uid-active-1": "it failed twice"}))
    assert driven.take("active-1", m.Evicted)
    driven.join("active-0", ROUND, 0, FAILED)
    driven.later(SETTLE_S + 1, "active-0", "spare-0")
    assert driven.assigned() == {"active-0": 0, "spare-0": 1}


# Open recoveries


def test_a_recovery_that_the_previous_coordinator_began_is_one_entry_with_its_cause() -> None:
    """A pod was lost, and the coordinator stepped down before a pod could take its ranks."""
    driven = elected(history(open=(lasting(Fault.POD, LOST),)))
    driven.join("active-0", ROUND, 0, RUNNING, stepped=ROUND)
    driven.later(SETTLE_S + 1, "active-0")
    driven.join("spare-0")
    assert driven.assigned() == {"active-0": 0, "spare-0": 1}
    driven.report_started("active-0", "spare-0")
    driven.report_step("active-0", pause_s=20.0)
    (recovery,) = driven.coordinator.snapshot().recoveries
    assert (recovery.cause, recovery.detected_at, recovery.round) == (LOST, START - 5.0, 4)
    assert recovery.strategy is Strategy.POD_RECREATE
    assert recovery.resumed_at is not None


def test_a_failure_that_the_previous_coordinator_reported_is_neither_reported_nor_charged_again() -> None:
    reported = lasting(Fault.PROCESS, BAD)
    driven = elected(history(open=(reported,), counted_faults=(CountedFault(reported.detected_at, "uid-active-1", 1),)))
    claims(driven, FAILED, FAILED)
    assert driven.assigned() == {"active-0": 0, "active-1": 1}
    assert len(driven.coordinator.snapshot().recoveries) == 1
    assert len(driven.coordinator.state.fault_history.in_window(driven.now)) == 1


def test_a_failure_that_it_reported_and_did_not_charge_is_charged_to_no_pod() -> None:
    driven = elected(history(open=(lasting(Fault.PROCESS, BAD),)), in_place_max_per_pod=0)
    claims(driven, FAILED, FAILED)
    assert driven.assigned() == {"active-0": 0, "active-1": 1}
    assert [x.pod_uid for x in driven.coordinator.state.fault_history.in_window(driven.now)] == [""]


def test_a_recovery_whose_round_trains_ends_with_its_next_step() -> None:
    driven = elected(history(open=(lasting(Fault.POD, LOST, of_round=3, strategy=Strategy.SPARE_SWAP),)))
    claims(driven)
    assert driven.coordinator.phase is RoundPhase.RUNNING
    driven.report_step("active-0")
    (recovery,) = driven.coordinator.snapshot().recoveries
    assert (recovery.strategy, recovery.resumed_at) == (Strategy.SPARE_SWAP, driven.now)


def test_a_recovery_that_ended_before_it_was_reported_is_not_reported_again() -> None:
    driven = elected(history(open=(lasting(Fault.POD, LOST, of_round=3),)))
    claims(driven)
    assert driven.coordinator.snapshot().recoveries == ()


def test_another_fault_at_the_same_time_is_an_entry_of_its_own() -> None:
    driven = elected(history(open=(lasting(Fault.POD, LOST, of_round=3, strategy=Strategy.SPARE_SWAP),)))
    claims(driven, RUNNING, FAILED)
    assert [x.fault for x in driven.coordinator.snapshot().recoveries] == [Fault.POD, Fault.PROCESS]


# Rounds that fail right at their start


@pytest.mark.parametrize(("failed", "pause_s"), [(0, 0.02), (2, 4.02)])
def test_the_next_coordinator_continues_the_backoff(failed: int, pause_s: float) -> None:
    """The 20 ms in which the failures of a round are gathered come on top."""
    driven = elected(history(failed_starts=failed), max_in_place=10)
    claims(driven)
    before = driven.now
    driven.fail_worker("active-1")
    while not driven.assigned():
        driven.later(0.5, *ALL_MEMBERS)
    assert driven.now - before == pytest.approx(pause_s)


def test_a_step_resets_the_backoff_of_the_previous_coordinator() -> None:
    driven = elected(history(failed_starts=2), max_in_place=10)
    claims(driven)
    driven.report_step("active-0")
    driven.fail_worker("active-1")
    assert driven.assigned()
