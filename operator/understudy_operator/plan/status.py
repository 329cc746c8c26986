"""The status of a TrainingJob. JobSet's fields keep JobSet's names and types.

Rules: computed whole from what is observed, never from a condition set in an earlier pass; only history (recoveries,
times) is carried over. What no coordinator says (the operator has just started, a new coordinator still asks who is
there) stays as it was. Without a change there is no write.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from understudy_operator.plan.causes import explained
from understudy_operator.plan.conditions import plan_conditions
from understudy_operator.plan.coordination import Office
from understudy_operator.plan.counts import member_counts, promoted_spares
from understudy_operator.plan.faults.avoidance import in_status
from understudy_operator.plan.jobset.deadline import BEGAN, began_at
from understudy_operator.plan.jobset.outcome import Completed, Failed, Restart, outcome
from understudy_operator.plan.jobset.restart import begun, renewed, restarted, without_open
from understudy_operator.plan.jobset.startup import NOTHING
from understudy_operator.plan.jobset.unseen import acted_on, unrecorded_suspension
from understudy_operator.plan.jobset.views import Counts, Fate, group_counts, pod_counts, views
from understudy_operator.plan.members import may_start
from understudy_operator.plan.moment import reached
from understudy_operator.plan.observed import Observed
from understudy_operator.plan.phase import phase
from understudy_operator.plan.recoveries import history
from understudy_operator.plan.rfc3339 import micro_time, unix
from understudy_operator.plan.rollouts import rollouts_status, whole_again
from understudy_operator.plan.stays import with_seen_nodes
from understudy_protocol.observer import Snapshot
from understudy_protocol.words import Strategy

#: Progress alone is not worth a write more often than this.
PROGRESS_EVERY_S = 10.0
PROGRESS = {"progress"}
#: Of recoveriesByStrategy: what no coordinator counts, because none outlives it.
OF_THE_JOB = "jobRestart"
#: How long a suspension waits for pods to report that training has ended, if no coordinator responds.
END_REPORTED_S = 10.0
NO_SPARES = {"desired": 0, "ready": 0, "claimed": 0}


def plan_status(observed: Observed, office: Office, now: float) -> dict[str, Any]:
    """The whole status."""
    job, before, what = observed.job, observed.job.status, outcome(observed)
    status: dict[str, Any] = dict(before)
    status["observedGeneration"] = acted_on(observed)
    status["restarts"], status["restartsCountTowardsMax"] = job.restarts, job.restarts_counted_whole
    if job.spec.world is not None:
        status |= _of_world(observed, office, now)
        status[BEGAN] = began_at(observed, may_start=may_start(observed), now=now)
        if status[BEGAN] is None:
            del status[BEGAN]
        if not status["promotedSpares"]:
            del status["promotedSpares"]
        if not status["avoidedNodes"] or what is not None or job.terminal:
            del status["avoidedNodes"]
    else:
        status["members"], status["spares"] = pod_counts(observed), NO_SPARES
    if isinstance(what, Completed | Failed):
        status["terminalState"] = "Completed" if isinstance(what, Completed) else "Failed"
        status.setdefault("completionTime", micro_time(now))
    jobs = views(observed)
    status["replicatedJobsStatus"] = list(_replicated_jobs(observed, group_counts(observed)))
    if any(view.active or view.fate is not Fate.OPEN for view in jobs if not view.of_world):
        status.setdefault("startTime", micro_time(now))
    status["phase"] = phase(observed, status, jobs, now)
    if isinstance(what, Restart):
        status = restarted(observed, status, what, now)
    elif rests(observed, now):
        status = without_open(renewed(job, status, now))
        status["phase"] = "Suspended" if job.spec.suspend else "Restarting"
    status["conditions"] = plan_conditions(observed, status, what, now)
    return status


def rests(observed: Observed, now: float) -> bool:
    """Whether the attempt of the world ends in this pass because the job is suspended, or was suspended and resumed."""
    if unrecorded_suspension(observed):
        return True
    if not observed.job.spec.suspend or observed.job.spec.world is None or observed.close is not None:
        return False
    return begun(observed) and not _may_have_ended(observed, now)


def _may_have_ended(observed: Observed, now: float) -> bool:
    """Whether training may just have ended by itself: no coordinator responds, and pods have not reported their end."""
    known = observed.coordination
    closed = known.snapshot is not None and known.snapshot.closed is not None
    if known.in_office or closed or observed.job.round < 0 or all(pod.over for pod in observed.pods):
        return False
    return not reached(known.since + END_REPORTED_S, now)


def worth_writing(before: Mapping[str, Any], status: Mapping[str, Any], now: float) -> bool:
    """Whether anything changed but the progress, or the progress is old enough to be told anew."""
    changed = _changed(before, status)
    if changed != PROGRESS:
        return bool(changed)
    told_at = before.get("progress", {}).get("at")
    return told_at is None or reached(unix(told_at) + PROGRESS_EVERY_S, now)


def is_news(before: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Whether what is written may be of consequence to the next pass."""
    return bool(_changed(before, status) - PROGRESS)


def _changed(before: Mapping[str, Any], status: Mapping[str, Any]) -> set[str]:
    return {name for name in status.keys() | before.keys() if status.get(name) != before.get(name)}


def _of_world(observed: Observed, office: Office, now: float) -> dict[str, Any]:
    told: dict[str, Any] = {}
    known = observed.job.status.get("coordinator", {})
    former = {name: known[name] for name in ("formerEpoch", "previousAttempt") if name in known}
    if office.pod is not None and office.epoch:
        term = {"term": office.term} if office.term else {}
        holder = {"podName": office.pod.name, "podUID": office.pod.uid}
        told |= term | {"coordinator": {"epoch": office.epoch, **term, **holder, **former}}
    if observed.snapshot is not None:
        told |= _from_snapshot(observed, observed.snapshot, now)
        if observed.snapshot.token.round >= 0 and "startTime" not in observed.job.status:
            told["startTime"] = micro_time(now)
    if observed.job.injected is not None and observed.coordinator_address:
        told["coordinatorAddress"] = observed.coordinator_address
    told["members"], told["spares"] = member_counts(observed)
    told["promotedSpares"] = promoted_spares(observed)
    told["avoidedNodes"] = in_status(observed, now)
    return told


def _from_snapshot(observed: Observed, snapshot: Snapshot, now: float) -> dict[str, Any]:
    before, told = observed.job.status, dict[str, Any]()
    if snapshot.token.round >= 0:
        told["round"] = max(snapshot.token.round, int(before.get("round", -1)))
    told_counts = snapshot.recoveries_by_strategy
    counts = {_camel(x.value): told_counts[x.value] for x in Strategy if x.value in told_counts}
    of_the_job = {x: y for x, y in before.get("recoveriesByStrategy", {}).items() if x == OF_THE_JOB}
    told["recoveriesByStrategy"] = of_the_job | counts
    known = before.get("recoveries", ())
    recoveries = explained(history(known, snapshot, now), known, observed.pods)
    recoveries = with_seen_nodes(recoveries, known, observed)
    recoveries = whole_again(recoveries, snapshot.rollouts, now)
    if rollouts := rollouts_status(observed):
        told["rollouts"] = rollouts
    if recoveries:
        told["recoveries"], told["lastRecovery"] = recoveries, recoveries[-1]
    if snapshot.progress is not None:
        step = {"step": snapshot.progress.step, "at": micro_time(snapshot.progress.at)}
        told["progress"] = step | ({"total": snapshot.progress.total} if snapshot.progress.total is not None else {})
    return told


def _replicated_jobs(observed: Observed, counts: Mapping[str, Counts]) -> Iterator[dict[str, Any]]:
    """With the restarts of single Jobs, which are history."""
    before = {entry["name"]: entry for entry in observed.job.status.get("replicatedJobsStatus", ())}
    for group in observed.job.spec.replicated_jobs:
        known = before.get(group.name, {})
        history = {name: known[name] for name in ("jobRestarts", "jobRestartsCountTowardsMax") if name in known}
        yield {"name": group.name, **asdict(counts.get(group.name, NOTHING)), **history}


def _camel(strategy: str) -> str:
    return strategy[0].lower() + strategy[1:]
