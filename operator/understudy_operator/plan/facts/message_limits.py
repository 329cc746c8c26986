"""Limits the messages of a coordinator before a decision uses them: their values and clock are another machine's.

Rules:
- The operator accepts a time that is at most AHEAD_S ahead of its own clock, because clocks differ. If a time is
  further ahead, the operator replaces it by the time at which the message first arrived, and keeps this replacement:
  the time of a recovery identifies the recovery.
- A number that does not fit into status ends the connection: WireError names it. A number that only describes a fault
  is dropped.
- Of the recoveries and the blocked replicas, the operator reads as many as an honest coordinator sends. The CPU time of
  a reconcile, which works on them, is not limited as that of the messages (runtime/line.py).
- Texts are cut to a readable length: the operator writes them to status, conditions and events, in its own name and as
  often as a coordinator changes them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from understudy_operator.plan.facts.recoveries import RECOVERIES_KEPT
from understudy_operator.plan.times.rfc3339 import LAST
from understudy_protocol.enums import Strategy
from understudy_protocol.observer import (
    ForkFallbacks,
    Lost,
    MemberView,
    Recovery,
    Refused,
    SlowRank,
    Snapshot,
    SnapshotTime,
    Stepping,
    StepProgress,
)
from understudy_protocol.recovery import (
    MAX_CONSEQUENCE_CHARS,
    MAX_CONSEQUENCES,
    MAX_TRACEBACK_CHARS,
    Cause,
    Consequence,
)
from understudy_protocol.rollouts import Rollouts
from understudy_protocol.wire import WireError

AHEAD_S = 300.0
TEXT_CHARACTERS = 2000
#: As in understudy_rollout.update_reports.
MAX_BLOCKED_NAMED = 64
#: The largest JSON number, and the largest int32 of the CRD.
_MOST, _MOST_COUNT = 2**53, 2**31 - 1
#: Each attempt of a job has a greater epoch as its name than the one before: there have to be enough epochs.
_MOST_EPOCH = 2**52


class MessageLimits:
    """The limits for the messages of one job's coordinators."""

    def __init__(self) -> None:
        self._first_received: dict[float, float] = {}  # times far ahead -> when they were first received

    def apply(self, message: object, now: float) -> object:
        """The message within the limits. Raises WireError."""
        match message:
            case Snapshot():
                return self._snapshot(message, now)
            case Stepping(progress):
                return Stepping(_progress(progress, now))
            case Refused():
                return replace(
                    message, reason=_cut(message.reason), replacement_reason=_cut(message.replacement_reason)
                )
            case _:
                return message

    def _snapshot(self, snapshot: Snapshot, now: float) -> Snapshot:
        token, closed = snapshot.token, snapshot.closed
        _check("epoch", (token.epoch,), _MOST_EPOCH)
        _check("token", (token.term, token.round), _MOST)
        _check("members", (number for member in snapshot.members for number in _numbers(member)), _MOST_COUNT)
        _check("actives", (snapshot.actives,), _MOST_COUNT)
        limited = replace(
            snapshot,
            lost=tuple(self._lost(lost, now) for lost in snapshot.lost),
            recoveries=tuple(self._recovery(recovery, now) for recovery in snapshot.recoveries[-RECOVERIES_KEPT:]),
            recoveries_by_strategy=_by_strategy(snapshot.recoveries_by_strategy),
            progress=None if snapshot.progress is None else _progress(snapshot.progress, now),
            waiting_for=_cut(snapshot.waiting_for),
            closed=None if closed is None else replace(closed, message=_cut(closed.message)),
            rollouts=None if snapshot.rollouts is None else self._rollouts(snapshot.rollouts, now),
            stepping_since=None if snapshot.stepping_since is None else min(max(0.0, snapshot.stepping_since), now),
            fork_fallbacks=None if snapshot.fork_fallbacks is None else _fresh_starts(snapshot.fork_fallbacks),
            slow_rank=None if snapshot.slow_rank is None else _slow_rank(snapshot.slow_rank, now),
        )
        self._forget(snapshot)
        return limited

    def _lost(self, lost: Lost, now: float) -> Lost:
        return replace(lost, at=self._time(lost.at, now), reason=_cut(lost.reason))

    def _recovery(self, recovery: Recovery, now: float) -> Recovery:
        _check("recoveries.round", (recovery.round,), _MOST)
        return replace(
            recovery,
            cause=_cause(recovery.cause),
            reason=_cut(recovery.reason),
            detected_at=self._time(recovery.detected_at, now),
            resumed_at=None if recovery.resumed_at is None else self._time(recovery.resumed_at, now),
            running_at=None if recovery.running_at is None else self._time(recovery.running_at, now),
            pause_s=None if recovery.pause_s is None else min(max(0.0, recovery.pause_s), LAST),
            consequences=tuple(_consequence(x) for x in recovery.consequences[:MAX_CONSEQUENCES]),
            consequence_count=min(max(0, recovery.consequence_count), _MOST_COUNT),
            lost_steps=None if recovery.lost_steps is None else min(max(0, recovery.lost_steps), _MOST),
            tier_reason=_cut(recovery.tier_reason),
            vacant_until=None if recovery.vacant_until is None else min(max(0.0, recovery.vacant_until), now),
            caught_up_at=None if recovery.caught_up_at is None else min(max(0.0, recovery.caught_up_at), now),
        )

    def _rollouts(self, rollouts: Rollouts, now: float) -> Rollouts:
        _check("rollouts", (rollouts.fresh, rollouts.updating, rollouts.uncertain), _MOST_COUNT)
        failure = rollouts.failure
        if failure is not None:
            _check("rollouts.failure.in_a_row", (failure.in_a_row,), _MOST_COUNT)
            failure = replace(
                failure,
                update=_cut(failure.update),
                version=_cut(failure.version),
                message=_cut(failure.message),
                at=self._time(failure.at, now),
                blocked=tuple(map(_cut, failure.blocked[:MAX_BLOCKED_NAMED])),
            )
        cause = None if rollouts.cause is None else _cause(rollouts.cause)
        return replace(rollouts, version=_cut(rollouts.version), failure=failure, cause=cause)

    def _time(self, at: float, now: float) -> float:
        return max(0.0, at) if at <= now + AHEAD_S else self._first_received.setdefault(at, now)

    def _forget(self, snapshot: Snapshot) -> None:
        """Drop times that the newest snapshot does not have."""
        if not self._first_received:
            return
        sent = {lost.at for lost in snapshot.lost}
        for recovery in snapshot.recoveries:
            sent |= {at for at in (recovery.detected_at, recovery.resumed_at, recovery.running_at) if at is not None}
        if snapshot.rollouts is not None and snapshot.rollouts.failure is not None:
            sent.add(snapshot.rollouts.failure.at)
        self._first_received = {at: first for at, first in self._first_received.items() if at in sent}


def _progress(progress: StepProgress, now: float) -> StepProgress:
    _check("progress", (progress.step, progress.total or 0), _MOST)
    return replace(
        progress,
        at=min(max(0.0, progress.at), now + AHEAD_S),
        snapshot=None if progress.snapshot is None else _snapshot_time(progress.snapshot, now),
        copied=None if progress.copied is None else _snapshot_time(progress.copied, now),
    )


def _snapshot_time(snapshot: SnapshotTime, now: float) -> SnapshotTime:
    _check("progress.snapshot", (snapshot.step,), _MOST)
    return replace(snapshot, at=min(max(0.0, snapshot.at), now + AHEAD_S))


def _cause(cause: Cause) -> Cause:
    """Drop numbers beyond the limits: they only describe the fault."""
    rank, exit_code = (number if _fits(number, _MOST_COUNT) else None for number in (cause.rank, cause.exit_code))
    return replace(
        cause,
        pod=_cut(cause.pod),
        node=_cut(cause.node),
        rank=rank,
        exit_code=exit_code,
        signal=None if cause.signal is None else _cut(cause.signal),
        message=_cut(cause.message),
        traceback=cause.traceback[-MAX_TRACEBACK_CHARS:],
    )


def _consequence(found: Consequence) -> Consequence:
    return replace(
        found,
        rank=min(max(0, found.rank), _MOST_COUNT),
        pod=_cut(found.pod),
        exit_code=found.exit_code if _fits(found.exit_code, _MOST_COUNT) else None,
        signal=None if found.signal is None else found.signal[:MAX_CONSEQUENCE_CHARS],
        message=found.message[:MAX_CONSEQUENCE_CHARS],
    )


def _fresh_starts(fresh_starts: ForkFallbacks) -> ForkFallbacks:
    _check("fork_fallbacks", (fresh_starts.pods,), _MOST_COUNT)
    return replace(fresh_starts, pod_name=_cut(fresh_starts.pod_name), reason=_cut(fresh_starts.reason))


def _slow_rank(found: SlowRank, now: float) -> SlowRank:
    _check("slow_rank", (found.rank, found.percent), _MOST_COUNT)
    return replace(
        found,
        pod_name=_cut(found.pod_name),
        node=_cut(found.node),
        late_s=min(max(0.0, found.late_s), LAST),
        since=min(max(0.0, found.since), now),
    )


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS else text[: TEXT_CHARACTERS - 1] + "…"


def _by_strategy(reported: Mapping[str, int]) -> dict[str, int]:
    counts = {strategy.value: reported.get(strategy.value, -1) for strategy in Strategy}
    return {name: count for name, count in counts.items() if 0 <= count <= _MOST_COUNT}


def _numbers(member: MemberView) -> tuple[int, int]:
    return member.index or 0, member.group_rank or 0


def _fits(number: int | None, most: int) -> bool:
    return number is None or -most <= number <= most


def _check(field: str, numbers: Iterable[int], most: int) -> None:
    for number in numbers:
        if not _fits(number, most):
            raise WireError(f"Snapshot.{field}: expected at most {most}, got {number}")
