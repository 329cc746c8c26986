"""The operator applies limits to a coordinator's messages before it decides anything."""

from dataclasses import replace

import pytest

from tests.unit.operator.given import A0, NOW, a_recovery, a_snapshot, after, in_round, lost, member
from understudy_operator.plan.facts.message_limits import MessageLimits
from understudy_operator.plan.facts.recoveries import merge_history
from understudy_operator.plan.times.rfc3339 import micro_time, parse_time, whole_seconds
from understudy_protocol.enums import CloseReason, RoundToken
from understudy_protocol.membership import Close
from understudy_protocol.observer import (
    Cause,
    Consequence,
    ForkFallbacks,
    Refused,
    SlowRank,
    Snapshot,
    SnapshotTime,
    Stepping,
    StepProgress,
)
from understudy_protocol.rollouts import Rollouts, UpdateFailure
from understudy_protocol.wire import WireError

THREE_YEARS_S = 3 * 365 * 86400.0


def limited(snapshot: Snapshot, by: MessageLimits | None = None, now: float = NOW) -> Snapshot:
    message = (by or MessageLimits()).apply(snapshot, now)
    assert isinstance(message, Snapshot)
    return message


def test_an_ordinary_snapshot_is_not_changed() -> None:
    progress = StepProgress(7, 100, NOW - 1)
    snapshot = a_snapshot(recoveries=[a_recovery(NOW + 2.0, NOW + 3.0)], lost=[lost(A0)], progress=progress)
    assert limited(snapshot) == snapshot


def test_a_time_far_ahead_is_replaced_by_the_time_of_its_first_receipt() -> None:
    # given a coordinator whose clock is three years ahead
    by, snapshot = MessageLimits(), a_snapshot(recoveries=[a_recovery(NOW + THREE_YEARS_S)])
    # when it sends the same recovery again and again, then this stays one recovery
    first, second = limited(snapshot, by, NOW), limited(snapshot, by, NOW + 60.0)
    assert first.recoveries[0].detected_at == second.recoveries[0].detected_at == NOW
    status = merge_history(merge_history([], first, NOW), second, NOW)
    assert [entry.detected_at for entry in status] == [micro_time(NOW)]


def test_the_details_of_a_fault_are_cut() -> None:
    # given a coordinator that sends more than a Recovery object may have
    consequence = Consequence(2**40, "p" * 3000, 2**40, "S" * 300, "m" * 300)
    cause = replace(a_recovery().cause, traceback="first" + "t" * 2000)
    sent = a_recovery(cause=cause, consequences=(consequence,) * 20, consequence_count=-1, lost_steps=-5)
    (result,) = limited(a_snapshot(recoveries=[sent])).recoveries
    assert result.cause.traceback == "t" * 2000
    assert len(result.consequences) == 16
    listed = result.consequences[0]
    assert (listed.rank, listed.exit_code, len(listed.signal or ""), len(listed.message)) == (2**31 - 1, None, 200, 200)
    assert len(listed.pod) == 2000
    assert (result.consequence_count, result.lost_steps) == (0, 0)


def test_entries_that_are_no_longer_sent_are_not_kept() -> None:
    by = MessageLimits()
    for number in range(100):
        limited(a_snapshot(recoveries=[a_recovery(NOW + THREE_YEARS_S + number)]), by, NOW + number)
    assert len(by._first_received) == 1


@pytest.mark.attack(
    "B2",
    "a coordinator reports 2,000 faults of the same moment",
    before="each reconcile of its job took 0.15 s more, in which the operator did nothing for other jobs",
)
def test_of_the_recoveries_the_newest_ten_are_read() -> None:
    sent = [replace(a_recovery(NOW), round=number) for number in range(2000)]
    assert [recovery.round for recovery in limited(a_snapshot(recoveries=sent)).recoveries] == [*range(1990, 2000)]


@pytest.mark.attack(
    "B2",
    "a coordinator names 30,000 blocked replicas",
    before="each reconcile compared all of them with each rollout of the job",
)
def test_of_the_blocked_replicas_64_are_read() -> None:
    failure = UpdateFailure("u", "v", "m", 1, NOW, tuple(f"rollouts-{number}" for number in range(30_000)))
    result = limited(a_snapshot(rollouts=Rollouts(0, 0, 1, "", failure))).rollouts
    assert result is not None
    assert result.failure is not None
    assert result.failure.blocked == tuple(f"rollouts-{number}" for number in range(64))


@pytest.mark.parametrize("at", [-1e300, -1.0, 1e18, 1.7e308])
def test_all_times_are_within_the_writable_range(at: float) -> None:
    cause = Cause(None, "p", "n", None, None, "")
    rollouts = Rollouts(0, 0, 0, "", UpdateFailure("u", "v", "m", 1, at), cause)
    snapshot = a_snapshot(
        recoveries=[a_recovery(at, at, pause_s=at, running_at=at)],
        lost=[lost(A0, at=at)],
        progress=StepProgress(1, None, at),
        rollouts=rollouts,
    )
    result = limited(snapshot)
    assert result.progress is not None
    assert result.rollouts is not None
    assert result.rollouts.failure is not None
    times = (result.recoveries[0].detected_at, result.lost[0].at, result.progress.at, result.rollouts.failure.at)
    assert all(0.0 <= time <= NOW + 300.0 for time in times)
    saved = SnapshotTime(1, at)
    stepping = MessageLimits().apply(Stepping(StepProgress(1, None, at, snapshot=saved, copied=saved)), NOW)
    assert isinstance(stepping, Stepping)
    progress = stepping.progress
    assert progress.snapshot is not None
    assert progress.copied is not None
    assert all(0.0 <= time <= NOW + 300.0 for time in (progress.at, progress.snapshot.at, progress.copied.at))


@pytest.mark.parametrize(
    "snapshot",
    [
        replace(a_snapshot(), token=RoundToken(2**60, 1, 0)),
        replace(a_snapshot(), token=RoundToken(2**52 + 1, 1, 0)),
        replace(a_snapshot(), token=RoundToken(1, 1, -(2**60))),
        a_snapshot(members=[replace(member(A0, 0), group_rank=2**40)]),
        a_snapshot(members=[replace(member(A0, 0), index=-(2**40))]),
        a_snapshot(progress=StepProgress(2**60, None, NOW)),
        a_snapshot(progress=StepProgress(1, None, NOW, snapshot=SnapshotTime(2**60, NOW))),
        a_snapshot(progress=StepProgress(1, None, NOW, copied=SnapshotTime(2**60, NOW))),
        a_snapshot(recoveries=[replace(a_recovery(), round=2**60)]),
        replace(a_snapshot(), actives=2**40),
    ],
    ids=[
        "epoch",
        "epoch that leaves none for later attempts",
        "round",
        "group rank",
        "index",
        "step",
        "step of a snapshot",
        "step of a copied snapshot",
        "round of a recovery",
        "actives",
    ],
)
def test_numbers_that_status_cannot_hold_end_the_line(snapshot: Snapshot) -> None:
    with pytest.raises(WireError, match=r"Snapshot\.\w+.*: expected at most"):
        MessageLimits().apply(snapshot, NOW)


def test_descriptive_fields_of_a_fault_are_dropped_or_truncated() -> None:
    cause = Cause(2**40, "p", "n", -(2**40), None, "x" * 10_000)
    result = limited(
        a_snapshot(recoveries=[a_recovery(cause=cause)], counts={"Other": 1, "InPlace": 2, "SpareSwap": -1})
    )
    assert (result.recoveries[0].cause.rank, result.recoveries[0].cause.exit_code) == (None, None)
    assert len(result.recoveries[0].cause.message) == 2000
    assert result.recoveries_by_strategy == {"InPlace": 2}
    refused = MessageLimits().apply(Refused("x" * 10_000), NOW)
    assert isinstance(refused, Refused)
    assert len(refused.reason) == 2000


@pytest.mark.attack(
    "B2",
    "a coordinator reports texts of 100,000 characters",
    before="the operator wrote them to the API server, with each change of status again",
)
def test_long_texts_are_truncated() -> None:
    text = "x" * 100_000
    cause = Cause(0, text, text, 1, text, text)
    snapshot = a_snapshot(
        recoveries=[a_recovery(cause=cause, reason=text) for _ in range(10)],
        waiting_for=text,
        closed=Close(CloseReason.FAILED, text),
        rollouts=Rollouts(0, 0, 0, text, UpdateFailure(text, text, text, 1, NOW), cause),
        lost=[lost(A0, reason=text)],
    )
    cut = limited(replace(snapshot, fork_fallbacks=ForkFallbacks(1, text, text)))
    assert len(repr(cut)) < 150_000
    assert len(str(after(in_round(1), cut))) < 150_000
    assert cut.waiting_for == "x" * 1999 + "…"


def test_a_slow_rank_is_limited() -> None:
    text = "x" * 100_000
    cut = limited(replace(a_snapshot(), slow_rank=SlowRank(3, text, text, 150, -1.0, 1e300))).slow_rank
    assert cut is not None
    assert (len(cut.pod_name), len(cut.node), cut.late_s, cut.since) == (2000, 2000, 0.0, NOW)
    with pytest.raises(WireError, match="slow_rank"):
        limited(replace(a_snapshot(), slow_rank=SlowRank(1 << 40, "", "", 150, 0.1, NOW)))


@pytest.mark.attack("B2", "a coordinator counts recoveries of a thousand strategies", before="each was a key in status")
def test_only_known_strategies_are_counted() -> None:
    counts = {"InPlace": 2, "": 1, **{f"Later{number}": 1 for number in range(1000)}}
    assert after(in_round(1), a_snapshot(counts=counts))["recoveriesByStrategy"] == {"inPlace": 2}


@pytest.mark.parametrize("at", [float("inf"), float("-inf"), float("nan"), 1e300, -1e300])
def test_every_number_can_be_written_as_a_time(at: float) -> None:
    assert 0.0 <= parse_time(micro_time(at)) <= 253402300799.0
    assert 0.0 <= parse_time(whole_seconds(at)) <= 253402300799.0


@pytest.mark.parametrize("text", ["", "soon", "0000-01-01T00:00:00Z", "2026-13-01T00:00:00Z", 3, None, "9" * 5000])
def test_a_text_that_is_no_time_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        parse_time(text)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-01-01", "0001-01-01"])
def test_every_time_that_can_be_reported_can_be_read(text: str) -> None:
    assert isinstance(parse_time(text), float)
