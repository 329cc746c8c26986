"""A new attempt: what status forgets, and what it counts, when the job restarts or is suspended.

Rules: pods carry the attempt that they were made in, and those of a former one are only to be removed: what they say
does not count. An attempt of the world is named for the newest epoch before it, which no coordinator of it can have:
the next one is appointed in a higher epoch, so that UNDERSTUDY_ROUND fences what is left of the former attempt. The
former attempt's members cannot join: what they prove to belong to has the attempt in its name, and their key is of
their attempt.
"""

from collections.abc import Mapping
from typing import Any

from understudy_operator.plan.jobset.deadline import BEGAN
from understudy_operator.plan.jobset.outcome import Restart
from understudy_operator.plan.observed import Job, Observed
from understudy_operator.plan.recoveries import RECOVERIES_KEPT, is_open
from understudy_operator.plan.rfc3339 import micro_time
from understudy_operator.plan.rollouts import made_anew
from understudy_protocol.words import Fault

JOB_RESTART = "JobRestart"
_OF_AN_ATTEMPT = ("round", "term", "rollouts", "promotedSpares", BEGAN)
_NOTHING = {"ready": 0, "succeeded": 0, "failed": 0, "active": 0}


def restarted(observed: Observed, status: Mapping[str, Any], restart: Restart, now: float) -> dict[str, Any]:
    """The status after a restart; what a failed Job alone restarts keeps the rest as it is."""
    job, told = observed.job, dict(status)
    world = job.spec.world
    if restart.alone is None:
        told["restarts"] = job.restarts + 1
        told["restartsCountTowardsMax"] = job.restarts_counted_whole + restart.counts
    else:
        told["replicatedJobsStatus"] = _alone(observed, status, restart)
    if restart.anew is not None:
        return made_anew(observed, told, restart.anew, now)
    of_world = world is not None and (restart.alone is None or restart.alone.group in {x.name for x in world.groups})
    if restart.alone is None or of_world:
        told["phase"] = "Restarting"
    if not of_world:
        return told
    told = _with_recovery(renewed(job, told, now), restart, now)
    counts = dict(told.get("recoveriesByStrategy", {}))
    told["recoveriesByStrategy"] = {**counts, "jobRestart": int(counts.get("jobRestart", 0)) + 1}
    return told


def renewed(job: Job, status: Mapping[str, Any], now: float) -> dict[str, Any]:
    """The status in which nothing of the world has begun yet."""
    told = {name: value for name, value in status.items() if name not in _OF_AN_ATTEMPT}
    names = {group.name for group in job.world.groups}
    told["replicatedJobsStatus"] = [
        {**entry, **_NOTHING} if entry["name"] in names else entry for entry in told["replicatedJobsStatus"]
    ]
    # Greater than each one before, whatever the clock says: no two attempts have the same key.
    epoch = max(int(job.status.get("coordinator", {}).get("epoch", 0)), int(now), job.former_epoch + 1)
    told["members"] = {"desired": job.world.actives, "active": 0, "ready": 0}
    told["spares"] = {"desired": job.world.spares, "ready": 0, "claimed": 0}
    previous = {"previousAttempt": job.attempt} if job.injected is None else {}
    told["coordinator"] = {"epoch": epoch, "formerEpoch": epoch, **previous}
    return told


def without_open(status: Mapping[str, Any]) -> dict[str, Any]:
    """Without recoveries that have not ended: what a suspension takes is not mended, and no fault."""
    told = {name: value for name, value in status.items() if name not in ("recoveries", "lastRecovery")}
    ended = [entry for entry in status.get("recoveries", ()) if not is_open(entry)]
    return {**told, "recoveries": ended, "lastRecovery": ended[-1]} if ended else told


def begun(observed: Observed) -> bool:
    """Whether anything was made, or decided, in the attempt that counts. Injected pods may still be about to go."""
    made = observed.job.injected is None and bool(observed.pods)
    return made or bool(observed.job.status.get("coordinator", {}).get("podUID"))


def _alone(observed: Observed, status: Mapping[str, Any], restart: Restart) -> list[dict[str, Any]]:
    assert restart.alone is not None
    job, view = observed.job, restart.alone
    world = {} if job.spec.world is None else {group.name: group for group in job.world.groups}
    others = () if restart.anew is None else restart.anew.jobs
    jobs = {(x.group, x.index) for x in (view, *others)}
    together = set(world) if view.group in world else {group for group, _ in jobs}
    entries = []
    for entry in status["replicatedJobsStatus"]:
        group = next(group for group in job.spec.replicated_jobs if group.name == entry["name"])
        if entry["name"] not in together:
            entries.append(entry)
            continue
        own = [job.restarts_of(group.name, index) for index in range(group.replicas)]
        counted = [job.counted_restarts_of(group.name, index) for index in range(group.replicas)]
        for index in range(group.replicas):
            own[index] += entry["name"] in world or (entry["name"], index) in jobs
        if entry["name"] == view.group:
            counted[view.index] += restart.counts
        entries.append({**entry, "jobRestarts": own, "jobRestartsCountTowardsMax": counted})
    return entries


def _with_recovery(status: dict[str, Any], restart: Restart, now: float) -> dict[str, Any]:
    """The restart as a recovery of what was open, or of what it says itself."""
    known = list(status.get("recoveries", ()))
    last = known[-1] if known and is_open(known[-1]) else None
    if last is not None:
        reason = "; ".join(filter(None, (last.get("reason"), restart.message)))
        known[-1] = {**last, "strategy": JOB_RESTART, "reason": reason}
    else:
        cause = {"pod": "", "node": "", "message": restart.message}
        why = {"strategy": JOB_RESTART, "reason": restart.message}
        entry = {"fault": Fault.PROCESS.value, **why, "round": 0, "cause": cause}
        known.append({**entry, "detectedAt": micro_time(now)})
    status["recoveries"] = known[-RECOVERIES_KEPT:]
    status["lastRecovery"] = status["recoveries"][-1]
    return status
