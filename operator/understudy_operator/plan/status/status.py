"""The status of a TrainingJob. JobSet's fields keep JobSet's names and types.

Rules: status is computed from the observed facts, never from a condition of an earlier reconcile; only history
(recoveries, times) is carried over. Fields that only a coordinator knows stay until it reports (the operator has just
started, or a new coordinator waits for members). Without a change there is no write.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from understudy_operator.plan.facts.counts import member_counts, promoted_spares
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.recoveries import merge_history
from understudy_operator.plan.facts.stays import fill_in_nodes
from understudy_operator.plan.faults.avoidance import avoided_nodes_status
from understudy_operator.plan.jobset.deadline import ATTEMPT_START, attempt_start
from understudy_operator.plan.jobset.missed_changes import handled_generation, unrecorded_suspension
from understudy_operator.plan.jobset.outcome import Completed, Failed, Restart, outcome
from understudy_operator.plan.jobset.restart import drop_open_recoveries, has_begun, reset_status, restart_status
from understudy_operator.plan.jobset.rollouts import end_rollout_recoveries, rollouts_status
from understudy_operator.plan.jobset.startup import NO_COUNTS
from understudy_operator.plan.jobset.views import Counts, JobPhase, group_counts, pod_counts, views
from understudy_operator.plan.leadership.coordination import Leadership
from understudy_operator.plan.status.causes import explain_causes
from understudy_operator.plan.status.conditions import plan_conditions
from understudy_operator.plan.status.phase import phase
from understudy_operator.plan.times.reconcile_clock import is_due
from understudy_operator.plan.times.rfc3339 import micro_time, parse_time
from understudy_operator.plan.world.members import may_start
from understudy_protocol.enums import Strategy
from understudy_protocol.observer import Snapshot

#: If only the progress has changed, status is not written more often than this.
PROGRESS_EVERY_S = 10.0
PROGRESS = {"progress"}
#: The part of recoveriesByStrategy that the operator counts, because no coordinator outlives it.
OF_THE_JOB = "jobRestart"
#: How long a suspension waits for pods to report that training has ended, if no coordinator responds.
END_REPORTED_S = 10.0
NO_SPARES = {"desired": 0, "ready": 0, "claimed": 0}


def plan_status(observed: Observed, leadership: Leadership, now: float) -> dict[str, Any]:
    """The complete status."""
    job, before, result = observed.job, observed.job.status, outcome(observed)
    status: dict[str, Any] = dict(before)
    status["observedGeneration"] = handled_generation(observed)
    if job.injected is not None:
        status["target"] = f"{job.injected.target_kind}/{job.injected.target_name}"
    status["restarts"], status["restartsCountTowardsMax"] = job.restarts, job.job_restarts_counted
    if job.spec.world is not None:
        status |= _of_world(observed, leadership, now)
        status[ATTEMPT_START] = attempt_start(observed, may_start=may_start(observed), now=now)
        if status[ATTEMPT_START] is None:
            del status[ATTEMPT_START]
        if not status["promotedSpares"]:
            del status["promotedSpares"]
        if not status["avoidedNodes"] or result is not None or job.terminal:
            del status["avoidedNodes"]
    else:
        status["members"], status["spares"] = pod_counts(observed), NO_SPARES
    if isinstance(result, Completed | Failed):
        status["terminalState"] = "Completed" if isinstance(result, Completed) else "Failed"
        status.setdefault("completionTime", micro_time(now))
    jobs = views(observed)
    status["replicatedJobsStatus"] = list(_replicated_jobs(observed, group_counts(observed)))
    if any(view.active or view.phase is not JobPhase.OPEN for view in jobs if not view.of_world):
        status.setdefault("startTime", micro_time(now))
    status["phase"] = phase(observed, status, jobs, now)
    if isinstance(result, Restart):
        status = restart_status(observed, status, result, now)
    elif attempt_ends_by_suspension(observed, now):
        status = drop_open_recoveries(reset_status(job, status, now))
        status["phase"] = "Suspended" if job.spec.suspend else "Restarting"
    status["conditions"] = plan_conditions(observed, status, result, now)
    return status


def attempt_ends_by_suspension(observed: Observed, now: float) -> bool:
    """Whether the attempt of the world ends in this reconcile, because the job is suspended or was in the meantime."""
    if unrecorded_suspension(observed):
        return True
    if not observed.job.spec.suspend or observed.job.spec.world is None or observed.close is not None:
        return False
    return has_begun(observed) and not _may_have_ended(observed, now)


def _may_have_ended(observed: Observed, now: float) -> bool:
    """Whether training may have ended a moment ago: no coordinator responds, and pods have not reported their end."""
    coordination = observed.coordination
    closed = coordination.snapshot is not None and coordination.snapshot.closed is not None
    if coordination.coordinator_uid or closed or observed.job.round < 0 or all(pod.is_done for pod in observed.pods):
        return False
    return not is_due(coordination.since + END_REPORTED_S, now)


def is_worth_writing(before: Mapping[str, Any], status: Mapping[str, Any], now: float) -> bool:
    """Whether anything but the progress has changed, or the reported progress is old enough."""
    changed = _changed(before, status)
    if changed != PROGRESS:
        return bool(changed)
    reported_at = before.get("progress", {}).get("at")
    return reported_at is None or is_due(parse_time(reported_at) + PROGRESS_EVERY_S, now)


def is_news(before: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Whether the written changes may affect the next reconcile."""
    return bool(_changed(before, status) - PROGRESS)


def _changed(before: Mapping[str, Any], status: Mapping[str, Any]) -> set[str]:
    return {name for name in status.keys() | before.keys() if status.get(name) != before.get(name)}


def _of_world(observed: Observed, leadership: Leadership, now: float) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    recorded = observed.job.status.get("coordinator", {})
    kept = {name: recorded[name] for name in ("address", "formerEpoch", "previousAttempt") if name in recorded}
    if observed.job.injected is not None and observed.coordinator_address:
        kept["address"] = observed.coordinator_address
        fields["coordinator"] = {**recorded, **kept}
    if leadership.pod is not None and leadership.epoch:
        term = {"term": leadership.term} if leadership.term else {}
        holder = {"podName": leadership.pod.name, "podUID": leadership.pod.uid}
        fields["coordinator"] = {"epoch": leadership.epoch, **term, **holder, **kept}
    if observed.snapshot is not None:
        fields |= _from_snapshot(observed, observed.snapshot, now)
        if observed.snapshot.token.round >= 0 and "startTime" not in observed.job.status:
            fields["startTime"] = micro_time(now)
    fields["members"], fields["spares"] = member_counts(observed)
    fields["promotedSpares"] = promoted_spares(observed)
    fields["avoidedNodes"] = avoided_nodes_status(observed, now)
    return fields


def _from_snapshot(observed: Observed, snapshot: Snapshot, now: float) -> dict[str, Any]:
    before, fields = observed.job.status, dict[str, Any]()
    if snapshot.token.round >= 0:
        fields["round"] = max(snapshot.token.round, int(before.get("round", -1)))
    reported_counts = snapshot.recoveries_by_strategy
    counts = {_camel(x.value): reported_counts[x.value] for x in Strategy if x.value in reported_counts}
    of_the_job = {x: y for x, y in before.get("recoveriesByStrategy", {}).items() if x == OF_THE_JOB}
    fields["recoveriesByStrategy"] = of_the_job | counts
    recorded = before.get("recoveries", ())
    recoveries = explain_causes(merge_history(recorded, snapshot, now), recorded, observed.pods)
    recoveries = fill_in_nodes(recoveries, recorded, observed)
    recoveries = end_rollout_recoveries(recoveries, snapshot.rollouts, now)
    if rollouts := rollouts_status(observed):
        fields["rollouts"] = rollouts
    if recoveries:
        fields["recoveries"], fields["lastRecovery"] = recoveries, recoveries[-1]
    if snapshot.progress is not None:
        step = {"step": snapshot.progress.step, "at": micro_time(snapshot.progress.at)}
        fields["progress"] = step | ({"total": snapshot.progress.total} if snapshot.progress.total is not None else {})
    return fields


def _replicated_jobs(observed: Observed, counts: Mapping[str, Counts]) -> Iterator[dict[str, Any]]:
    """The entries, with the recorded restarts of single Jobs."""
    before = {entry["name"]: entry for entry in observed.job.status.get("replicatedJobsStatus", ())}
    for group in observed.job.spec.replicated_jobs:
        previous = before.get(group.name, {})
        restarts = {name: previous[name] for name in ("jobRestarts", "jobRestartsCountTowardsMax") if name in previous}
        yield {"name": group.name, **asdict(counts.get(group.name, NO_COUNTS)), **restarts}


def _camel(strategy: str) -> str:
    return strategy[0].lower() + strategy[1:]
