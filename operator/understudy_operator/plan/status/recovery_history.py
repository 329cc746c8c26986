"""The Recovery objects of a job: which ones users should see, and which writes are missing.

Status is first: it records a fault, and the objects follow from status (`plan_recovery_history`), with the details that
only the coordinator's snapshot has. A writer that knows which objects exist asks for the next writes
(`plan_recovery_writes`) until there are none. So each fault gets its object at least once, also if an operator ends in
between: the next leader finds the fault in status, and its name is the same.

Rules:
- A fault costs one creation, and usually at most two updates: an open object is updated when its strategy or its cause
  changes, and when the recovery ends. Details that arrive in between go with these updates.
- A detail that was written stays, because a new coordinator does not know it: the traceback of the same worker, the
  consequences, the steps lost, the restored tier. So does the cost, which is computed once: the size of the job may
  change later.
- An open object that status does not have any more was dropped by a suspension, unless it is older than the ten entries
  that status has room for.
- The newest `limit` objects are kept, also among those that are still to be created.
- If all entries, or the job, ended SETTLED_S ago, there is nothing to write. So a new leader does not list the objects
  of each job that ever had a fault.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from understudy_operator.plan.facts.counts import TrainingSize, training_size
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.recoveries import RECOVERIES_KEPT, identified, is_of_rollouts
from understudy_operator.plan.facts.recovery_objects import (
    ConsequenceFields,
    Outcome,
    RecoveryCause,
    RecoveryFields,
    recovery_json,
    recovery_name,
)
from understudy_operator.plan.facts.status import JobStatus, RecoveryStatus
from understudy_operator.plan.intents import RecoveryHistory
from understudy_operator.plan.times.reconcile_clock import is_due
from understudy_operator.plan.times.rfc3339 import micro_time, parse_time
from understudy_protocol.observer import Recovery

SETTLED_S = 3600.0


@dataclass(frozen=True)
class CreateRecovery:
    name: str
    fields: RecoveryFields


@dataclass(frozen=True)
class PatchRecovery:
    """patch: a merge patch that leads to these fields."""

    name: str
    patch: Mapping[str, Any]
    fields: RecoveryFields


@dataclass(frozen=True)
class DeleteRecovery:
    name: str


RecoveryWrite = CreateRecovery | PatchRecovery | DeleteRecovery
#: The existing objects by name; None if the fields do not matter any more.
Known = Mapping[str, RecoveryFields | None]


def plan_recovery_history(observed: Observed, status: JobStatus, now: float) -> RecoveryHistory | None:
    """The objects of the faults in this status; None if there is nothing to write."""
    job = observed.job
    entries = (*job.status.recoveries, *status.recoveries)  # an entry that is dropped needs its end
    if job.spec.world is None or all(_is_settled(status, entry, now) for entry in entries):
        return None
    snapshot = observed.snapshot
    reported = {} if snapshot is None else _identified(snapshot.recoveries)
    size = training_size(observed)
    objects = {
        recovery_name(job, identity): _fields(job, status, entry, reported.get(identity), size)
        for identity, entry in identified(status.recoveries).items()
    }
    return RecoveryHistory(objects, job.world.history_limit)


def plan_recovery_writes(history: RecoveryHistory, known: Known) -> list[RecoveryWrite]:
    """The missing writes, in the order in which to send them."""
    names = sorted({*known, *history.objects})
    kept = set(names[max(0, len(names) - history.limit) :])
    writes = list[RecoveryWrite]()
    for name, wanted in history.objects.items():
        if name in known and (patch := _patch(name, known[name], wanted)) is not None:
            writes.append(patch)
        elif name not in known:
            writes.append(CreateRecovery(name, wanted))
    writes += _ends_of_dropped(history, known)
    return [
        *(write for write in writes if write.name in kept),
        *(DeleteRecovery(name) for name in names if name in known and name not in kept),
    ]


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON merge patch that leads from one object to the other."""
    patch: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        if name not in before:
            patch[name] = value
        elif value != before[name]:
            nested = isinstance(value, dict) and isinstance(before[name], dict)
            patch[name] = merge_patch(before[name], value) if nested else value
    return patch


# What the objects should have ----------------------------------------------------------------------------------------


def _is_settled(status: JobStatus, entry: RecoveryStatus, now: float) -> bool:
    ended_at = entry.resumed_at or entry.running_at or status.completion_time
    return ended_at is not None and is_due(parse_time(ended_at) + SETTLED_S, now)


def _identified(recoveries: Sequence[Recovery]) -> dict[tuple[str, int], Recovery]:
    """By the identity that their entries have in status."""
    found = dict[tuple[str, int], Recovery]()
    for recovery in recoveries:
        at = micro_time(recovery.detected_at)
        place = next(number for number in range(len(recoveries)) if (at, number) not in found)
        found[at, place] = recovery
    return found


def _fields(
    job: Job, status: JobStatus, entry: RecoveryStatus, reported: Recovery | None, size: TrainingSize | None
) -> RecoveryFields:
    cause = entry.cause
    fields = RecoveryFields(
        job_name=job.name,
        fault=entry.fault,
        cause=RecoveryCause(cause.rank, cause.pod, cause.node, cause.exit_code, cause.signal, cause.message),
        strategy=entry.strategy,
        reason=entry.reason,
        round=entry.round if entry.round >= 0 else None,
        outcome=_outcome(status, entry),
        detected_at=entry.detected_at,
        running_at=entry.running_at,
        resumed_at=entry.resumed_at,
        pause_seconds=entry.pause_seconds,
        restored_from=entry.restored_from,
        restore_reason=entry.restore_reason,
        lost_steps=entry.lost_steps,
    )
    if reported is not None:
        fields = _with_details(fields, reported)
    if entry.pause_seconds is None or size is None or is_of_rollouts(entry):
        return fields
    if size.devices:
        return replace(fields, gpu_seconds_lost=round(entry.pause_seconds * size.devices, 3))
    return replace(fields, rank_seconds_lost=round(entry.pause_seconds * size.ranks, 3))


def _with_details(fields: RecoveryFields, reported: Recovery) -> RecoveryFields:
    same_worker = (reported.cause.pod, reported.cause.rank) == (fields.cause.pod, fields.cause.rank)
    traceback = reported.cause.traceback if same_worker else ""
    consequences = tuple(
        ConsequenceFields(x.rank, x.pod, x.exit_code, x.signal, x.message) for x in reported.consequences
    )
    return replace(
        fields,
        cause=replace(fields.cause, traceback=traceback),
        consequences=consequences,
        consequence_count=max(reported.consequence_count, len(consequences)),
    )


def _outcome(status: JobStatus, entry: RecoveryStatus) -> Outcome | None:
    if not entry.is_open:
        return Outcome.RECOVERED
    return {"Completed": Outcome.RECOVERED, "Failed": Outcome.FAILED}.get(status.terminal_state)


# Which writes are missing --------------------------------------------------------------------------------------------


def _patch(name: str, known: RecoveryFields | None, wanted: RecoveryFields) -> PatchRecovery | None:
    if known is None:
        return None
    merged = _merged(known, wanted)
    has_ended = merged.outcome is not None
    has_news = (known.fault, known.strategy, known.cause) != (merged.fault, merged.strategy, merged.cause)
    if known == merged or not (has_ended or has_news):
        return None
    return PatchRecovery(name, merge_patch(recovery_json(known), recovery_json(merged)), merged)


def _merged(known: RecoveryFields, wanted: RecoveryFields) -> RecoveryFields:
    """The wanted fields, with the details that are known already."""
    cause = wanted.cause
    if not cause.traceback and (cause.pod, cause.rank) == (known.cause.pod, known.cause.rank):
        cause = replace(cause, traceback=known.cause.traceback)
    has_more = wanted.consequence_count >= known.consequence_count
    is_restored = wanted.restored_from is not None
    has_cost = known.gpu_seconds_lost is not None or known.rank_seconds_lost is not None
    return replace(
        wanted,
        cause=cause,
        consequences=wanted.consequences if has_more else known.consequences,
        consequence_count=max(wanted.consequence_count, known.consequence_count),
        restored_from=wanted.restored_from if is_restored else known.restored_from,
        restore_reason=wanted.restore_reason if is_restored else known.restore_reason,
        lost_steps=known.lost_steps if wanted.lost_steps is None else wanted.lost_steps,
        gpu_seconds_lost=known.gpu_seconds_lost if has_cost else wanted.gpu_seconds_lost,
        rank_seconds_lost=known.rank_seconds_lost if has_cost else wanted.rank_seconds_lost,
    )


def _ends_of_dropped(history: RecoveryHistory, known: Known) -> list[RecoveryWrite]:
    is_full = len(history.objects) >= RECOVERIES_KEPT
    oldest = min((parse_time(fields.detected_at) for fields in history.objects.values()), default=0.0)
    writes = list[RecoveryWrite]()
    for name, fields in known.items():
        if fields is None or fields.outcome is not None or name in history.objects:
            continue
        is_pushed_out = is_full and parse_time(fields.detected_at) <= oldest
        outcome = Outcome.UNKNOWN if is_pushed_out else Outcome.SUSPENDED
        ended = replace(fields, outcome=outcome)
        writes.append(PatchRecovery(name, merge_patch(recovery_json(fields), recovery_json(ended)), ended))
    return writes
