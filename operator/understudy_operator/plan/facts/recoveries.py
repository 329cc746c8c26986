"""The recoveries in status: the newest ten, over all coordinators that the job has had.

Rules: the coordinator's report of a fault replaces the recorded one, unless that recovery has ended: a new coordinator
may continue one without knowing that it has ended. Faults of the same moment (two nodes became silent) are separate
entries, and an entry stays when its cause is revised: so its time and its place among the entries of that time identify
it. An entry may have been open when its coordinator was lost, and the new coordinator may not report it. Such an entry
ends when the new coordinator reports that all workers run: nothing else ends it.

An entry has ended once it has `resumedAt` or, in a job whose workers report no steps, `runningAt`. `pauseSeconds` is
how long training paused, measured by a pod that made the last step before the fault and the first one after it; if no
such pod is left, the time from `detectedAt` to `resumedAt`. Without a step there is no number.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from understudy_operator.plan.facts.status import CauseStatus, JobStatus, RecoveryStatus
from understudy_operator.plan.times.rfc3339 import micro_time
from understudy_protocol.enums import Fault, Strategy, WorkersState
from understudy_protocol.observer import Cause, Recovery, Snapshot

RECOVERIES_KEPT = 10
#: The reason of an entry that ends without a strategy.
STRATEGY_UNKNOWN = "the strategy is unknown: the coordinator that reported the fault was lost"
AT_WORK = (WorkersState.RUNNING, WorkersState.FINISHED)


def merge_history(before: Sequence[RecoveryStatus], snapshot: Snapshot, now: float) -> list[RecoveryStatus]:
    """The entries of status after this snapshot, the oldest first."""
    recorded = identified(before)
    entries = identified(_entry(recovery) for recovery in snapshot.recoveries)
    reported = [_newer(recorded.get(identity), entry) for identity, entry in entries.items()]
    times = {entry.detected_at for entry in reported}
    orphans = [entry for entry in before if entry.detected_at not in times]
    if all_at_work(snapshot):
        orphans = [entry if is_of_rollouts(entry) else _ended(entry, now) for entry in orphans]
    return sorted([*orphans, *reported], key=lambda entry: entry.detected_at)[-RECOVERIES_KEPT:]


def with_recoveries(status: JobStatus, recoveries: tuple[RecoveryStatus, ...]) -> JobStatus:
    """The status with the newest of these recoveries, the oldest first."""
    kept = recoveries[-RECOVERIES_KEPT:]
    return replace(status, recoveries=kept, last_recovery=kept[-1] if kept else None)


def is_of_rollouts(entry: RecoveryStatus) -> bool:
    """Whether rollouts are recreated while training goes on: a complete update ends such a recovery, and a step does
    not.
    """
    return (entry.fault, entry.strategy) == (Fault.WEIGHT_UPDATE, Strategy.POD_RECREATE.value)


def cause_status(cause: Cause) -> CauseStatus:
    return CauseStatus(cause.rank, cause.pod, cause.node, cause.exit_code, cause.signal, cause.message)


def identified(entries: Iterable[RecoveryStatus]) -> dict[tuple[str, int], RecoveryStatus]:
    """The entries by identity: time, and place among those of that time."""
    seen: Counter[str] = Counter()
    found = dict[tuple[str, int], RecoveryStatus]()
    for entry in entries:
        at = entry.detected_at
        found[at, seen[at]] = entry
        seen[at] += 1
    return found


def all_at_work(snapshot: Snapshot) -> bool:
    """Whether the workers of all ranks run, or have finished."""
    rank_holders = [member for member in snapshot.members if member.group_rank is not None]
    return bool(rank_holders) and not snapshot.waiting_for and all(member.workers in AT_WORK for member in rank_holders)


def _ended(entry: RecoveryStatus, now: float) -> RecoveryStatus:
    if not entry.is_open:
        return entry
    reason = entry.reason if entry.strategy is not None else "; ".join(filter(None, (entry.reason, STRATEGY_UNKNOWN)))
    return replace(entry, running_at=micro_time(now), reason=reason)


def _newer(recorded: RecoveryStatus | None, reported: RecoveryStatus) -> RecoveryStatus:
    """A recorded end stays; a first step may be added to it."""
    is_recorded = recorded is not None and not recorded.is_open and reported.resumed_at is None
    return recorded if recorded is not None and is_recorded else reported


def _entry(recovery: Recovery) -> RecoveryStatus:
    pause_s = None
    if recovery.resumed_at is not None:
        pause_s = recovery.pause_s if recovery.pause_s is not None else recovery.resumed_at - recovery.detected_at
    return RecoveryStatus(
        fault=recovery.fault,
        detected_at=micro_time(recovery.detected_at),
        strategy=None if recovery.strategy is None else recovery.strategy.value,
        reason=recovery.reason,
        round=recovery.round,
        cause=cause_status(recovery.cause),
        running_at=None if recovery.running_at is None else micro_time(recovery.running_at),
        resumed_at=None if recovery.resumed_at is None else micro_time(recovery.resumed_at),
        pause_seconds=None if pause_s is None else round(pause_s, 3),
        restored_from=None if recovery.tier is None else recovery.tier.value,
        restore_reason=recovery.tier_reason,
        lost_steps=recovery.lost_steps,
    )
