"""The recoveries in status: the newest ten, over all coordinators that the job has had.

Rules: the coordinator's report of a fault replaces the recorded one, unless that recovery has ended: a new coordinator
may continue one without knowing that it has ended. Faults of the same moment (two nodes became silent) are separate
entries, and an entry stays when its cause is revised: so its time and its place among the entries of that time identify
it. An entry that was open when its coordinator was lost, and that the new one does not report, ends when the new one
reports that all workers run: nothing else ends it.

An entry has ended once it has `resumedAt` or, in a job whose workers report no steps, `runningAt`. `pauseSeconds` is
how long training paused, measured by a pod that made the last step before the fault and the first one after it; if no
such pod is left, the time from `detectedAt` to `resumedAt`. Without a step there is no number.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from understudy_operator.plan.times.rfc3339 import micro_time
from understudy_protocol.enums import Fault, Strategy, WorkersState
from understudy_protocol.observer import Cause, Recovery, Snapshot

RECOVERIES_KEPT = 10
AT_WORK = (WorkersState.RUNNING, WorkersState.FINISHED)
Entry = Mapping[str, Any]


def merge_history(before: Sequence[Entry], snapshot: Snapshot, now: float) -> list[Entry]:
    """The entries of status after this snapshot, the oldest first."""
    recorded = identified(before)
    entries = identified(_entry(recovery) for recovery in snapshot.recoveries)
    reported = [_newer(recorded.get(identity, {}), entry) for identity, entry in entries.items()]
    times = {entry["detectedAt"] for entry in reported}
    orphans = [entry for entry in before if entry["detectedAt"] not in times]
    if _all_at_work(snapshot):
        orphans = [entry if is_of_rollouts(entry) else _ended(entry, now) for entry in orphans]
    return sorted([*orphans, *reported], key=lambda entry: str(entry["detectedAt"]))[-RECOVERIES_KEPT:]


def is_open(entry: Entry) -> bool:
    """Whether the recovery has not ended."""
    return "resumedAt" not in entry and "runningAt" not in entry


def is_of_rollouts(entry: Entry) -> bool:
    """Whether rollouts are recreated while training goes on: a complete update ends that, and not a step."""
    return (entry["fault"], entry.get("strategy")) == (Fault.WEIGHT_UPDATE.value, Strategy.POD_RECREATE.value)


def plain_cause(cause: Cause) -> dict[str, Any]:
    fields = {
        "rank": cause.rank,
        "pod": cause.pod,
        "node": cause.node,
        "exitCode": cause.exit_code,
        "signal": cause.signal,
        "message": cause.message,
    }
    return {name: value for name, value in fields.items() if value is not None}


def identified(entries: Iterable[Entry]) -> dict[tuple[str, int], Entry]:
    """The entries by identity: time, and place among those of that time."""
    seen: Counter[str] = Counter()
    found = {}
    for entry in entries:
        at = entry["detectedAt"]
        found[at, seen[at]] = entry
        seen[at] += 1
    return found


def _all_at_work(snapshot: Snapshot) -> bool:
    rank_holders = [member for member in snapshot.members if member.group_rank is not None]
    return bool(rank_holders) and not snapshot.waiting_for and all(member.workers in AT_WORK for member in rank_holders)


def _ended(entry: Entry, now: float) -> Entry:
    return {**entry, "runningAt": micro_time(now)} if is_open(entry) else entry


def _newer(recorded: Entry, reported: Entry) -> Entry:
    """A recorded end stays; a first step may be added to it."""
    return recorded if recorded and not is_open(recorded) and "resumedAt" not in reported else reported


def _entry(recovery: Recovery) -> Entry:
    entry: dict[str, Any] = {
        "fault": recovery.fault.value,
        "round": recovery.round,
        "cause": plain_cause(recovery.cause),
        "detectedAt": micro_time(recovery.detected_at),
    }
    if recovery.strategy is not None:
        entry["strategy"] = recovery.strategy.value
    if recovery.reason:
        entry["reason"] = recovery.reason
    if recovery.running_at is not None:
        entry["runningAt"] = micro_time(recovery.running_at)
    if recovery.resumed_at is not None:
        entry["resumedAt"] = micro_time(recovery.resumed_at)
        pause_s = recovery.pause_s if recovery.pause_s is not None else recovery.resumed_at - recovery.detected_at
        entry["pauseSeconds"] = round(pause_s, 3)
    return entry
