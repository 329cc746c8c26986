"""The conditions of a TrainingJob, each with reason, message and time.

Rules: each is computed from observed facts, never from another condition; only FaultTolerant of a running job stays as
it is (facts/launcher_choice.py). lastTransitionTime changes only with the condition's status. Invalid and Blocked stay
as they are until this operator has tried to write the job's objects.
"""

from collections.abc import Iterable, Iterator, Mapping

from understudy_operator.plan.capacity import failed_starts
from understudy_operator.plan.capacity.queueing import quota_reserved, waits_in_queue
from understudy_operator.plan.facts import reported_conditions
from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.launcher_choice import FAULT_TOLERANT
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.pods import Pods, cached_with_pods
from understudy_operator.plan.facts.reported_conditions import DesiredCondition, unchanged
from understudy_operator.plan.facts.status import Condition, JobStatus
from understudy_operator.plan.faults.avoidance import avoided_by, join_names
from understudy_operator.plan.intents import DELETE_SECRET
from understudy_operator.plan.jobset.children import waits_for_previous_attempt
from understudy_operator.plan.jobset.outcome import Completed, Failed, Outcome, Restart
from understudy_operator.plan.jobset.pod_queries import describe_job_pods
from understudy_operator.plan.jobset.startup import startup
from understudy_operator.plan.jobset.stuck import describe_leftovers, stuck_ends, stuck_starts
from understudy_operator.plan.jobset.views import group_counts
from understudy_operator.plan.leadership.elections import unreported_loss, waits_for_election
from understudy_operator.plan.pool.pool_condition import pool_condition
from understudy_operator.plan.times.reconcile_clock import is_due

MAX_REPORTED_PODS = 3
#: A pod that was lost so long ago does not explain why another one is missing now.
LOST_REPORTED_S = 600.0
NOTHING_TO_RUN = (
    "replicas is 0 in all replicatedJobs, so the job has nothing to run: suspend the job, set replicas, and resume it"
)
#: Whether the zygote forks the workers. If not, each restart costs the time of their imports.
FORKED = "WorkersForked"
#: Whether the others wait for one rank in each step.
SLOW_RANK = "SlowRank"
STARTUP = ("StartupPolicyInProgress", "StartupPolicyCompleted")
SUSPENDED = "the job is suspended: set suspend to false to recreate its pods"
#: Reason of Ready: an elastic job trains with fewer pods.
SHRUNK = "Shrunk"
#: Reason of Ready by the phase of a job that has succeeded; all other phases are reasons themselves.
ENDED = {"Succeeded": "Completed"}


def plan_conditions(observed: Observed, status: JobStatus, result: Outcome | None, now: float) -> tuple[Condition, ...]:
    """All conditions; `status` is this reconcile's, with phase and counts in place, and `result` its outcome."""
    phase = status.phase
    before = {entry.type: entry for entry in observed.job.status.conditions}
    reason, message = _end_reason(phase, result, before)
    shrunk = _describe_shrunk_job(observed) if phase == "Running" else ""
    pods = _pods_in_trouble(observed, now)
    all_train = phase == "Running" and not shrunk  # then pods in trouble are only missing as spares
    wait_reason = _describe_wait(observed, () if all_train else pods, now)
    ready_reason = SHRUNK if shrunk else ENDED.get(phase, phase)
    ready_message = wait_reason or shrunk or ("" if all_train else message or _describe_missing(observed, status))
    wanted: list[DesiredCondition] = [
        ("Ready", phase == "Running", ready_reason, ready_message),
        *_fault_tolerant(observed),
    ]
    if observed.job.spec.world is not None:
        spares = status.spares
        ready, has_spares = f"{spares.ready} of {spares.desired}", spares.ready >= spares.desired
        spare_message = "; ".join([ready, *(pods if all_train else ())])
        wanted += [
            ("Recovering", phase == "Recovering", phase, wait_reason if phase == "Recovering" else ""),
            ("SparesReady", has_spares, "EnoughSpares" if has_spares else "TooFewSpares", spare_message),
            *pool_condition(observed, now),
            *_forked_condition(observed, before),
            *_slow_rank(observed, before),
        ]
    wanted += [
        ("Completed", phase == "Succeeded", *((reason, message) if phase == "Succeeded" else (phase, ""))),
        ("Failed", phase == "Failed", *((reason, message) if phase == "Failed" else (phase, ""))),
        *(_keep_conditions(before, "Suspended", *STARTUP) if observed.job.terminal else ()),
        *_suspended(observed, before),
        *_startup(observed, before),
        *quota_reserved(observed),
        _refusal_condition("Invalid", observed, lasting=True, before=before),
        _refusal_condition("Blocked", observed, lasting=False, before=before),
    ]
    return reported_conditions.build_conditions(observed.job.status, wanted, now)


def _fault_tolerant(observed: Observed) -> Iterator[DesiredCondition]:
    """Absent for injected jobs, whose pods say whether they have a launcher."""
    choice = observed.job.spec.launcher
    if observed.job.injected is None:
        yield FAULT_TOLERANT, choice.has_launcher, choice.reason.value, choice.message


def _forked_condition(observed: Observed, before: Mapping[str, Condition]) -> Iterator[DesiredCondition]:
    """Absent until a pod has reported that its workers are not forked. Without a coordinator it stays as it is."""
    snapshot, condition = observed.snapshot, before.get(FORKED)
    found = None if snapshot is None else snapshot.fork_fallbacks
    if found is not None:
        others = f" (and of {found.pods - 1} more)" if found.pods > 1 else ""
        costs = "start as new processes, which costs the time of their imports at each recovery"
        yield FORKED, False, "NewProcesses", f"workers of pod {found.pod_name}{others} {costs}: {found.reason}"
    elif condition is not None and (snapshot is None or observed.close is not None):
        yield unchanged(condition)
    elif condition is not None:
        yield FORKED, True, "Forked", ""


def _slow_rank(observed: Observed, before: Mapping[str, Condition]) -> Iterator[DesiredCondition]:
    """Absent until a rank was found to be slow. Without a coordinator it stays as it is."""
    snapshot, condition, job = observed.snapshot, before.get(SLOW_RANK), observed.job
    found = None if snapshot is None else snapshot.slow_rank
    has_ended = job.terminal or job.spec.suspend or observed.close is not None
    if found is not None and not has_ended:
        # the operator's own pod: a tenant could forge the node's name
        pod = observed.pods.by_name.get(found.pod_name)
        node = "" if pod is None else pod.node
        on_node, check = (f", node {node}", "Check the node. ") if node else ("", "")
        yield (
            SLOW_RANK,
            True,
            "OthersWait",
            f"rank {found.rank} (pod {found.pod_name}{on_node}) makes each step {found.percent / 100:.1f} times as "
            f"long: it entered the collectives of the last ten steps {found.late_s:.2f} s after the others. The "
            f"training continues. {check}On a cluster, this replaces the pod by a spare: understudy drain {job.name} "
            f"{found.pod_name}",
        )
    elif condition is not None and snapshot is None and not has_ended:
        yield unchanged(condition)
    elif condition is not None:
        yield SLOW_RANK, False, "NoneFound", ""


def _refusal_condition(
    kind: str, observed: Observed, *, lasting: bool, before: Mapping[str, Condition]
) -> DesiredCondition:
    """Whether the API server has rejected a request: for a permanent reason if `lasting`, else for a temporary one."""
    condition = before.get(kind)
    if lasting and observed.spec_error:
        return kind, True, "InvalidSpec", observed.spec_error
    if observed.refusals is None and condition is not None:
        return unchanged(condition)
    # The Secret of a previous attempt that cannot be deleted, for example because of a finalizer, does not block a job.
    refusals = (x for x in observed.refusals or () if not x.key.startswith(DELETE_SECRET))
    refusal = next((x for x in refusals if x.is_lasting == lasting), None)
    if refusal is not None:
        return kind, True, refusal.kind.value, refusal.message
    return kind, False, "Accepted", ""


def _end_reason(phase: str, result: Outcome | None, before: Mapping[str, Condition]) -> tuple[str, str]:
    """The reason and message of the end, which stay the same; before the end, the phase."""
    if isinstance(result, Completed | Failed):
        return result.reason, result.message
    if isinstance(result, Restart):
        return phase, result.message
    condition = before.get({"Succeeded": "Completed", "Failed": "Failed"}.get(phase, ""))
    return (phase, "") if condition is None or not condition.is_true else (condition.reason, condition.message)


def _suspended(observed: Observed, before: Mapping[str, Condition]) -> Iterator[DesiredCondition]:
    """As in JobSet, a job that was never suspended has no such condition."""
    if observed.job.terminal:
        return
    if observed.job.spec.suspend:
        yield "Suspended", True, "SuspendedJobs", SUSPENDED
    elif "Suspended" in before:
        yield "Suspended", False, "ResumeJobs", "the job is resumed"


def _startup(observed: Observed, before: Mapping[str, Condition]) -> Iterator[DesiredCondition]:
    """As in JobSet, a suspended job keeps the conditions of its start."""
    spec = observed.job.spec
    if not spec.in_order or observed.job.terminal:
        return
    if spec.suspend:
        yield from (unchanged(before[kind]) for kind in STARTUP if kind in before)
        return
    progress = startup(spec, group_counts(observed))
    message = f"waiting for {progress.waits_for}" if not progress.is_complete else ""
    for kind, is_true in zip(STARTUP, (not progress.is_complete, progress.is_complete), strict=True):
        yield kind, is_true, f"InOrder{kind}", message


def _keep_conditions(before: Mapping[str, Condition], *kinds: str) -> Iterator[DesiredCondition]:
    """A job that has ended keeps the conditions of its start; Suspended becomes False."""
    for condition in (before[kind] for kind in kinds if kind in before):
        yield condition.type, condition.is_true and condition.type != "Suspended", condition.reason, condition.message


def _describe_shrunk_job(observed: Observed) -> str:
    snapshot = observed.snapshot
    if snapshot is None or not 0 < snapshot.actives < observed.job.world.actives:
        return ""
    declared = observed.job.world.actives
    return f"trains with {snapshot.actives} of {declared} pods: it grows when more pods are available"


def _describe_missing(observed: Observed, status: JobStatus) -> str:
    """Why a job is not Ready if nothing prevents its start; "" after its end."""
    if observed.job.terminal:
        return ""
    if observed.job.spec.suspend:
        return SUSPENDED
    members = status.members
    if observed.job.spec.world is None:
        return f"{members.ready} of {members.desired} pods are ready"
    if 0 < members.active == members.ready:
        return "the workers of all pods run, but a recovery is open: see status.recoveries"
    return f"the workers of {members.ready} of {members.desired} pods run"


def _describe_wait(observed: Observed, pods: Iterable[str], now: float) -> str:
    """A message about why the job does not run; "" if nothing prevents it. pods: messages about its pods."""
    job = observed.job
    if observed.close is not None or job.terminal:
        return ""
    parts = []
    if not job.spec.suspend and not any(group.replicas for group in job.spec.replicated_jobs):
        parts.append(NOTHING_TO_RUN)
    if not job.spec.suspend and (dependency := startup(job.spec, group_counts(observed)).waits_for):
        parts.append(f"waiting for {dependency}")
    if waits_for_previous_attempt(observed):
        parts.append(f"waiting for the end of Jobs and pods from before the restart: {describe_leftovers(observed)}")
    if not job.spec.suspend:
        parts += waits_in_queue(observed)
    parts += describe_job_pods(observed, now)
    if job.spec.world is None:
        return "; ".join([*parts, *_refusals(observed)])
    parts += filter(None, [unreported_loss(observed, now), waits_for_election(observed, now)])
    if observed.snapshot is not None and observed.snapshot.waiting_for:
        parts.append(f"waiting for {observed.snapshot.waiting_for}")
    return "; ".join([*parts, *pods, *stuck_ends(observed, now), *_refusals(observed)])


def _pods_in_trouble(observed: Observed, now: float) -> list[str]:
    """Messages about why pods do not start."""
    job = observed.job
    if observed.close is not None or job.terminal or job.spec.world is None:
        return []
    troubled = _in_trouble(observed.live)
    waiting = [f"pod {pod.name}: {pod.trouble}{_describe_avoided_nodes(pod)}" for pod in troubled[:MAX_REPORTED_PODS]]
    failed = filter(None, [failed_starts.describe_failed_starts(observed, now)])
    return [*waiting, *failed, *_lost_without_ranks(observed, now), *stuck_starts(observed, now)]


@cached_with_pods
def _in_trouble(pods: Pods) -> Pods:
    return pods.where(lambda pod: bool(pod.trouble))


def _lost_without_ranks(observed: Observed, now: float) -> list[str]:
    """Why pods without a recovery were lost, such as spares, while their replacements have not started."""
    snapshot, world = observed.snapshot, observed.job.world
    started = observed.live.number_started
    if snapshot is None or observed.before_first_round or started >= world.actives + world.spares:
        return []
    reported = {recovery.cause.pod for recovery in snapshot.recoveries}
    lost = [x for x in snapshot.lost if x.pod_name not in reported and not is_due(x.at + LOST_REPORTED_S, now)]
    newest = sorted(lost, key=lambda entry: -entry.at)[:MAX_REPORTED_PODS]
    return [f"pod {entry.pod_name} was lost: {_failure(observed, entry.pod_uid) or entry.reason}" for entry in newest]


def _failure(observed: Observed, uid: str) -> str:
    pod = observed.pods.by_uid.get(uid)
    return "" if pod is None else pod.failure


def _describe_avoided_nodes(pod: Pod) -> str:
    """The avoided nodes, which may be why a pod without a node does not get one that is free."""
    nodes = set[str]() if pod.node else avoided_by(pod)
    return f" (it avoids {join_names(nodes)}: see status.avoidedNodes)" if nodes else ""


def _refusals(observed: Observed) -> list[str]:
    return [f"the API server rejects a request: {refusal.message}" for refusal in (observed.refusals or ())[:1]]
