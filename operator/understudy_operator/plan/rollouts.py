"""What follows from a failed weight update: which rollouts restart, and what status tells of all of them.

Rules: a failed update that may not be tried again has one consequence. With RestartJob the coordinator ends the world,
and failurePolicy says what follows; with RestartRollouts all rollouts are made anew, and training goes on. A failure
while they come up again is a consequence of that. While an update may be tried again, replicas that stay blocked in its
process group are made anew alone: nothing but their end frees them. What has been done about a failure is told by
status.rollouts.restartedFor: it is done once. The recovery lasts until an update is whole.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from understudy_operator.plan.jobset.views import Fate, JobView, views
from understudy_operator.plan.observed import Observed
from understudy_operator.plan.recoveries import RECOVERIES_KEPT, Entry, is_of_rollouts, is_open, plain_cause
from understudy_operator.plan.rfc3339 import micro_time, unix
from understudy_operator.plan.stays import with_seen_nodes
from understudy_protocol.rollouts import Rollouts, UpdateFailure
from understudy_protocol.words import Fault, OnFailedUpdate, Strategy

REASON = "RolloutsRestarted"


@dataclass(frozen=True)
class Anew:
    """Rollouts that are to be made anew."""

    jobs: tuple[JobView, ...]
    what: str  # is done, in words
    why: str
    counts: bool  # towards failurePolicy.maxRestarts
    update: str  # the failed one


def rollouts_anew(observed: Observed) -> Anew | None:
    """None if nothing follows in this pass."""
    failure = _unanswered(observed)
    if failure is None or comes_up(observed):
        return None
    spec = observed.job.spec.rollouts
    assert spec is not None
    why = f"the weights of version {failure.version} were not updated: {failure.message}"
    if failure.in_a_row <= spec.max_retries:
        blocked = tuple(view for view in _jobs(observed) if _is_named(view.name, failure.blocked))
        what = f"{', '.join(view.name for view in blocked)}, blocked in the process group, is recreated"
        return Anew(blocked, what, why, False, failure.update) if blocked else None
    jobs = _jobs(observed)
    if spec.on_failed_update is not OnFailedUpdate.RESTART_ROLLOUTS or not jobs:
        return None
    return Anew(tuple(jobs), "the rollouts are recreated", why, True, failure.update)


def comes_up(observed: Observed) -> bool:
    """Whether rollouts were made anew, and are not ready again."""
    if not any(is_of_rollouts(x) and is_open(x) for x in observed.job.status.get("recoveries", ())):
        return False
    spec = observed.job.spec.rollouts
    groups = () if spec is None else spec.groups
    wanted = sum(group.replicas for group in observed.job.spec.replicated_jobs if group.name in groups)
    return sum(view.ready for view in _jobs(observed)) < wanted


def rollouts_status(observed: Observed) -> dict[str, Any]:
    """status.rollouts; empty while nobody has told of any."""
    before: Mapping[str, Any] = observed.job.status.get("rollouts", {})
    told = None if observed.snapshot is None else observed.snapshot.rollouts
    if told is None:
        return dict(before)
    status: dict[str, Any] = {"fresh": told.fresh, "updating": told.updating, "uncertain": told.uncertain}
    if told.version:
        status["version"] = told.version
    if told.failure is not None:
        status["failure"] = _failure(told.failure)
    answered = before.get("restartedFor", "")
    failure = _unanswered(observed)
    if failure is not None and comes_up(observed):
        answered = failure.update
    return {**status, "restartedFor": answered} if answered else status


def made_anew(observed: Observed, status: Mapping[str, Any], anew: Anew, now: float) -> dict[str, Any]:
    """The status with what is done about the failure, as a recovery where all rollouts restart."""
    told = {**status, "rollouts": {**status.get("rollouts", {}), "restartedFor": anew.update}}
    known = observed.snapshot.rollouts if observed.snapshot is not None else None
    if not anew.counts or known is None or known.failure is None or known.cause is None:
        return told
    entry: Entry = {
        "fault": Fault.WEIGHT_UPDATE.value,
        "strategy": Strategy.POD_RECREATE.value,
        "reason": f"{anew.what}, and training continues",
        "round": max(0, observed.job.round),
        "cause": plain_cause(known.cause),
        "detectedAt": micro_time(known.failure.at),
    }
    (entry,) = with_seen_nodes([entry], (), observed)
    recoveries = sorted([*status.get("recoveries", ()), entry], key=lambda x: str(x["detectedAt"]))
    told["recoveries"] = recoveries[-RECOVERIES_KEPT:]
    told["lastRecovery"] = told["recoveries"][-1]
    told["phase"] = "Recovering"
    return told


def whole_again(recoveries: Sequence[Entry], told: Rollouts | None, now: float) -> list[Entry]:
    """The recoveries, where those that wait for a whole update end with one."""
    if told is None or told.failure is not None or told.updating or told.uncertain or not told.fresh:
        return list(recoveries)
    return [
        {**entry, "resumedAt": micro_time(now), "seconds": round(now - unix(entry["detectedAt"]), 3)}
        if is_of_rollouts(entry) and is_open(entry)
        else entry
        for entry in recoveries
    ]


def _unanswered(observed: Observed) -> UpdateFailure | None:
    if observed.job.spec.rollouts is None or observed.snapshot is None or observed.snapshot.rollouts is None:
        return None
    failure = observed.snapshot.rollouts.failure
    answered = observed.job.status.get("rollouts", {}).get("restartedFor", "")
    return failure if failure is not None and failure.update != answered else None


def _jobs(observed: Observed) -> list[JobView]:
    """Of the rollouts, those that have not ended."""
    spec = observed.job.spec.rollouts
    groups = () if spec is None else spec.groups
    return [view for view in views(observed) if view.group in groups and view.fate is Fate.OPEN]


def _is_named(job: str, replicas: Iterable[str]) -> bool:
    """A replica is named for its Job, or for a pod of that, and perhaps with the domain."""
    hosts = (replica.partition(".")[0] for replica in replicas)
    return any(host == job or (host.startswith(f"{job}-") and host[len(job) + 1 :].isdigit()) for host in hosts)


def _failure(failure: UpdateFailure) -> dict[str, Any]:
    return {
        "update": failure.update,
        "version": failure.version,
        "message": failure.message,
        "inARow": failure.in_a_row,
        "at": micro_time(failure.at),
    }
