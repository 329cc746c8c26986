"""A new attempt: which fields of status a restart or a suspension of the job resets, and which it counts.

Rules: pods have a label with their attempt. Pods of a previous attempt are only removed; their state does not count. An
attempt of the world has the newest epoch before it as its name: its coordinator is appointed in a higher epoch, so
UNDERSTUDY_ROUND fences the processes of the previous attempt. Members of the previous attempt cannot join: the attempt
is part of the name under which they authenticate, and their key is that of their attempt.
"""

from collections.abc import Mapping
from typing import Any

from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.recoveries import RECOVERIES_KEPT, is_open
from understudy_operator.plan.jobset.deadline import ATTEMPT_START
from understudy_operator.plan.jobset.outcome import Restart
from understudy_operator.plan.jobset.rollouts import rollout_restart_status
from understudy_operator.plan.times.rfc3339 import micro_time
from understudy_protocol.enums import Fault

JOB_RESTART = "JobRestart"
_OF_AN_ATTEMPT = ("round", "rollouts", "promotedSpares", ATTEMPT_START)
_ZERO_COUNTS = {"ready": 0, "succeeded": 0, "failed": 0, "active": 0}


def restart_status(observed: Observed, status: Mapping[str, Any], restart: Restart, now: float) -> dict[str, Any]:
    """The status after a restart; if one Job restarts alone, the rest of the status stays."""
    job, updated = observed.job, dict(status)
    world = job.spec.world
    if restart.single_job is None:
        updated["restarts"] = job.restarts + 1
        updated["restartsCountTowardsMax"] = job.job_restarts_counted + restart.counts
    else:
        updated["replicatedJobsStatus"] = _count_job_restarts(observed, status, restart)
    if restart.rollouts is not None:
        return rollout_restart_status(observed, updated, restart.rollouts, now)
    of_world = world is not None and (
        restart.single_job is None or restart.single_job.group in {x.name for x in world.groups}
    )
    if restart.single_job is None or of_world:
        updated["phase"] = "Restarting"
    if not of_world:
        return updated
    updated = _with_recovery(reset_status(job, updated, now), restart, now)
    counts = dict(updated.get("recoveriesByStrategy", {}))
    updated["recoveriesByStrategy"] = {**counts, "jobRestart": int(counts.get("jobRestart", 0)) + 1}
    return updated


def reset_status(job: Job, status: Mapping[str, Any], now: float) -> dict[str, Any]:
    """The status of a world without pods, coordinator and rounds."""
    reset = {name: value for name, value in status.items() if name not in _OF_AN_ATTEMPT}
    names = {group.name for group in job.world.groups}
    reset["replicatedJobsStatus"] = [
        {**entry, **_ZERO_COUNTS} if entry["name"] in names else entry for entry in reset["replicatedJobsStatus"]
    ]
    # Greater than each epoch before, even if the clock went back: no two attempts have the same key.
    epoch = max(int(job.status.get("coordinator", {}).get("epoch", 0)), int(now), job.previous_epoch + 1)
    reset["members"] = {"desired": job.world.actives, "active": 0, "ready": 0}
    reset["spares"] = {"desired": job.world.spares, "ready": 0, "claimed": 0}
    previous = {"previousAttempt": job.attempt} if job.injected is None else {}
    address = {name: value for name, value in status.get("coordinator", {}).items() if name == "address"}
    reset["coordinator"] = {"epoch": epoch, "formerEpoch": epoch, **previous, **address}
    return reset


def drop_open_recoveries(status: Mapping[str, Any]) -> dict[str, Any]:
    """Without recoveries that have not ended: a suspension neither completes them nor is it a fault."""
    kept = {name: value for name, value in status.items() if name not in ("recoveries", "lastRecovery")}
    ended = [entry for entry in status.get("recoveries", ()) if not is_open(entry)]
    return {**kept, "recoveries": ended, "lastRecovery": ended[-1]} if ended else kept


def has_begun(observed: Observed) -> bool:
    """Whether the current attempt has pods or a coordinator. Pods of an injected job do not count: they may be old."""
    has_pods = observed.job.injected is None and bool(observed.pods)
    return has_pods or bool(observed.job.status.get("coordinator", {}).get("podUID"))


def _count_job_restarts(observed: Observed, status: Mapping[str, Any], restart: Restart) -> list[dict[str, Any]]:
    assert restart.single_job is not None
    job, view = observed.job, restart.single_job
    world = {} if job.spec.world is None else {group.name: group for group in job.world.groups}
    rollout_jobs = () if restart.rollouts is None else restart.rollouts.jobs
    jobs = {(x.group, x.index) for x in (view, *rollout_jobs)}
    together = set(world) if view.group in world else {group for group, _ in jobs}
    entries = []
    for entry in status["replicatedJobsStatus"]:
        group = next(group for group in job.spec.replicated_jobs if group.name == entry["name"])
        if entry["name"] not in together:
            entries.append(entry)
            continue
        restarts = [job.restarts_of(group.name, index) for index in range(group.replicas)]
        counted = [job.counted_restarts_of(group.name, index) for index in range(group.replicas)]
        for index in range(group.replicas):
            restarts[index] += entry["name"] in world or (entry["name"], index) in jobs
        if entry["name"] == view.group:
            counted[view.index] += restart.counts
        entries.append({**entry, "jobRestarts": restarts, "jobRestartsCountTowardsMax": counted})
    return entries


def _with_recovery(status: dict[str, Any], restart: Restart, now: float) -> dict[str, Any]:
    """Add the restart: as the strategy of the open recovery, or as a recovery of its own."""
    recoveries = list(status.get("recoveries", ()))
    last = recoveries[-1] if recoveries and is_open(recoveries[-1]) else None
    if last is not None:
        reason = "; ".join(filter(None, (last.get("reason"), restart.message)))
        recoveries[-1] = {**last, "strategy": JOB_RESTART, "reason": reason}
    else:
        cause = {"pod": "", "node": "", "message": restart.message}
        fields = {"strategy": JOB_RESTART, "reason": restart.message}
        entry = {"fault": Fault.PROCESS.value, **fields, "round": 0, "cause": cause}
        recoveries.append({**entry, "detectedAt": micro_time(now)})
    status["recoveries"] = recoveries[-RECOVERIES_KEPT:]
    status["lastRecovery"] = status["recoveries"][-1]
    return status
