"""The events about changes from the current status to the new one: one event for each change."""

from collections.abc import Iterator

from understudy_operator.plan.capacity.queueing import QUOTA_RESERVED, queue_events
from understudy_operator.plan.capacity.vacancies import CONDITION as POOL_AVAILABLE
from understudy_operator.plan.facts.launcher_choice import FAULT_TOLERANT, LauncherReason
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.recoveries import identified
from understudy_operator.plan.facts.reported_conditions import condition, reported_refusal
from understudy_operator.plan.facts.status import (
    JOB_RESTART,
    CauseStatus,
    CoordinatorStatus,
    JobStatus,
    RecoveryStatus,
)
from understudy_operator.plan.faults import avoidance
from understudy_operator.plan.intents import Event
from understudy_operator.plan.jobset.missed_changes import unrecorded_suspension
from understudy_operator.plan.jobset.outcome import Completed, Failed, Restart, outcome
from understudy_operator.plan.leadership.coordination import Leadership
from understudy_operator.plan.pool.pool_condition import pool_events
from understudy_operator.plan.status.causes import adds_to
from understudy_operator.plan.status.conditions import SLOW_RANK
from understudy_operator.plan.times.rfc3339 import parse_time
from understudy_operator.plan.world.retries import is_same_refusal

#: A new leader writes the events of this time again, from status.
RECENT_S = 600.0
#: Limit for the text of an unexpected error.
ERROR_CHARACTERS = 200
#: Key of the event about the job's end, which happens once.
END = "end"


def plan_events(observed: Observed, leadership: Leadership, status: JobStatus) -> tuple[Event, ...]:
    before = observed.job.status
    events: list[Event] = []
    events += _leadership_events(before.coordinator, leadership)
    if before.round < 0 <= status.round:
        events.append(Event("Normal", "Started", f"round {status.round} started with all ranks"))
    events += _recoveries(before, status)
    events += _failed_update(before, status)
    events += avoidance.plan_avoidance_events(observed, status)
    match outcome(observed):
        case Completed(message):
            events.append(Event("Normal", "Completed", message, END))
        case Failed(_, message):
            events.append(Event("Warning", "Failed", message, END))
        case Restart(reason, message):
            of_world = _restarts_of_world(status) != _restarts_of_world(before)
            events.append(Event("Warning", reason, message, _restart_key(status) if of_world else ""))
        case None:
            pass
    events += _drill(before, status)
    events += _launcher_default(before, status)
    events += _slow_rank(before, status)
    events += _suspension(before, status)
    if detail := unrecorded_suspension(observed):
        events.append(Event("Normal", "Resumed", detail))
    events += queue_events(condition(before, QUOTA_RESERVED), condition(status, QUOTA_RESERVED))
    events += pool_events(condition(before, POOL_AVAILABLE), condition(status, POOL_AVAILABLE))
    refusal = reported_refusal(status)
    if refusal and not is_same_refusal(refusal, reported_refusal(before)):
        events.append(Event("Warning", "Rejected", refusal))
    return tuple(events)


def _drill(before: JobStatus, status: JobStatus) -> Iterator[Event]:
    drill = status.drill
    if drill is None or (before.drill is not None and before.drill.request == drill.request):
        return
    what = "a drill" if drill.fault is None else f"a drill ({drill.fault.value})"
    if drill.refusal:
        yield Event("Warning", "DrillRejected", f"{what} breaks nothing: {drill.refusal}")
    else:
        yield Event("Normal", "DrillStarted", f"{what} breaks {', '.join(drill.pods)} on node {drill.node}")


def _launcher_default(before: JobStatus, status: JobStatus) -> Iterator[Event]:
    """Once, with the first status: a JobSet's manifest does not change its behavior without a message."""
    choice = condition(status, FAULT_TOLERANT)
    is_default = choice is not None and choice.reason == LauncherReason.DEFAULTED.value
    if choice is not None and is_default and condition(before, FAULT_TOLERANT) is None:
        yield Event("Normal", "LauncherDefaulted", choice.message)


def _slow_rank(before: JobStatus, status: JobStatus) -> Iterator[Event]:
    """When a rank begins to be slow."""
    old, new = condition(before, SLOW_RANK), condition(status, SLOW_RANK)
    if new is not None and new.is_true and (old is None or not old.is_true):
        yield Event("Warning", SLOW_RANK, new.message)


def _failed_update(before: JobStatus, status: JobStatus) -> Iterator[Event]:
    failure = status.new_update_failure(before)
    if failure is not None:
        in_a_row = f" ({failure.consecutive_failures} in a row)" if failure.consecutive_failures > 1 else ""
        yield Event("Warning", "WeightUpdateFailed", f"version {failure.version}{in_a_row}: {failure.message}")


def _suspension(before: JobStatus, status: JobStatus) -> Iterator[Event]:
    old, new = condition(before, "Suspended"), condition(status, "Suspended")
    was_suspended = old is not None and old.is_true
    if new is not None and new.is_true and not was_suspended:
        yield Event("Normal", "Suspended", new.message)
    elif new is not None and not new.is_true and was_suspended and not status.terminal_state:
        yield Event("Normal", "Resumed", new.message)


def _leadership_events(before: CoordinatorStatus, leadership: Leadership) -> Iterator[Event]:
    if leadership.pod is None:
        return
    if leadership.reason:
        message = (
            f"the operator appointed {leadership.pod.name} as the coordinator (epoch {leadership.epoch}): "
            f"{leadership.reason}"
        )
        yield Event("Normal", "CoordinatorAppointed", message)
    elif leadership.term > max(1, before.term):
        message = f"{leadership.pod.name} was elected coordinator (term {leadership.term} of epoch {leadership.epoch})"
        yield Event("Normal", "CoordinatorElected", message)


def recorded_events(status: JobStatus, now: float) -> tuple[Event, ...]:
    """The events of the faults and of the end that this status records, as far as they are recent.

    A previous leader may have written the status and lost the leadership before it wrote the event.
    """
    return tuple(event for at, event in _recorded(status) if parse_time(at) >= now - RECENT_S)


def _recorded(status: JobStatus) -> Iterator[tuple[str, Event]]:
    """Each with its time."""
    if status.recoveries and status.recoveries[-1].strategy == JOB_RESTART:
        last = status.recoveries[-1]
        yield last.detected_at, Event("Warning", JOB_RESTART, last.reason, _restart_key(status))
    for identity, entry in identified(status.recoveries).items():
        if entry.strategy != JOB_RESTART:
            yield entry.detected_at, _detected(identity, entry)
        if ended_at := entry.resumed_at or entry.running_at:
            yield ended_at, _recovered(identity, entry)
    if (end := status.terminal_state) and status.completion_time is not None:
        kind, reported = "Normal" if end == "Completed" else "Warning", condition(status, end)
        yield status.completion_time, Event(kind, end, "" if reported is None else reported.message, END)


def _recoveries(before: JobStatus, status: JobStatus) -> Iterator[Event]:
    known = identified(before.recoveries)
    for identity, entry in identified(status.recoveries).items():
        if identity not in known and entry.strategy != JOB_RESTART:  # a job restart has its own event
            yield _detected(identity, entry)
        elif adds_to(entry, known.get(identity)):
            reason = "OutOfMemory" if "ran out of memory" in entry.cause.message else "Disrupted"
            yield Event("Warning", reason, f"{entry.fault.value}: {_cause(entry.cause)}", _key("cause", identity))
        elif identity in known and _has_other_cause(entry, known[identity]):
            yield _revised(identity, entry, known[identity])
        if not entry.is_open and (identity not in known or known[identity].is_open):
            yield _recovered(identity, entry)


def _detected(identity: tuple[str, int], entry: RecoveryStatus) -> Event:
    return Event("Warning", "FaultDetected", f"{entry.fault.value}: {_cause(entry.cause)}", _key("fault", identity))


def _has_other_cause(entry: RecoveryStatus, before: RecoveryStatus) -> bool:
    """Whether another pod than before is the cause. (A job restart has no pod.)"""
    return bool(entry.cause.pod and before.cause.pod) and entry.cause.pod != before.cause.pod


def _revised(identity: tuple[str, int], entry: RecoveryStatus, before: RecoveryStatus) -> Event:
    """The coordinator has learned that another pod failed first."""
    message = f"{entry.fault.value}: {_cause(entry.cause)}; it failed before {_subject(before.cause)}"
    return Event("Warning", "FaultDetected", message, _key(f"fault of {entry.cause.pod}", identity))


def _recovered(identity: tuple[str, int], entry: RecoveryStatus) -> Event:
    reason = f" ({entry.reason})" if entry.reason else ""
    end = (
        f"in {entry.pause_seconds} s" if entry.pause_seconds is not None else f"running again since {entry.running_at}"
    )
    message = f"{entry.strategy or 'resumed'} {end}, round {entry.round}: {_cause(entry.cause)}{reason}"
    return Event("Normal", "Recovered", message + _restored(entry), _key("recovery", identity))


def _restored(entry: RecoveryStatus) -> str:
    if entry.restored_from is None:
        return ""
    reason = f": {entry.restore_reason}" if entry.restore_reason else ""
    lost = "" if entry.lost_steps is None else f", lost steps: {entry.lost_steps}"
    return f"; restored from {entry.restored_from}{reason}{lost}"


def _key(kind: str, identity: tuple[str, int]) -> str:
    """The event key for an entry of status.recoveries."""
    return "{} {}#{}".format(kind, *identity)


def _restart_key(status: JobStatus) -> str:
    return f"restart {_restarts_of_world(status)}"


def _restarts_of_world(status: JobStatus) -> int:
    return status.recoveries_by_strategy.job_restart or 0


def _cause(cause: CauseStatus) -> str:
    subject = _subject(cause)
    location = f" (node {cause.node})" if cause.node else ""
    return f"{subject}{location}: {cause.message}" if subject else cause.message


def _subject(cause: CauseStatus) -> str:
    return f"rank {cause.rank} on {cause.pod}" if cause.rank is not None else cause.pod


def failed_reconcile(error: Exception) -> Event:
    """A reconcile of this object failed, and not because of the API server. Each error is one event."""
    text = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]
    message = (
        f"the operator failed to reconcile this object: {text}. This is a bug of Understudy, triggered by something in "
        "the object. The operator retries, and continues with all other objects. Report the traceback in its log"
    )
    return Event("Warning", "ReconcileFailed", message, f"ReconcileFailed/{text}")
