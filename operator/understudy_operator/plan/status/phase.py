"""The phase of a job.

Rules: the end has precedence, then a suspension, then a previous attempt that still exists. A job with a world has the
phase of its training; a job without one has that of its Jobs. While no coordinator reports, the phase stays, unless
elections.unreported_loss finds that the job does not train. While the whole gang waits in a queue, it is Pending.
"""

from collections.abc import Sequence

from understudy_operator.plan.capacity.queueing import gang_waits_for_quota
from understudy_operator.plan.facts.counts import reports_rank_holders
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.status import JobStatus
from understudy_operator.plan.jobset.views import JobPhase, JobView
from understudy_operator.plan.leadership.elections import unreported_loss
from understudy_protocol.enums import WorkersState

_ENDS = {"Completed": "Succeeded", "Failed": "Failed"}


def phase(observed: Observed, status: JobStatus, jobs: Sequence[JobView], now: float) -> str:
    """status: this reconcile's, without the phase and the conditions."""
    if status.terminal_state:
        return _ENDS[status.terminal_state]
    if observed.job.spec.suspend:
        return "Suspended"
    has_previous_jobs = any(child.attempt < observed.job.restarts for child in observed.children)
    if has_previous_jobs or any(not pod.is_done for pod in observed.previous_pods):
        return "Restarting"
    if observed.job.spec.world is None or observed.close is not None:
        return _of_jobs(observed, jobs)
    return _of_world(observed, status, now)


def _of_jobs(observed: Observed, jobs: Sequence[JobView]) -> str:
    if not any(view.active or view.phase is not JobPhase.OPEN for view in jobs):
        return "Pending"
    started_groups = {view.group for view in jobs}
    wanted = sum(group.replicas for group in observed.job.spec.replicated_jobs if group.name in started_groups)
    return "Running" if sum(view.ready or view.phase is not JobPhase.OPEN for view in jobs) >= wanted else "Starting"


def _of_world(observed: Observed, status: JobStatus, now: float) -> str:
    if gang_waits_for_quota(observed):
        return "Pending"
    if status.round < 0:
        return "Starting" if any(pod.node for pod in observed.pods) else "Pending"
    if unreported_loss(observed, now):
        return "Recovering"
    if observed.snapshot is None or not reports_rank_holders(observed, observed.snapshot):
        return "Recovering" if observed.job.status.phase == "Recovering" else "Running"
    if observed.snapshot.waiting_for:
        starts = any(member.workers is WorkersState.STARTING for member in observed.snapshot.members)
        return "Starting" if starts and not status.recoveries else "Recovering"
    # A recovery of the rollouts may be open while a later one, of the training, has ended.
    return "Recovering" if any(entry.is_open for entry in status.recoveries) else "Running"
