"""The recovery log: charges, withdrawals, and reports."""

from dataclasses import replace

import pytest

from understudy_protocol.enums import Fault, Strategy, Tier
from understudy_protocol.observer import Cause, Consequence
from understudy_sidecar.membership.recoveries import RecoveryLog

NOT_COUNTED = "the previous coordinator was lost before it charged the fault"

KEPT = 10

WORKER = Cause(3, "pod-1", "node-1", 1, None, "exit code 1")
POD = Cause(0, "pod-0", "node-0", None, None, "its connection ended")


def test_a_recovery_opens_is_formed_and_ends_with_the_next_step() -> None:
    given = RecoveryLog()
    given.begin(Fault.POD, POD, 1, 10.0)
    assert given.newest()[0].strategy is None
    given.on_round(1, Strategy.SPARE_SWAP)
    (done,) = given.on_step(1, 11.5)
    assert (done.round, done.strategy, done.detected_at, done.resumed_at) == (1, Strategy.SPARE_SWAP, 10.0, 11.5)
    assert given.counts == {"SpareSwap": 1}
    assert given.on_step(1, 12.0) == []


def test_facts_that_are_known_when_the_round_is_formed_extend_the_reason() -> None:
    given = RecoveryLog()
    given.begin(Fault.POD, POD, 1, 10.0, "its pod is lost")
    given.begin(Fault.POD, POD, 1, 11.0)
    given.on_round(1, Strategy.POD_RECREATE, "no spare was available")
    assert [x.reason for x in given.newest()] == ["its pod is lost; no spare was available", "no spare was available"]


def test_a_pod_that_stayed_was_restarted_in_place_whatever_happened_to_others() -> None:
    given = RecoveryLog()
    given.begin(Fault.PROCESS, WORKER, 1, 10.0, "restart 1 of 10 within 1 h")
    given.begin(Fault.POD, POD, 1, 11.0, "its pod is lost")
    given.on_round(1, Strategy.POD_RECREATE, "no spare was available", restarted_in_place={"pod-1"})
    assert [(x.strategy, x.reason) for x in given.newest()] == [
        (Strategy.IN_PLACE, "restart 1 of 10 within 1 h"),
        (Strategy.POD_RECREATE, "its pod is lost; no spare was available"),
    ]


def test_a_recovery_whose_round_restored_nothing_has_the_restore_of_the_round_that_ends_it() -> None:
    """Found on the local cluster: of two nodes that were lost at once, one recovery said nothing about its restore."""
    # given a second lost pod before the first one's round restores a snapshot
    given = RecoveryLog()
    given.begin(Fault.NODE, POD, 1, 10.0)
    given.on_round(1, Strategy.SPARE_SWAP)
    given.begin(Fault.NODE, replace(POD, pod="pod-2"), 2, 10.2)
    given.on_round(2, Strategy.SPARE_SWAP)
    # when the round after it does
    given.on_restore(2, Tier.PEER, "", 3)
    # then both recoveries have this restore
    assert [(x.round, x.tier, x.lost_steps) for x in given.on_step(2, 12.0)] == [(1, Tier.PEER, 3), (2, Tier.PEER, 3)]


def test_a_recovery_keeps_the_restore_of_its_own_round() -> None:
    # given a round that restored a snapshot, and failed before its first step
    given = RecoveryLog()
    given.begin(Fault.PROCESS, WORKER, 1, 10.0)
    given.on_round(1, Strategy.IN_PLACE)
    given.on_restore(1, Tier.MEMORY, "", 0)
    given.begin(Fault.PROCESS, WORKER, 2, 11.0)
    given.on_round(2, Strategy.IN_PLACE)
    # when the next one restores another snapshot
    given.on_restore(2, Tier.PEER, "", 1)
    assert [x.tier for x in given.on_step(2, 12.0)] == [Tier.MEMORY, Tier.PEER]


def test_a_failed_weight_update_does_not_hide_the_fault_of_a_worker() -> None:
    """Found by the simulation (seed 1268635): a restart stayed charged, although a lost pod was the cause."""
    given = RecoveryLog()
    given.begin(Fault.PROCESS, WORKER, 1, 10.0)
    given.on_round(1, Strategy.IN_PLACE)
    given.begin(Fault.WEIGHT_UPDATE, WORKER, 2, 11.0)
    found = given.newest_worker_fault()
    assert found is not None
    assert (found.fault, found.detected_at) == (Fault.PROCESS, 10.0)


def test_a_fault_that_a_coordinator_without_a_majority_did_not_charge_has_that_reason() -> None:
    # given the log of a coordinator: a worker's fault that it has not charged, one that it has, and a lost pod
    left = RecoveryLog()
    left.begin(Fault.PROCESS, WORKER, 1, 10.0)
    left.begin(Fault.HANG, WORKER, 1, 11.0, "restart 1 of 10 within 1 h")
    left.begin(Fault.POD, POD, 1, 12.0)
    # when the next coordinator continues the log
    given = RecoveryLog()
    given.restore(left.open)
    given.on_round(1, Strategy.SPARE_SWAP)
    # then each entry has its reason
    assert [x.reason for x in given.newest()] == [NOT_COUNTED, "restart 1 of 10 within 1 h", ""]


def test_a_pod_that_was_to_stay_and_is_lost_has_both_reasons() -> None:
    given = RecoveryLog()
    given.begin(Fault.PROCESS, WORKER, 1, 10.0, "restart 1 of 10 within 1 h")
    given.on_loss("pod-1", "its pod is lost")
    given.on_round(1, Strategy.SPARE_SWAP)
    assert given.newest()[0].reason == "restart 1 of 10 within 1 h; its pod is lost"


def test_a_lost_member_takes_the_blame_off_an_innocent_worker() -> None:
    given = RecoveryLog()
    given.begin(Fault.PROCESS, WORKER, 1, 10.0)
    given.set_reason(10.0, "restart 1 of 10 within 1 h")
    given.on_round(1, Strategy.IN_PLACE)
    given.revise(Fault.NODE, POD, "its pod is lost")
    (entry,) = given.newest()
    assert (entry.fault, entry.cause, entry.strategy, entry.detected_at) == (Fault.NODE, POD, None, 10.0)
    assert entry.reason == "its pod is lost"


def test_a_round_of_the_previous_coordinator_ended_the_recoveries_that_were_open_when_it_was_formed() -> None:
    given = RecoveryLog()
    given.begin(Fault.PROCESS, WORKER, 4, 10.0)
    given.begin(Fault.POD, POD, 5, 11.0)
    given.on_round_continued(4)
    assert [entry.round for entry in given.open] == [5]
    assert given.without_round() == given.open[0]


def test_a_recovery_whose_round_reached_no_remaining_member_is_still_open() -> None:
    # given a coordinator that was cut off, and formed round 5 with its own side only
    given = RecoveryLog()
    given.begin(Fault.POD, POD, 5, 11.0, "its pod is lost")
    given.on_round(5, Strategy.POD_RECREATE, "no spare was available")
    # when the members that elect the next coordinator come from round 4
    given.on_round_continued(4)
    # then that recovery has no strategy until the next round is formed
    assert given.without_round() == given.open[0]
    given.on_round(5, Strategy.POD_RECREATE, "no spare was available")
    (entry,) = given.newest()
    assert (entry.strategy, entry.reason) == (Strategy.POD_RECREATE, "its pod is lost; no spare was available")


@pytest.mark.parametrize(("fault", "blames"), [(Fault.PROCESS, True), (Fault.POD, False), (Fault.NODE, False)])
def test_only_a_worker_that_is_blamed_can_be_innocent(fault: Fault, blames: bool) -> None:
    given = RecoveryLog()
    given.begin(fault, WORKER, 1, 10.0)
    assert (given.newest_worker_fault() is not None) == blames


def test_faults_that_overlap_are_entries_of_their_own_and_end_together() -> None:
    given = RecoveryLog()
    given.begin(Fault.PROCESS, WORKER, 1, 10.0)
    given.on_round(1, Strategy.IN_PLACE)
    given.begin(Fault.POD, POD, 2, 11.0)
    given.on_round(2, Strategy.SPARE_SWAP)
    assert [(x.round, x.strategy) for x in given.on_step(2, 12.0)] == [(1, Strategy.IN_PLACE), (2, Strategy.SPARE_SWAP)]


def test_a_recovery_whose_round_stepped_before_its_coordinator_was_lost_ended_before_the_next_pause() -> None:
    """Found by the simulation (seed 1063573)."""
    # given an entry that is still open in the snapshot of the lost coordinator, and members that stepped in its round
    given = RecoveryLog()
    given.begin(Fault.POD, POD, 1, 10.0)
    given.on_round(1, Strategy.SPARE_SWAP)
    given.begin(Fault.POD, POD, 2, 30.0)
    given.on_round(2, Strategy.SPARE_SWAP, stepped=1)
    # when the next round steps after a pause from 29 to 31
    assert [(x.resumed_at, x.pause_s) for x in given.on_step(2, 31.0, 2.0)] == [(29.0, None), (31.0, 2.0)]


def test_a_recovery_whose_round_has_not_stepped_ends_with_the_next_one() -> None:
    # given a drained pod, before and after whose drain the old round stepped
    given = RecoveryLog()
    given.begin(Fault.POD, POD, 1, 10.0)
    given.on_round(1, Strategy.SPARE_SWAP, stepped=0)
    given.begin(Fault.POD, POD, 2, 12.0)
    given.on_round(2, Strategy.SPARE_SWAP, stepped=0)
    assert [(x.resumed_at, x.pause_s) for x in given.on_step(2, 13.0, 2.0)] == [(13.0, 2.0), (13.0, 2.0)]


def test_the_newest_entries_are_kept_and_all_are_counted() -> None:
    given = RecoveryLog()
    for number in range(KEPT + 5):
        given.begin(Fault.POD, POD, number, float(number))
        given.on_round(number, Strategy.SPARE_SWAP)
        given.on_step(number, number + 0.5)
    assert [x.round for x in given.newest()] == list(range(5, KEPT + 5))
    assert given.counts["SpareSwap"] == KEPT + 5


def a_failure(rank: int, message: str = "killed by SIGABRT") -> Cause:
    return Cause(rank, f"pod-{rank // 8}", "node", None, "SIGABRT", message)


def test_later_failures_of_a_round_are_consequences_of_its_fault() -> None:
    given = RecoveryLog()
    given.begin(Fault.PROCESS, WORKER, 1, 10.0)
    assert given.add_consequence(a_failure(8))
    assert given.add_consequence(a_failure(9))
    # when a member reports a failure again, and the first one too
    assert not given.add_consequence(a_failure(8))
    assert not given.add_consequence(WORKER)
    (entry,) = given.newest()
    assert entry.consequences == (
        Consequence(8, "pod-1", None, "SIGABRT", "killed by SIGABRT"),
        Consequence(9, "pod-1", None, "SIGABRT", "killed by SIGABRT"),
    )
    assert entry.consequence_count == 2


def test_a_failure_after_the_next_round_was_formed_is_no_consequence() -> None:
    given = RecoveryLog()
    assert not given.add_consequence(a_failure(8))
    given.begin(Fault.PROCESS, WORKER, 1, 10.0)
    given.on_round(1, Strategy.IN_PLACE)
    assert not given.add_consequence(a_failure(8))
    assert given.newest()[0].consequence_count == 0


def test_sixteen_consequences_are_listed_with_short_texts_and_all_are_counted() -> None:
    given = RecoveryLog()
    given.begin(Fault.PROCESS, WORKER, 1, 10.0)
    for rank in range(8, 28):
        given.add_consequence(a_failure(rank, "x" * 5000))
    (entry,) = given.newest()
    assert [x.rank for x in entry.consequences] == list(range(8, 24))
    assert {len(x.message) for x in entry.consequences} == {200}
    assert entry.consequence_count == 20


def test_a_worker_that_failed_earlier_makes_the_former_cause_a_consequence() -> None:
    given = RecoveryLog()
    given.begin(Fault.PROCESS, WORKER, 1, 10.0)
    given.set_cause(10.0, a_failure(8))
    (entry,) = given.newest()
    assert (entry.cause.rank, [x.rank for x in entry.consequences]) == (8, [3])


def test_the_loss_of_a_pod_makes_the_worker_that_failed_because_of_it_a_consequence() -> None:
    given = RecoveryLog()
    given.begin(Fault.PROCESS, WORKER, 1, 10.0)
    given.revise(Fault.POD, POD, "its pod is lost")
    (entry,) = given.newest()
    assert (entry.cause, [x.rank for x in entry.consequences]) == (POD, [3])


def test_the_first_step_of_a_round_reports_the_steps_that_it_repeats() -> None:
    given = RecoveryLog()
    given.begin(Fault.PROCESS, WORKER, 1, 10.0)
    given.on_round(1, Strategy.IN_PLACE)
    given.on_first_step(1, 7)
    (done,) = given.on_step(1, 11.0)
    assert done.lost_steps == 7
    # and the round after it does not change that
    given.on_first_step(2, 3)
    assert given.newest()[0].lost_steps == 7


def test_a_recovery_that_the_start_of_the_workers_has_ended_gets_its_lost_steps_too() -> None:
    given = RecoveryLog()
    given.begin(Fault.PROCESS, WORKER, 1, 10.0)
    given.on_round(1, Strategy.IN_PLACE)
    given.on_running(10.5)
    given.on_first_step(1, 7)
    assert given.newest()[0].lost_steps == 7


def test_the_next_coordinator_gets_an_open_recovery_without_the_texts_that_only_describe_it() -> None:
    given = RecoveryLog()
    given.begin(Fault.PROCESS, replace(WORKER, traceback="x" * 2000), 1, 10.0)
    given.add_consequence(a_failure(8))
    (brief,) = given.open_in_brief(5)
    assert (brief.cause, brief.consequences, brief.consequence_count) == (WORKER, (), 0)
    assert brief.detected_at == 10.0
