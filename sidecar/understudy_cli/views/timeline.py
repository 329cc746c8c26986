"""`timeline`: a job's history in the order of time. Pure.

The sources are the job's status and its events. Kubernetes deletes events after an hour by default, so older entries
come from status alone. An event about a fault that status has, too, is left out.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from understudy_cli.facts import Event, Job, Recovery
from understudy_cli.views.jobs import is_trouble
from understudy_cli.views.phrases import clock, duration, precise, subject, symptom

#: Events that repeat an entry of the status.
_FROM_STATUS = {"FaultDetected", "Recovered", "Started"}


@dataclass(frozen=True)
class TimelineEntry:
    """at: Unix seconds. kind: of a condition, an event, or Fault and Resumed. is_warning: something went wrong."""

    at: float
    time: str
    after: str
    kind: str
    text: str
    is_warning: bool


def timeline(job: Job, recoveries: Sequence[Recovery], events: Iterable[Event]) -> tuple[TimelineEntry, ...]:
    """events: of the job, in any order."""
    found = [*_of_job(job), *_of_recoveries(recoveries), *_of_events(events, has_recoveries=bool(recoveries))]
    first = min((at for at, *_ in found), default=0.0)
    return tuple(
        TimelineEntry(at, clock(at), f"+{duration(at - first)}", kind, text, is_warning)
        for at, kind, text, is_warning in sorted(set(found))
    )


_Found = tuple[float, str, str, bool]


def _of_job(job: Job) -> Iterator[_Found]:
    if job.created_at is not None:
        yield job.created_at, "Created", f"{job.kind} {job.name}", False
    if job.started_at is not None:
        yield job.started_at, "Started", "the first round began", False
    for condition in job.conditions:
        if condition.at is None or condition.type in ("Completed", "Failed"):
            continue  # completionTime has the end
        if condition.type in ("Invalid", "Blocked", "Recovering") and not condition.is_true:
            continue  # the ordinary state
        text = ": ".join(filter(None, (f"{condition.status} ({condition.reason})", condition.message)))
        is_warning = is_trouble(condition) or (condition.type == "Recovering" and condition.is_true)
        yield condition.at, condition.type, text, is_warning
    if job.completed_at is not None:
        end = next((x for x in job.conditions if x.type in ("Completed", "Failed") and x.is_true), None)
        message = "the job has ended" if end is None else end.message
        yield job.completed_at, "Ended" if end is None else end.type, message, end is not None and end.type == "Failed"


def _of_recoveries(recoveries: Sequence[Recovery]) -> Iterator[_Found]:
    for recovery in recoveries:
        if recovery.detected_at is not None:
            place = ", ".join(filter(None, (recovery.fault, subject(recovery.cause))))
            yield recovery.detected_at, "Fault", f"{place}: {symptom(recovery.cause) or 'no details'}", True
        if recovery.ended_at is not None:
            pause = "" if recovery.pause_s is None else f", training paused for {precise(recovery.pause_s)}"
            reason = f" ({recovery.reason})" if recovery.reason else ""
            number = "" if recovery.round is None else f", round {recovery.round}"
            yield recovery.ended_at, "Resumed", f"{recovery.strategy}{number}{pause}{reason}", False


def _of_events(events: Iterable[Event], *, has_recoveries: bool) -> Iterator[_Found]:
    for event in events:
        if event.at is None or (has_recoveries and event.reason in _FROM_STATUS):
            continue
        often = f" ({event.times} times)" if event.times > 1 else ""
        yield event.at, event.reason, f"{event.message}{often}", event.is_warning
