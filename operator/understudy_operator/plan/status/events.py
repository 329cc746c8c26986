"""The events about changes from the current status to the new one: one event for each change."""

from collections.abc import Iterator, Mapping
from typing import Any

from understudy_operator.plan.capacity.queueing import QUOTA_RESERVED, queue_events
from understudy_operator.plan.capacity.vacancies import CONDITION as POOL_AVAILABLE
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.recoveries import identified, is_open
from understudy_operator.plan.facts.reported_conditions import condition, reported_refusal
from understudy_operator.plan.faults import avoidance
from understudy_operator.plan.intents import Event
from understudy_operator.plan.jobset.missed_changes import unrecorded_suspension
from understudy_operator.plan.jobset.outcome import Completed, Failed, Restart, outcome
from understudy_operator.plan.jobset.restart import JOB_RESTART
from understudy_operator.plan.leadership.coordination import Leadership
from understudy_operator.plan.pool.pool_condition import pool_events
from understudy_operator.plan.status.causes import adds_to
from understudy_operator.plan.times.rfc3339 import parse_time
from understudy_operator.plan.world.retries import is_same_refusal

#: A new leader writes the events of this time again, from status.
RECENT_S = 600.0
#: Limit for the text of an unexpected error.
ERROR_CHARACTERS = 200
#: Key of the event about the job's end, which happens once.
END = "end"


def plan_events(observed: Observed, leadership: Leadership, status: Mapping[str, Any]) -> tuple[Event, ...]:
    before = observed.job.status
    events: list[Event] = []
    events += _leadership_events(before.get("coordinator", {}), leadership)
    if int(before.get("round", -1)) < 0 <= int(status.get("round", -1)):
        events.append(Event("Normal", "Started", f"round {status['round']} started with all ranks"))
    events += _recoveries(before, status)
    events += _failed_update(before.get("rollouts", {}), status.get("rollouts", {}))
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
    events += _suspension(before, status)
    if detail := unrecorded_suspension(observed):
        events.append(Event("Normal", "Resumed", detail))
    events += queue_events(condition(before, QUOTA_RESERVED), condition(status, QUOTA_RESERVED))
    events += pool_events(condition(before, POOL_AVAILABLE), condition(status, POOL_AVAILABLE))
    refusal = reported_refusal(status)
    if refusal and not is_same_refusal(refusal, reported_refusal(before)):
        events.append(Event("Warning", "Rejected", refusal))
    return tuple(events)


def _failed_update(before: Mapping[str, Any], rollouts: Mapping[str, Any]) -> Iterator[Event]:
    failure = rollouts.get("failure", {})
    if failure and failure["update"] != before.get("failure", {}).get("update"):
        in_a_row = f" ({failure['consecutiveFailures']} in a row)" if failure["consecutiveFailures"] > 1 else ""
        message = f"version {failure['version']}{in_a_row}: {failure['message']}"
        yield Event("Warning", "WeightUpdateFailed", message)


def _suspension(before: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[Event]:
    old, new = condition(before, "Suspended"), condition(status, "Suspended")
    if new.get("status") == "True" and old.get("status") != "True":
        yield Event("Normal", "Suspended", new["message"])
    elif old.get("status") == "True" and new.get("status") == "False" and not status.get("terminalState"):
        yield Event("Normal", "Resumed", new["message"])


def _leadership_events(before: Mapping[str, Any], leadership: Leadership) -> Iterator[Event]:
    if leadership.pod is None:
        return
    if leadership.reason:
        message = (
            f"the operator appointed {leadership.pod.name} as the coordinator (epoch {leadership.epoch}): "
            f"{leadership.reason}"
        )
        yield Event("Normal", "CoordinatorAppointed", message)
    elif leadership.term > max(1, int(before.get("term", 1))):
        message = f"{leadership.pod.name} was elected coordinator (term {leadership.term} of epoch {leadership.epoch})"
        yield Event("Normal", "CoordinatorElected", message)


def recorded_events(status: Mapping[str, Any], now: float) -> tuple[Event, ...]:
    """The events of the faults and of the end that this status records, as far as they are recent.

    A previous leader may have written the status and lost the leadership before it wrote the event.
    """
    return tuple(event for at, event in _recorded(status) if parse_time(at) >= now - RECENT_S)


def _recorded(status: Mapping[str, Any]) -> Iterator[tuple[str, Event]]:
    """Each with its time."""
    recoveries = status.get("recoveries", ())
    if recoveries and recoveries[-1].get("strategy") == JOB_RESTART:
        restart = Event("Warning", JOB_RESTART, recoveries[-1].get("reason", ""), _restart_key(status))
        yield recoveries[-1]["detectedAt"], restart
    for identity, entry in identified(recoveries).items():
        if entry.get("strategy") != JOB_RESTART:
            yield entry["detectedAt"], _detected(identity, entry)
        if not is_open(entry):
            yield entry.get("resumedAt") or entry["runningAt"], _recovered(identity, entry)
    if (end := status.get("terminalState")) and "completionTime" in status:
        kind = "Normal" if end == "Completed" else "Warning"
        yield status["completionTime"], Event(kind, end, condition(status, end).get("message", ""), END)


def _recoveries(before: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[Event]:
    known = identified(before.get("recoveries", ()))
    for identity, entry in identified(status.get("recoveries", ())).items():
        if identity not in known and entry.get("strategy") != JOB_RESTART:  # a job restart has its own event
            yield _detected(identity, entry)
        elif adds_to(entry, known.get(identity)):
            reason = "OutOfMemory" if "ran out of memory" in entry["cause"]["message"] else "Disrupted"
            yield Event("Warning", reason, f"{entry['fault']}: {_cause(entry)}", _key("cause", identity))
        if not is_open(entry) and (identity not in known or is_open(known[identity])):
            yield _recovered(identity, entry)


def _detected(identity: tuple[str, int], entry: Mapping[str, Any]) -> Event:
    return Event("Warning", "FaultDetected", f"{entry['fault']}: {_cause(entry)}", _key("fault", identity))


def _recovered(identity: tuple[str, int], entry: Mapping[str, Any]) -> Event:
    strategy = entry.get("strategy", "resumed")
    reason = f" ({entry['reason']})" if entry.get("reason") else ""
    end = (
        f"in {entry['pauseSeconds']} s" if "pauseSeconds" in entry else f"running again since {entry.get('runningAt')}"
    )
    message = f"{strategy} {end}, round {entry['round']}: {_cause(entry)}{reason}"
    return Event("Normal", "Recovered", message, _key("recovery", identity))


def _key(kind: str, identity: tuple[str, int]) -> str:
    """The event key for an entry of status.recoveries."""
    return "{} {}#{}".format(kind, *identity)


def _restart_key(status: Mapping[str, Any]) -> str:
    return f"restart {_restarts_of_world(status)}"


def _restarts_of_world(status: Mapping[str, Any]) -> int:
    return int(status.get("recoveriesByStrategy", {}).get("jobRestart", 0))


def _cause(entry: Mapping[str, Any]) -> str:
    cause = entry["cause"]
    subject = f"rank {cause['rank']} on {cause['pod']}" if "rank" in cause else cause.get("pod", "")
    location = f" (node {cause['node']})" if cause.get("node") else ""
    message = cause.get("message", "")
    return f"{subject}{location}: {message}" if subject else str(message)


def failed_reconcile(error: Exception) -> Event:
    """A reconcile of this object failed, and not because of the API server. Each error is one event."""
    text = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]
    message = (
        f"the operator failed to reconcile this object: {text}. This is a bug of Understudy, triggered by something in "
        "the object. The operator retries, and continues with all other objects. Report the traceback in its log"
    )
    return Event("Warning", "ReconcileFailed", message, f"ReconcileFailed/{text}")
