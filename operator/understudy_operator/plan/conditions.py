"""The conditions of a TrainingJob: what holds, why, and since when.

Rules: each is computed from what is observed, never from another condition; lastTransitionTime moves only when the
condition flips. Invalid and Blocked stay as they were until this operator has tried to write the job's objects itself.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from understudy_operator.plan import failed_starts, told_before
from understudy_operator.plan.elections import unreported_loss, waits_for_election
from understudy_operator.plan.faults.avoidance import avoided_by, some_of
from understudy_operator.plan.intents import DELETE_SECRET
from understudy_operator.plan.jobset.children import blocked
from understudy_operator.plan.jobset.job_pods import told_of_job_pods
from understudy_operator.plan.jobset.outcome import Completed, Failed, Outcome, Restart
from understudy_operator.plan.jobset.startup import startup
from understudy_operator.plan.jobset.views import group_counts
from understudy_operator.plan.moment import reached
from understudy_operator.plan.observed import Observed, Pod
from understudy_operator.plan.pool.told import pool_condition
from understudy_operator.plan.queueing import quota_reserved, waits_in_queue
from understudy_operator.plan.stuck import left_of_former, stuck_ends, stuck_starts
from understudy_operator.plan.told_before import Wanted

TROUBLED_PODS_TOLD = 3
#: A pod that was lost so long ago is not why another one is missing now.
LOST_TOLD_S = 600.0
NOTHING_TO_RUN = (
    "replicas is 0 in all replicatedJobs, so the job has nothing to run: suspend the job, set replicas, and resume it"
)
#: Whether workers are forked from the zygote. If not, each restart costs the time of their imports.
FORKED = "WorkersForked"
STARTUP = ("StartupPolicyInProgress", "StartupPolicyCompleted")


def plan_conditions(
    observed: Observed, status: Mapping[str, Any], what: Outcome | None, now: float
) -> list[dict[str, Any]]:
    """All conditions; `status` is this pass's, with phase and counts in place, and `what` its outcome."""
    phase = status["phase"]
    before = {entry["type"]: entry for entry in observed.job.status.get("conditions", ())}
    reason, message = _end(phase, what, before)
    shrunk = _shrunk(observed) if phase == "Running" else ""
    pods = _pods_in_trouble(observed, now)
    all_train = phase == "Running" and not shrunk  # what a pod waits for then keeps the job from a spare only
    waits = _waits_for(observed, () if all_train else pods, now)
    wanted: list[Wanted] = [("Running", phase == "Running", phase, waits or shrunk or ("" if all_train else message))]
    if observed.job.spec.world is not None:
        spares = status["spares"]
        ready = f"{spares['ready']} of {spares['desired']}"
        told = "; ".join([ready, *(pods if all_train else ())])
        wanted += [
            ("Recovering", phase == "Recovering", phase, waits if phase == "Recovering" else ""),
            ("SparesReady", spares["ready"] >= spares["desired"], "Spares", told),
            *pool_condition(observed, now),
            *_forked(observed, before),
        ]
    wanted += [
        ("Completed", phase == "Succeeded", *((reason, message) if phase == "Succeeded" else (phase, ""))),
        ("Failed", phase == "Failed", *((reason, message) if phase == "Failed" else (phase, ""))),
        *(_as_they_were(before, "Suspended", *STARTUP) if observed.job.terminal else ()),
        *_suspended(observed, before),
        *_startup(observed),
        *quota_reserved(observed),
        _refused("Invalid", observed, lasting=True, before=before),
        _refused("Blocked", observed, lasting=False, before=before),
    ]
    return told_before.conditions(observed.job.status, wanted, now)


def _forked(observed: Observed, before: Mapping[str, Mapping[str, Any]]) -> Iterator[Wanted]:
    """Absent until a pod has reported that its workers are not forked. Without a coordinator it stays as it is."""
    told, known = observed.snapshot, before.get(FORKED)
    found = None if told is None else told.fresh_starts
    if found is not None:
        more = f" (and of {found.pods - 1} more)" if found.pods > 1 else ""
        costs = "start as new processes, which costs the time of their imports at each recovery"
        yield FORKED, False, "FreshProcesses", f"workers of pod {found.pod_name}{more} {costs}: {found.reason}"
    elif known is not None and (told is None or observed.close is not None):
        yield FORKED, known["status"] == "True", known["reason"], known["message"]
    elif known is not None:
        yield FORKED, True, "Forked", ""


def _refused(kind: str, observed: Observed, *, lasting: bool, before: Mapping[str, Mapping[str, Any]]) -> Wanted:
    """Whether the API server has refused something for a reason that lasts, or for one that may pass."""
    told = before.get(kind)
    if lasting and observed.complaint:
        return kind, True, "InvalidSpec", observed.complaint
    if observed.refusals is None and told is not None:
        return kind, told["status"] == "True", told["reason"], told["message"]
    # A former Secret that cannot be deleted, such as one with somebody's finalizer, holds nothing of the job up.
    refusals = (x for x in observed.refusals or () if not x.of.startswith(DELETE_SECRET))
    refusal = next((x for x in refusals if x.lasting == lasting), None)
    if refusal is not None:
        return kind, True, refusal.why.value, refusal.message
    return kind, False, "Accepted", ""


def _end(phase: str, what: Outcome | None, before: Mapping[str, Any]) -> tuple[str, str]:
    """Why and how the job has ended, said once; before it has, the phase."""
    if isinstance(what, Completed | Failed):
        return what.reason, what.message
    if isinstance(what, Restart):
        return phase, what.message
    told = before.get({"Succeeded": "Completed", "Failed": "Failed"}.get(phase, ""))
    return (phase, "") if told is None or told["status"] != "True" else (told["reason"], told["message"])


def _suspended(observed: Observed, before: Mapping[str, Any]) -> Iterator[Wanted]:
    """As in JobSet, a job that never was suspended has no such condition."""
    if observed.job.terminal:
        return
    if observed.job.spec.suspend:
        yield "Suspended", True, "SuspendedJobs", "the job is suspended: set suspend to false to recreate its pods"
    elif "Suspended" in before:
        yield "Suspended", False, "ResumeJobs", "the job is resumed"


def _startup(observed: Observed) -> Iterator[Wanted]:
    spec = observed.job.spec
    if not spec.in_order or spec.suspend or observed.job.terminal:
        return
    told = startup(spec, group_counts(observed))
    going = f"waiting for {told.waits_for}" if not told.over else ""
    for kind, holds in zip(STARTUP, (not told.over, told.over), strict=True):
        yield kind, holds, f"InOrder{kind}", going


def _as_they_were(before: Mapping[str, Mapping[str, Any]], *kinds: str) -> Iterator[Wanted]:
    """A job that has ended keeps what was told of its beginning; suspended it is no more."""
    for told in (before[kind] for kind in kinds if kind in before):
        holds = told["status"] == "True" and told["type"] != "Suspended"
        yield told["type"], holds, told["reason"], told["message"]


def _shrunk(observed: Observed) -> str:
    told = observed.snapshot
    if told is None or not 0 < told.actives < observed.job.world.actives:
        return ""
    declared = observed.job.world.actives
    return f"trains with {told.actives} of {declared} pods: it grows when more pods are available"


def _waits_for(observed: Observed, pods: Iterable[str], now: float) -> str:
    """What keeps the job from running, in words; "" if nothing does. pods: what is wrong with its pods."""
    job = observed.job
    if observed.close is not None or job.terminal:
        return ""
    parts = []
    if not job.spec.suspend and not any(group.replicas for group in job.spec.replicated_jobs):
        parts.append(NOTHING_TO_RUN)
    if not job.spec.suspend and (waits := startup(job.spec, group_counts(observed)).waits_for):
        parts.append(f"waiting for {waits}")
    if blocked(observed):
        parts.append(f"waiting for the end of Jobs and pods from before the restart: {left_of_former(observed)}")
    if not job.spec.suspend:
        parts += waits_in_queue(observed)
    parts += told_of_job_pods(observed, now)
    if job.spec.world is None:
        return "; ".join([*parts, *_refusals(observed)])
    parts += filter(None, [unreported_loss(observed, now), waits_for_election(observed, now)])
    if observed.snapshot is not None and observed.snapshot.waiting_for:
        parts.append(f"waiting for {observed.snapshot.waiting_for}")
    return "; ".join([*parts, *pods, *stuck_ends(observed, now), *_refusals(observed)])


def _pods_in_trouble(observed: Observed, now: float) -> list[str]:
    """What keeps pods from starting, in words."""
    job = observed.job
    if observed.close is not None or job.terminal or job.spec.world is None:
        return []
    troubled: list[Pod] = [pod for pod in observed.live() if pod.trouble]
    told = [f"pod {pod.name}: {pod.trouble}{_kept_off(pod)}" for pod in troubled[:TROUBLED_PODS_TOLD]]
    failed = filter(None, [failed_starts.told(observed, now)])
    return [*told, *failed, *_lost_without_ranks(observed, now), *stuck_starts(observed, now)]


def _lost_without_ranks(observed: Observed, now: float) -> list[str]:
    """Why pods were lost of which no recovery tells, such as spares, while the pods in their place have not started."""
    snapshot, world = observed.snapshot, observed.job.world
    started = sum(pod.sidecar_started for pod in observed.live())
    if snapshot is None or observed.before_first_round or started >= world.actives + world.spares:
        return []
    told = {recovery.cause.pod for recovery in snapshot.recoveries}
    failures = {pod.uid: pod.failure for pod in observed.pods}
    lost = [x for x in snapshot.lost if x.pod_name not in told and not reached(x.at + LOST_TOLD_S, now)]
    newest = sorted(lost, key=lambda entry: -entry.at)[:TROUBLED_PODS_TOLD]
    return [f"pod {entry.pod_name} was lost: {failures.get(entry.pod_uid) or entry.reason}" for entry in newest]


def _kept_off(pod: Pod) -> str:
    """What may keep a pod that waits for a node from one that is free."""
    nodes = set[str]() if pod.node else avoided_by(pod)
    return f" (it avoids {some_of(nodes)}: see status.avoidedNodes)" if nodes else ""


def _refusals(observed: Observed) -> list[str]:
    return [f"the API server rejects a request: {refusal.message}" for refusal in (observed.refusals or ())[:1]]
