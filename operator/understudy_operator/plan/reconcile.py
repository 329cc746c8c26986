"""One reconcile of one TrainingJob: from everything observed to the plan."""

from collections.abc import Sequence
from dataclasses import replace

from understudy_operator.plan.facts import keys
from understudy_operator.plan.facts.observed import Coordination, Observed
from understudy_operator.plan.facts.pods import NO_PODS, Pods, cached_with_pods
from understudy_operator.plan.facts.status import JobStatus
from understudy_operator.plan.faults.drills import drill_deletions, drill_order
from understudy_operator.plan.injection.resolve import plan_target, resolve_injected_job
from understudy_operator.plan.intents import (
    AdoptSpare,
    Create,
    DeletePod,
    DeleteSecret,
    Follow,
    PatchPod,
    Plan,
    PodIntent,
    ReleasePod,
    Unfollow,
)
from understudy_operator.plan.jobset.children import exited_server_events, plan_children
from understudy_operator.plan.jobset.deadline import overdue, remaining_s
from understudy_operator.plan.jobset.missed_changes import unrecorded_suspension
from understudy_operator.plan.jobset.outcome import Restart, outcome
from understudy_operator.plan.jobset.pod_queries import plan_pod_queries
from understudy_operator.plan.jobset.validation import describe_spec_error
from understudy_operator.plan.leadership.coordination import Leadership, plan_label, plan_leadership, plan_link
from understudy_operator.plan.leadership.elections import is_coordinator_missing
from understudy_operator.plan.pool.adopting import plan_adoptions, unadopted
from understudy_operator.plan.pool.claiming import plan_claims
from understudy_operator.plan.status.events import plan_events
from understudy_operator.plan.status.next_status import (
    attempt_ends_by_suspension,
    is_worth_writing,
    plan_status,
    progress_every_s,
)
from understudy_operator.plan.status.recovery_history import plan_recovery_history
from understudy_operator.plan.times.reconcile_clock import ReconcileClock
from understudy_operator.plan.world.dry_runs import plan_dry_runs
from understudy_operator.plan.world.members import plan_members
from understudy_operator.plan.world.objects import plan_objects
from understudy_operator.plan.world.retries import TRY_AGAIN_S, without_paused
from understudy_protocol.enums import CloseReason
from understudy_protocol.observer import End

#: Used while the operator searches for a coordinator, waits for a child Job's pods, or sends a spare its job: these
#: answers do not trigger a reconcile.
POLL_INTERVAL_S = 2.0
#: A job that has not ended is reconciled at least so often.
MAX_INTERVAL_S = 30.0
#: Decisions that become due within this time share one reconcile: those of thousands of pods become due one by one.
MIN_INTERVAL_S = 0.2
SUSPENDED = Unfollow(End(CloseReason.SUSPENDED, "the job is suspended"))


def reconcile(observed: Observed, sidecar_image: str, at: float) -> Plan:
    """The plan of this reconcile. Pure: the same facts give the same plan."""
    now = ReconcileClock(at)
    observed = resolve_injected_job(_select_attempt(observed))
    missing = is_coordinator_missing(observed, now)
    observed = replace(observed, overdue=overdue(observed, now), coordinator_missing=missing)
    if observed.job.deleting:
        return Plan(link=plan_link(observed, plan_leadership(observed, now), now))
    if observed.job.spec.managed_by not in keys.OURSELVES:
        return Plan()  # another controller manages it
    ended = observed.job.terminal or (observed.close is not None and not observed.job.spec.children)
    objects = () if ended else plan_objects(observed, now)
    if observed.job.status == JobStatus() and not observed.refusals and any(map(_is_service, objects)):
        return Plan(objects=objects, requeue_after_s=POLL_INTERVAL_S)  # the first status has the Service's address
    leadership = plan_leadership(observed, now)
    status = plan_status(observed, leadership, now)
    dry_runs = () if ended else plan_dry_runs(observed, sidecar_image)
    farewell = _farewell_if_attempt_ends(observed, now)
    claims = plan_claims(observed, sidecar_image, now)
    # If an attempt ends, nothing else is changed: the next reconcile finds the end in status.
    suppress_changes = bool(dry_runs) or farewell is not None or isinstance(outcome(observed), Restart)
    adoptions = () if suppress_changes else plan_adoptions(observed, now)
    plan = Plan(
        adopt=tuple(step for step in adoptions if isinstance(step, AdoptSpare)),
        dry_runs=dry_runs,
        objects=objects,
        status=status if _is_worth_writing(observed, status, now) else None,
        jobs=() if suppress_changes else (*plan_children(observed, sidecar_image, now), *plan_target(observed)),
        claims=() if suppress_changes else claims.claims,
        pods=()
        if suppress_changes
        else _drop_patches_of_deleted_pods(
            (
                *claims.pods,
                *(step for step in adoptions if not isinstance(step, AdoptSpare)),
                *plan_members(observed, sidecar_image, now),
                *drill_deletions(observed, status.drill, now),
                *plan_label(observed, leadership),
            )
        ),
        link=farewell or _link(observed, leadership, status, now),
        events=(
            *plan_events(observed, leadership, status),
            *(() if suppress_changes else exited_server_events(observed, now)),
        ),
        recoveries=plan_recovery_history(observed, status, now),
        remove=_expired(observed, now),
    )
    plan = without_paused(plan, observed.paused, now)
    return replace(plan, requeue_after_s=_requeue_after_s(observed, now))


def _is_service(intent: Create | DeleteSecret) -> bool:
    return isinstance(intent, Create) and intent.manifest["kind"] == "Service"


def _is_worth_writing(observed: Observed, status: JobStatus, now: float) -> bool:
    return is_worth_writing(
        observed.job.status,
        status,
        now,
        pods=len(observed.pods),
        running_jobs=observed.running_jobs,
        has_coordinator=bool(observed.coordination.coordinator_uid),
        written_at=observed.status_written_at,
    )


def _select_attempt(observed: Observed) -> Observed:
    """Before any decision: move pods of previous attempts to previous_pods, and drop the report of a previous attempt's
    coordinator.
    """
    epoch, coordination = observed.job.previous_epoch, observed.coordination
    if coordination.snapshot is not None and epoch and coordination.snapshot.token.epoch <= epoch:
        coordination = Coordination(since=coordination.since)
    # Injected pods do not know their attempt. Only a suspension ends one, and then their controller deletes the pods.
    is_injected = observed.job.injected is not None
    return replace(
        observed,
        pods=observed.pods if is_injected else _of_attempt(observed.pods, epoch),
        previous_pods=NO_PODS if is_injected else _of_others(observed.pods, epoch),
        coordination=coordination,
        spec_error="" if is_injected else describe_spec_error(observed.job.name, observed.job.spec),
    )


@cached_with_pods
def _of_attempt(pods: Pods, attempt: int) -> Pods:
    return pods.where(lambda pod: pod.attempt == attempt)


@cached_with_pods
def _of_others(pods: Pods, attempt: int) -> Pods:
    return pods.where(lambda pod: pod.attempt != attempt)


def _drop_patches_of_deleted_pods(intents: Sequence[PodIntent]) -> tuple[PodIntent, ...]:
    """Do not patch a pod that this plan deletes: the patch would change its version and the deletion would fail."""
    deleted_names = {intent.name for intent in intents if isinstance(intent, (DeletePod, ReleasePod))}
    return tuple(intent for intent in intents if not isinstance(intent, PatchPod) or intent.name not in deleted_names)


def _farewell_if_attempt_ends(observed: Observed, now: float) -> Unfollow | None:
    """The final message to the members, if this reconcile ends the attempt of the world."""
    result = outcome(observed)
    restarts_world = isinstance(result, Restart) and (result.single_job is None or result.single_job.of_world)
    if isinstance(result, Restart) and restarts_world and observed.job.spec.world is not None:
        return Unfollow(End(CloseReason.DELETED, f"the job restarts: {result.message}"))
    if attempt_ends_by_suspension(observed, now):
        reason = unrecorded_suspension(observed)
        return Unfollow(End(CloseReason.SUSPENDED, reason)) if reason else SUSPENDED
    return None


def _link(observed: Observed, leadership: Leadership, status: JobStatus, now: float) -> Follow | Unfollow | None:
    link = None if observed.job.spec.world is None else plan_link(observed, leadership, now)
    return replace(link, drill=drill_order(observed, status.drill, now)) if isinstance(link, Follow) else link


def _expired(observed: Observed, now: float) -> str:
    remaining = remaining_s(observed.job, now)
    return f"it ended {observed.job.spec.ttl_s:g} s ago" if remaining is not None and remaining <= 0 else ""


def _requeue_after_s(observed: Observed, now: ReconcileClock) -> float | None:
    job = observed.job
    pods_ended = all(pod.is_done for pod in (*observed.pods, *observed.previous_pods))
    jobs_ended = all(child.ended for child in observed.children)
    world_closed = job.spec.world is not None and observed.close is not None and not job.spec.children
    if (job.terminal or world_closed) and pods_ended and jobs_ended:
        remaining = remaining_s(job, now)
        return None if remaining is None else max(remaining, POLL_INTERVAL_S)
    at_most_s = min(_at_most_s(observed, now), TRY_AGAIN_S if observed.refusals else MAX_INTERVAL_S)
    return max(MIN_INTERVAL_S, min(at_most_s, now.remaining_s))


def _at_most_s(observed: Observed, now: ReconcileClock) -> float:
    """The longest time until the next reconcile, if nothing triggers one."""
    is_searching = not observed.coordination.coordinator_uid or observed.lacks_majority
    queries = plan_pod_queries(observed.children, observed.nodes, now).selectors
    if queries or unadopted(observed) or (is_searching and observed.job.spec.world is not None):
        return POLL_INTERVAL_S
    makes_steps = observed.snapshot is not None and observed.snapshot.progress is not None
    return progress_every_s(observed.running_jobs) if makes_steps else MAX_INTERVAL_S
