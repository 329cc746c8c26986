"""A new attempt: which fields of status a restart or a suspension of the job resets, and which it counts.

Rules: pods have a label with their attempt. Pods of a previous attempt are only removed; their state does not count. An
attempt of the world has the newest epoch before it as its name: its coordinator is appointed in a higher epoch, so
UNDERSTUDY_ROUND fences the processes of the previous attempt. Members of the previous attempt cannot join: the attempt
is part of the name under which they authenticate, and their key is that of their attempt.
"""

from msgspec.structs import replace

from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.recoveries import with_recoveries
from understudy_operator.plan.facts.status import (
    JOB_RESTART,
    CauseStatus,
    CoordinatorStatus,
    JobStatus,
    Members,
    RecoveryStatus,
    ReplicatedJobStatus,
    Spares,
)
from understudy_operator.plan.jobset.outcome import Restart
from understudy_operator.plan.jobset.rollouts import rollout_restart_status
from understudy_operator.plan.times.rfc3339 import micro_time
from understudy_protocol.enums import Fault


def restart_status(observed: Observed, status: JobStatus, restart: Restart, now: float) -> JobStatus:
    """The status after a restart; if one Job restarts alone, the rest of the status stays."""
    job, world = observed.job, observed.job.spec.world
    if restart.single_job is None:
        counted = job.job_restarts_counted + restart.counts
        updated = replace(status, restarts=job.restarts + 1, restarts_count_towards_max=counted)
    else:
        updated = replace(status, replicated_jobs_status=_count_job_restarts(observed, status, restart))
    if restart.rollouts is not None:
        return rollout_restart_status(observed, updated, restart.rollouts, now)
    of_world = world is not None and (
        restart.single_job is None or restart.single_job.group in {x.name for x in world.groups}
    )
    if restart.single_job is None or of_world:
        updated = replace(updated, phase="Restarting")
    if not of_world:
        return updated
    updated = _with_recovery(reset_status(job, updated, now), restart, now)
    counts = updated.recoveries_by_strategy
    return replace(updated, recoveries_by_strategy=replace(counts, job_restart=(counts.job_restart or 0) + 1))


def reset_status(job: Job, status: JobStatus, now: float) -> JobStatus:
    """The status of a world without pods, coordinator and rounds. The job may have lost its launcher, and its world."""
    world = job.spec.world
    names = set() if world is None else {group.name for group in world.groups}
    jobs = (
        replace(entry, ready=0, succeeded=0, failed=0, active=0) if entry.name in names else entry
        for entry in status.replicated_jobs_status
    )
    # Greater than each epoch before, even if the clock went back: no two attempts have the same key.
    epoch = max(job.status.coordinator.epoch, int(now), job.previous_epoch + 1)
    previous = job.attempt if job.injected is None else None
    return replace(
        status,
        round=-1,
        progress=status.progress and replace(status.progress, snapshot=None, copied_snapshot=None),
        rollouts=None,
        promoted_spares=(),
        attempt_start_time=None,
        replicated_jobs_status=tuple(jobs),
        members=status.members if world is None else Members(desired=world.actives),
        spares=Spares() if world is None else Spares(desired=world.spares),
        coordinator=CoordinatorStatus(
            epoch, former_epoch=epoch, previous_attempt=previous, address=status.coordinator.address
        ),
    )


def drop_open_recoveries(status: JobStatus) -> JobStatus:
    """Without recoveries that have not ended: a suspension neither completes them nor is it a fault."""
    return with_recoveries(status, tuple(entry for entry in status.recoveries if not entry.is_open))


def has_begun(observed: Observed) -> bool:
    """Whether the current attempt has pods or a coordinator. Pods of an injected job do not count: they may be old."""
    has_pods = observed.job.injected is None and bool(observed.pods)
    return has_pods or bool(observed.job.status.coordinator.pod_uid)


def _count_job_restarts(observed: Observed, status: JobStatus, restart: Restart) -> tuple[ReplicatedJobStatus, ...]:
    assert restart.single_job is not None
    job, view = observed.job, restart.single_job
    world = {} if job.spec.world is None else {group.name: group for group in job.world.groups}
    rollout_jobs = () if restart.rollouts is None else restart.rollouts.jobs
    jobs = {(x.group, x.index) for x in (view, *rollout_jobs)}
    together = set(world) if view.group in world else {group for group, _ in jobs}
    entries = []
    for entry in status.replicated_jobs_status:
        group = next(group for group in job.spec.replicated_jobs if group.name == entry.name)
        if entry.name not in together:
            entries.append(entry)
            continue
        restarts = [job.restarts_of(group.name, index) for index in range(group.replicas)]
        counted = [job.counted_restarts_of(group.name, index) for index in range(group.replicas)]
        for index in range(group.replicas):
            restarts[index] += entry.name in world or (entry.name, index) in jobs
        if entry.name == view.group:
            counted[view.index] += restart.counts
        counts = {"job_restarts": tuple(restarts), "job_restarts_count_towards_max": tuple(counted)}
        entries.append(replace(entry, **counts))
    return tuple(entries)


def _with_recovery(status: JobStatus, restart: Restart, now: float) -> JobStatus:
    """Add the restart: as the strategy of the open recovery, or as a recovery of its own."""
    last = status.recoveries[-1] if status.recoveries and status.recoveries[-1].is_open else None
    if last is not None:
        reason = "; ".join(filter(None, (last.reason, restart.message)))
        return with_recoveries(status, (*status.recoveries[:-1], replace(last, strategy=JOB_RESTART, reason=reason)))
    cause = CauseStatus(message=restart.message)
    entry = RecoveryStatus(Fault.PROCESS, micro_time(now), JOB_RESTART, restart.message, 0, cause)
    return with_recoveries(status, (*status.recoveries, entry))
