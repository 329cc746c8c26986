"""The Jobs of a TrainingJob as its policies see them: child Jobs, and the world's, which exist only by name.

Rules: only Jobs of the current attempt count. The world's Jobs have one state: they are ready while all ranks train,
and succeed or fail when the rendezvous closes; they fail for the reason of a Job that has used up its retries. A Job of
the world that is past its activeDeadlineSeconds fails alone, and ends the world (deadline.py).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from understudy_operator.plan.facts.cluster_objects import ChildJob
from understudy_operator.plan.facts.counts import member_counts
from understudy_operator.plan.facts.launcher_choice import MOST_MEMBERS
from understudy_operator.plan.facts.observed import Observed, cached_per_reconcile
from understudy_operator.plan.facts.status import Members
from understudy_operator.plan.manifests.metadata import job_name
from understudy_protocol.enums import CloseReason

#: The reason when the world's Jobs fail: that of a Job that has used up its retries.
EXHAUSTED = "BackoffLimitExceeded"
#: Or the reason and message of the Job controller for a Job that is past its activeDeadlineSeconds.
OVERDUE = "DeadlineExceeded", "Job was active longer than specified deadline"


class JobPhase(Enum):
    OPEN = "open"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True)
class JobView:
    name: str
    group: str  # its replicatedJob
    index: int
    phase: JobPhase = JobPhase.OPEN
    ready: bool = False
    active: bool = False
    suspended: bool = False
    reason: str = ""  # of its failure
    message: str = ""
    ended_at: float = 0.0
    of_world: bool = False


@dataclass(frozen=True)
class ReplicatedJobCounts:
    """The Jobs of a replicatedJob, as JobSet counts them."""

    ready: int = 0
    succeeded: int = 0
    failed: int = 0
    active: int = 0
    suspended: int = 0

    @property
    def started(self) -> int:
        return self.ready + self.succeeded + self.failed


@cached_per_reconcile
def views(observed: Observed) -> tuple[JobView, ...]:
    """All Jobs of the current attempt."""
    current = (_child(child) for child in observed.children if is_current(observed, child))
    return (*current, *_of_world(observed))


@cached_per_reconcile
def group_counts(observed: Observed) -> Mapping[str, ReplicatedJobCounts]:
    """The Jobs of the current attempt, by replicatedJob."""
    return count_by_group(views(observed))


def pod_counts(observed: Observed) -> Members:
    """For status.members of a job without a launcher: the pods of the current attempt's Jobs, from their status."""
    jobs = [child for child in observed.children if is_current(observed, child)]
    desired = sum(group.replicas * group.concurrent_pods for group in observed.job.spec.replicated_jobs)
    return Members(desired, sum(x.active for x in jobs), sum(x.ready for x in jobs))


def is_current(observed: Observed, child: ChildJob) -> bool:
    """Whether the spec has the Job, and it is of the current attempt."""
    return not is_of_previous_attempt(observed, child) and any(
        child.group == group.name and child.index < group.replicas for group in observed.job.spec.children
    )


def is_of_previous_attempt(observed: Observed, child: ChildJob) -> bool:
    """Whether it was created before a restart, of the job or of the Job itself."""
    job = observed.job
    return child.attempt < job.restarts or child.job_attempt < job.restarts_of(child.group, child.index)


def count_by_group(views: Iterable[JobView]) -> Mapping[str, ReplicatedJobCounts]:
    """By replicatedJob, without those that have no Jobs yet."""
    of: dict[str, list[JobView]] = {}
    for view in views:
        of.setdefault(view.group, []).append(view)
    return {
        name: ReplicatedJobCounts(
            ready=sum(view.ready for view in jobs),
            succeeded=sum(view.phase is JobPhase.SUCCEEDED for view in jobs),
            failed=sum(view.phase is JobPhase.FAILED for view in jobs),
            active=sum(view.active for view in jobs),
            suspended=sum(view.suspended for view in jobs),
        )
        for name, jobs in of.items()
    }


def _child(child: ChildJob) -> JobView:
    if child.ended:
        view = JobView(child.name, child.group, child.index, JobPhase.SUCCEEDED, ended_at=child.ended_at)
        if child.is_complete:
            return view
        return replace(view, phase=JobPhase.FAILED, reason=child.reason, message=child.message)
    return JobView(
        child.name,
        child.group,
        child.index,
        ready=child.ready + child.succeeded >= child.desired_pods,
        active=child.active > 0,
        suspended=child.suspended,
    )


def _of_world(observed: Observed) -> Iterator[JobView]:
    job = observed.job
    if job.spec.world is None or job.world.actives > MOST_MEMBERS:
        return  # a larger one has an error in its spec, and does not start
    close, suspended = observed.world_close, job.spec.suspend
    if close is None and not suspended and not world_started(observed) and not observed.overdue:
        return
    members, _ = member_counts(observed)
    ready = close is None and members.ready == members.desired > 0
    active = close is None and not suspended and any(not pod.ended for pod in observed.pods)
    phase = JobPhase.OPEN
    if close is not None:
        phase = JobPhase.SUCCEEDED if close.reason is CloseReason.SUCCEEDED else JobPhase.FAILED
    reason, message = (EXHAUSTED, close.message) if close is not None and phase is JobPhase.FAILED else ("", "")
    for group in job.world.groups:
        late = close is None and group.name in observed.overdue
        for index in range(group.replicas):
            view = JobView(
                job_name(job, group, index),
                group.name,
                index,
                phase,
                ready=ready and not suspended,
                active=active,
                suspended=close is None and suspended,
                of_world=True,
                reason=reason,
                message=message,
            )
            yield _late(view) if late else view


def _late(view: JobView) -> JobView:
    reason, message = OVERDUE
    return replace(view, phase=JobPhase.FAILED, ready=False, active=False, reason=reason, message=message)


def world_started(observed: Observed) -> bool:
    """Whether this attempt of the world has pods or had a round."""
    return bool(observed.pods) or observed.job.round >= 0
