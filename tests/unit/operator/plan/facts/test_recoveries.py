"""The recoveries in status, over several coordinators."""

from dataclasses import replace

from tests.unit.operator.given import A0, A1, NOW, TIES, S, a_recovery, a_snapshot, after, in_round, member
from understudy_operator.plan.times.rfc3339 import micro_time
from understudy_protocol.enums import Fault, Strategy, Tier, WorkersState
from understudy_protocol.observer import Cause

RECOVERIES_KEPT = 10


def test_recoveries_are_counted_by_strategy_and_do_not_count_as_restarts():
    status = after(in_round(3), a_snapshot(counts={"InPlace": 2, "SpareSwap": 1, "PodRecreate": 1}))
    assert status["recoveriesByStrategy"] == {"inPlace": 2, "spareSwap": 1, "podRecreate": 1}
    assert (status["restarts"], status["restartsCountTowardsMax"]) == (0, 0)


def test_the_counts_do_not_change_while_no_coordinator_reports_them():
    before = after(in_round(3, restarts=1, restartsCountTowardsMax=1), a_snapshot(counts={"InPlace": 2}))
    status = after(before, None)
    assert status["recoveriesByStrategy"] == {"inPlace": 2}
    assert (status["restarts"], status["restartsCountTowardsMax"]) == (1, 1)


def test_a_recovery_is_reported_while_it_lasts_and_when_it_is_done():
    lasting = after(in_round(1), a_snapshot(recoveries=[a_recovery(strategy=None)]))
    done = after(lasting, a_snapshot(recoveries=[a_recovery(resumed_at=NOW)]))
    assert lasting["recoveries"] == [
        {
            "fault": "Process",
            "round": 1,
            "cause": {"rank": 8, "pod": "a1", "node": "node-a1", "signal": "SIGKILL", "message": "killed"},
            "detectedAt": micro_time(NOW - 2),
        }
    ]
    assert done["recoveries"] == [
        lasting["recoveries"][0] | {"strategy": "InPlace", "resumedAt": micro_time(NOW), "pauseSeconds": 2.0}
    ]
    assert done["lastRecovery"] == done["recoveries"][-1]


def test_seconds_are_those_that_a_pod_measured_between_its_two_steps():
    status = after(in_round(1), a_snapshot(recoveries=[a_recovery(resumed_at=NOW, pause_s=2.345)]))
    assert status["recoveries"][0]["pauseSeconds"] == 2.345


def test_without_steps_status_has_the_time_at_which_workers_run_again_and_no_seconds():
    running = a_recovery(running_at=NOW)
    status = after(in_round(1), a_snapshot(recoveries=[running]))
    assert status["phase"] == "Running"
    assert status["recoveries"][0]["runningAt"] == micro_time(NOW)
    assert not {"pauseSeconds", "resumedAt"} & status["recoveries"][0].keys()
    # and a later first step is added
    stepped = after(status, a_snapshot(recoveries=[a_recovery(running_at=NOW, resumed_at=NOW + 3)]), NOW + 3)
    assert stepped["recoveries"][0]["resumedAt"] == micro_time(NOW + 3)


def test_recoveries_of_previous_coordinators_stay_and_the_newest_ten_are_kept():
    old = [a_recovery(NOW - 1000 + i, NOW - 999.5 + i, round=i) for i in range(9)]
    new = [a_recovery(NOW - 100 + i, NOW - 99.5 + i, round=9 + i) for i in range(3)]
    before = after(in_round(9), a_snapshot(recoveries=old))
    status = after(before, a_snapshot(epoch=2, recoveries=new))
    assert len(status["recoveries"]) == RECOVERIES_KEPT
    assert [entry["round"] for entry in status["recoveries"]] == list(range(2, 12))
    assert after(status, a_snapshot(epoch=2, recoveries=new)) == status


def test_two_faults_of_the_same_moment_are_two_entries():
    status = after(in_round(1), a_snapshot(recoveries=TIES))
    assert [entry["cause"]["pod"] for entry in status["recoveries"]] == ["a0", "a1"]
    assert after(status, a_snapshot(recoveries=TIES)) == status


def test_a_cause_that_is_revised_stays_one_entry():
    before = after(in_round(1), a_snapshot(recoveries=[a_recovery()]))
    revised = a_recovery(fault=Fault.NODE, cause=Cause(0, "a0", "node-a0", None, None, "silent"))
    status = after(before, a_snapshot(recoveries=[revised]))
    assert [(entry["fault"], entry["cause"]["pod"]) for entry in status["recoveries"]] == [("Node", "a0")]


def test_the_reason_of_the_strategy_is_reported():
    reason = "pod a1 failed twice within 1 h"
    status = after(in_round(1), a_snapshot(recoveries=[a_recovery(reason=reason)]))
    assert status["recoveries"][0]["reason"] == reason


def test_an_ended_recovery_stays_although_the_next_coordinator_continues_it():
    """Its coordinator was lost before it had reported the end to its standby coordinators."""
    ended = after(in_round(1), a_snapshot(recoveries=[a_recovery(NOW - 5, NOW - 4)], number=1))
    status = after(ended, a_snapshot(recoveries=[a_recovery(NOW - 5, strategy=None)], number=1, epoch=2), NOW + 60)
    assert status["recoveries"] == ended["recoveries"]


def test_a_recovery_that_outlasts_its_coordinator_is_one_entry_with_its_cause_and_final_strategy():
    # given a lost pod, and a coordinator that stepped down before any member could take its ranks
    gone = Cause(8, "a1", "node-a1", None, None, "its connection ended")
    lost = a_recovery(NOW - 30, fault=Fault.POD, cause=gone, strategy=None)
    before = after(in_round(1), a_snapshot(recoveries=[lost], waiting_for="1 of 2 pods"))
    # when the next coordinator, which has inherited the recovery, forms a round that steps
    fixed = a_recovery(NOW - 30, NOW, fault=Fault.POD, cause=gone, strategy=Strategy.POD_RECREATE)
    status = after(before, a_snapshot(recoveries=[fixed], number=2, epoch=2))
    assert [(x["cause"]["pod"], x["strategy"], x["pauseSeconds"]) for x in status["recoveries"]] == [
        ("a1", "PodRecreate", 30.0)
    ]


def test_a_recovery_whose_coordinator_was_lost_ends_when_the_next_one_reports_that_all_workers_run():
    # given a coordinator that was lost after it had formed the next round, and a successor without the recovery
    before = after(in_round(1), a_snapshot(recoveries=[a_recovery(NOW - 5)], number=1))
    starts = [member(A0, 0, WorkersState.STARTING), member(A1, 1), member(S, None)]
    assert after(before, a_snapshot(starts, number=1, epoch=2))["phase"] == "Recovering"
    status = after(before, a_snapshot(number=1, epoch=2))
    assert status["phase"] == "Running"
    # and status has no seconds, which no pod has measured
    assert status["lastRecovery"]["runningAt"] == micro_time(NOW)
    assert "pauseSeconds" not in status["lastRecovery"]
    assert after(status, a_snapshot(number=1, epoch=2), NOW + 60) == status


def test_a_recovery_that_ends_without_a_strategy_has_the_reason():
    # given a coordinator that was lost before it had formed the next round, and a successor without the recovery
    before = after(in_round(1), a_snapshot(recoveries=[a_recovery(NOW - 5, strategy=None)], waiting_for="1 of 2 pods"))
    status = after(before, a_snapshot(number=2, epoch=2))
    assert status["lastRecovery"]["runningAt"] == micro_time(NOW)
    assert "strategy" not in status["lastRecovery"]
    assert status["lastRecovery"]["reason"] == (
        "the strategy is unknown: the coordinator that reported the fault was lost"
    )


def test_the_tier_and_the_lost_steps_of_a_job_with_snapshots_are_reported():
    restored = replace(a_recovery(resumed_at=NOW), tier=Tier.MEMORY, lost_steps=1)
    (entry,) = after(in_round(1), a_snapshot(recoveries=[restored]))["recoveries"]
    assert (entry["restoredFrom"], entry["lostSteps"], "restoreReason" in entry) == ("Memory", 1, False)
