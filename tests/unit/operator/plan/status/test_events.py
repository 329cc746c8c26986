"""Each change is reported by one event, whatever reconciles follow."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.unit.operator.given import (
    FAILED,
    LEADERSHIP,
    NOW,
    SUCCEEDED,
    TIES,
    WAITING,
    S,
    a_job,
    a_recovery,
    a_snapshot,
    a_status,
    after,
    in_round,
    observed,
    status_of,
)
from understudy_operator.plan.intents import Event
from understudy_operator.plan.leadership.coordination import Leadership
from understudy_operator.plan.status.events import plan_events, recorded_events
from understudy_operator.plan.times.rfc3339 import micro_time
from understudy_protocol.enums import Strategy, Tier
from understudy_protocol.observer import Cause, Recovery, Snapshot


def events(before: Mapping[str, Any], snapshot: Snapshot | None = None, **changes: Any) -> list[Event]:
    given = observed(a_job(status=before), snapshot=snapshot, **changes)
    return list(plan_events(given, LEADERSHIP, a_status(status_of(given))))


def reconcile_all(*snapshots: Snapshot | None) -> list[list[str]]:
    """The events of consecutive reconciles of a running job, each of which writes its status."""
    status: Mapping[str, Any] = in_round(0)
    result = []
    for snapshot in snapshots:
        result.append([f"{event.reason}: {event.message}" for event in events(status, snapshot)])
        status = after(status, snapshot)
    return result


def test_a_fault_is_reported_once_and_its_recovery_once():
    detected = a_snapshot(recoveries=[a_recovery(strategy=None)])
    formed = a_snapshot(recoveries=[a_recovery(strategy=Strategy.IN_PLACE)], number=1)
    resumed = a_snapshot(recoveries=[a_recovery(resumed_at=NOW)], number=1)
    assert reconcile_all(detected, detected, formed, resumed, resumed, None, resumed) == [
        ["FaultDetected: Process: rank 8 on a1 (node node-a1): killed"],
        [],
        [],
        ["Recovered: InPlace in 2.0 s, round 1: rank 8 on a1 (node node-a1): killed"],
        [],
        [],
        [],
    ]


def test_a_pod_that_proves_to_have_failed_first_is_reported_once():
    # given a fault whose first report was about a peer
    peer = a_recovery(strategy=None)
    # when the coordinator learns of the exception of another pod
    raised = Cause(0, "a0", "node-a0", None, None, "ValueError: a wrong digest")
    detected, revised = a_snapshot(recoveries=[peer]), a_snapshot(recoveries=[replace(peer, cause=raised)])
    resumed = a_snapshot(recoveries=[replace(a_recovery(resumed_at=NOW), cause=raised)], number=1)
    # then there is another event about this fault
    text = "rank 0 on a0 (node node-a0): ValueError: a wrong digest"
    assert reconcile_all(detected, revised, revised, resumed) == [
        ["FaultDetected: Process: rank 8 on a1 (node node-a1): killed"],
        [f"FaultDetected: Process: {text}; it failed before rank 8 on a1"],
        [],
        [f"Recovered: InPlace in 2.0 s, round 1: {text}"],
    ]


def test_a_recovery_is_reported_with_its_reason():
    reason = "pod a1 failed twice within 1 h"
    resumed = a_snapshot(recoveries=[a_recovery(resumed_at=NOW, strategy=Strategy.SPARE_SWAP, reason=reason)], number=1)
    (_, result) = reconcile_all(resumed)[0]
    assert result == f"Recovered: SpareSwap in 2.0 s, round 1: rank 8 on a1 (node node-a1): killed ({reason})"


def test_a_recovery_of_a_job_with_snapshots_is_reported_with_its_tier_and_lost_steps():
    recovery = a_recovery(resumed_at=NOW, strategy=Strategy.SPARE_SWAP)
    restored = replace(recovery, tier=Tier.STORAGE, tier_reason="spare-0 has no snapshot of its ranks", lost_steps=7)
    (_, result) = reconcile_all(a_snapshot(recoveries=[restored], number=1))[0]
    assert result.endswith("; restored from Storage: spare-0 has no snapshot of its ranks, lost steps: 7")


def test_each_of_several_faults_of_the_same_moment_is_reported_with_its_recovery():
    def resumed(recovery: Recovery) -> Recovery:
        return replace(recovery, strategy=Strategy.SPARE_SWAP, resumed_at=NOW + 1)

    first, both = a_snapshot(recoveries=TIES[:1]), a_snapshot(recoveries=TIES)
    done = a_snapshot(recoveries=[resumed(x) for x in TIES], number=1)
    assert [[text.partition(":")[0] for text in texts] for texts in reconcile_all(first, both, both, done, done)] == [
        ["FaultDetected"],
        ["FaultDetected"],
        [],
        ["Recovered", "Recovered"],
        [],
    ]


def test_a_recovery_with_an_unknown_strategy_is_reported_too():
    lasting = a_snapshot(recoveries=[a_recovery(strategy=None)], waiting_for=WAITING)
    assert [len(texts) for texts in reconcile_all(lasting, a_snapshot(epoch=2), a_snapshot(epoch=2))] == [1, 1, 0]


def test_a_new_leader_reports_recent_entries_of_status_again():
    # given a fault with a completed recovery, and an open one
    is_done = a_recovery(NOW - 300, resumed_at=NOW - 298, strategy=Strategy.IN_PLACE)
    status = after(in_round(0), a_snapshot(recoveries=[is_done, a_recovery(NOW - 2, strategy=None)], number=1))
    first_reported = events(in_round(0), a_snapshot(recoveries=[is_done], number=1))

    # then another leader reports them under the same keys, so that each is written once
    result = recorded_events(a_status(status), NOW)
    assert [event.reason for event in result] == ["FaultDetected", "Recovered", "FaultDetected"]
    assert first_reported == list(result[:2])
    assert len({(event.reason, event.key) for event in result}) == 3

    # but nothing older than ten minutes
    assert [event.reason for event in recorded_events(a_status(status), NOW + 305)] == ["FaultDetected"]
    assert recorded_events(a_status(status), NOW + 3600) == ()


def test_a_new_leader_reports_the_end_and_a_restart_again():
    ended = after(in_round(0), a_snapshot(closed=FAILED))
    assert recorded_events(a_status(ended), NOW) == (Event("Warning", "Failed", FAILED.message, "end"),)
    entry = {"detectedAt": micro_time(NOW), "fault": "Process", "strategy": "JobRestart", "reason": "rule a, restart 1"}
    restarted = {"recoveries": [{**entry, "cause": {"message": "x"}}], "recoveriesByStrategy": {"jobRestart": 1}}
    assert recorded_events(a_status(restarted), NOW) == (
        Event("Warning", "JobRestart", "rule a, restart 1", "restart 1"),
    )


def test_an_election_is_reported_once_also_one_that_no_operator_observed():
    def is_reported(before: Mapping[str, Any], term: int) -> list[str]:
        given = observed(a_job(status=before), snapshot=a_snapshot(term=term))
        return [event.message for event in plan_events(given, Leadership(1, term, S, ""), a_status(status_of(given)))]

    assert is_reported(in_round(0, term=1), 2) == ["s was elected coordinator (term 2 of epoch 1)"]
    assert is_reported(in_round(0, term=2), 5) == ["s was elected coordinator (term 5 of epoch 1)"]
    assert is_reported(in_round(0, term=2), 2) == is_reported(in_round(0, term=0), 1) == []
    # also if the coordinator was appointed, and no operator has heard of it before the election
    assert is_reported(in_round(0, term=0), 2) == ["s was elected coordinator (term 2 of epoch 1)"]


def test_the_start_the_leadership_and_the_end_are_reported_once():
    given = observed(a_job(), snapshot=a_snapshot())
    term = Leadership(1, 1, S, "the job starts")
    result = plan_events(given, term, a_status(status_of(given, term)))
    assert result == (
        Event(
            "Normal", "CoordinatorAppointed", "the operator appointed s as the coordinator (epoch 1): the job starts"
        ),
        Event("Normal", "Started", "round 0 started with all ranks"),
    )
    closed = a_snapshot(closed=SUCCEEDED)
    status = after(in_round(0), closed)
    assert events(in_round(0), closed) == [Event("Normal", "Completed", SUCCEEDED.message, "end")]
    assert events(status, closed) == events(status) == []
    assert events(in_round(0), a_snapshot(closed=FAILED)) == [Event("Warning", "Failed", FAILED.message, "end")]
