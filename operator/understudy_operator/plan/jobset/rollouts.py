"""The consequences of a failed weight update: which rollouts restart, and how status reports them.

Rules:
- A failed update that may not be retried has one consequence. With RestartJob the coordinator ends the world, and
  failurePolicy decides. With RestartRollouts the operator recreates all rollouts, and training goes on. Another failure
  before they are ready again belongs to the first.
- While an update may be retried, the operator recreates only replicas that stay blocked in its process group: nothing
  else frees them.
- status.rollouts.restartedForUpdate records the handled failure, so that each is handled once. The recovery lasts until
  an update is complete.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.recoveries import cause_status, is_of_rollouts, with_recoveries
from understudy_operator.plan.facts.status import JobStatus, RecoveryStatus, RolloutsStatus, UpdateFailureStatus
from understudy_operator.plan.facts.stays import fill_in_nodes
from understudy_operator.plan.jobset.views import JobPhase, JobView, views
from understudy_operator.plan.times.rfc3339 import micro_time, parse_time
from understudy_protocol.enums import Fault, OnFailedUpdate, Strategy
from understudy_protocol.rollouts import Rollouts, UpdateFailure

REASON = "RolloutsRestarted"


@dataclass(frozen=True)
class RolloutRestart:
    """Rollouts to recreate."""

    jobs: tuple[JobView, ...]
    action: str  # for messages
    reason: str
    counts: bool  # towards failurePolicy.maxRestarts
    update: str  # the failed one


def plan_rollout_restart(observed: Observed) -> RolloutRestart | None:
    """None if nothing is to be done in this reconcile."""
    failure = _unhandled_failure(observed)
    if failure is None or are_rollouts_restarting(observed):
        return None
    spec = observed.job.spec.rollouts
    assert spec is not None
    reason = f"the weights of version {failure.version} were not updated: {failure.message}"
    if failure.in_a_row <= spec.max_retries:
        blocked = tuple(view for view in _jobs(observed) if _is_named(view.name, failure.blocked))
        action = f"{', '.join(view.name for view in blocked)}, blocked in the process group, is recreated"
        return RolloutRestart(blocked, action, reason, False, failure.update) if blocked else None
    jobs = _jobs(observed)
    if spec.on_failed_update is not OnFailedUpdate.RESTART_ROLLOUTS or not jobs:
        return None
    return RolloutRestart(tuple(jobs), "the rollouts are recreated", reason, True, failure.update)


def are_rollouts_restarting(observed: Observed) -> bool:
    """Whether rollouts were recreated, and are not ready again."""
    if not any(is_of_rollouts(x) and x.is_open for x in observed.job.status.recoveries):
        return False
    spec = observed.job.spec.rollouts
    groups = () if spec is None else spec.groups
    wanted = sum(group.replicas for group in observed.job.spec.replicated_jobs if group.name in groups)
    return sum(view.ready for view in _jobs(observed)) < wanted


def rollouts_status(observed: Observed) -> RolloutsStatus | None:
    """status.rollouts; None until a coordinator has reported any."""
    before = observed.job.status.rollouts
    reported = None if observed.snapshot is None else observed.snapshot.rollouts
    if reported is None:
        return before
    failure = _unhandled_failure(observed)
    handled = "" if before is None else before.restarted_for_update
    if failure is not None and are_rollouts_restarting(observed):
        handled = failure.update
    failed = None if reported.failure is None else _failure(reported.failure)
    return RolloutsStatus(
        reported.fresh, reported.updating, reported.uncertain, reported.version, failed, restarted_for_update=handled
    )


def rollout_restart_status(observed: Observed, status: JobStatus, restart: RolloutRestart, now: float) -> JobStatus:
    """The status with the handled failure, and with a recovery if all rollouts restart."""
    rollouts = replace(status.rollouts or RolloutsStatus(), restarted_for_update=restart.update)
    updated = replace(status, rollouts=rollouts)
    reported = observed.snapshot.rollouts if observed.snapshot is not None else None
    if not restart.counts or reported is None or reported.failure is None or reported.cause is None:
        return updated
    entry = RecoveryStatus(
        fault=Fault.WEIGHT_UPDATE,
        detected_at=micro_time(reported.failure.at),
        strategy=Strategy.POD_RECREATE.value,
        reason=f"{restart.action}, and training continues",
        round=max(0, observed.job.round),
        cause=cause_status(reported.cause),
    )
    recoveries = sorted([*status.recoveries, *fill_in_nodes([entry], (), observed)], key=lambda x: x.detected_at)
    return replace(with_recoveries(updated, tuple(recoveries)), phase="Recovering")


def end_rollout_recoveries(
    recoveries: Sequence[RecoveryStatus], rollouts: Rollouts | None, now: float
) -> list[RecoveryStatus]:
    """The recoveries; a complete update ends those that wait for one."""
    if (
        rollouts is None
        or rollouts.failure is not None
        or rollouts.updating
        or rollouts.uncertain
        or not rollouts.fresh
    ):
        return list(recoveries)
    return [
        replace(entry, resumed_at=micro_time(now), pause_seconds=round(now - parse_time(entry.detected_at), 3))
        if is_of_rollouts(entry) and entry.is_open
        else entry
        for entry in recoveries
    ]


def _unhandled_failure(observed: Observed) -> UpdateFailure | None:
    if observed.job.spec.rollouts is None or observed.snapshot is None or observed.snapshot.rollouts is None:
        return None
    failure, recorded = observed.snapshot.rollouts.failure, observed.job.status.rollouts
    handled = "" if recorded is None else recorded.restarted_for_update
    return failure if failure is not None and failure.update != handled else None


def _jobs(observed: Observed) -> list[JobView]:
    """The Jobs of the rollouts that have not ended."""
    spec = observed.job.spec.rollouts
    groups = () if spec is None else spec.groups
    return [view for view in views(observed) if view.group in groups and view.phase is JobPhase.OPEN]


def _is_named(job: str, replicas: Iterable[str]) -> bool:
    """Whether a replica's name is that of the Job or of one of its pods, with or without a domain."""
    hosts = (replica.partition(".")[0] for replica in replicas)
    return any(host == job or (host.startswith(f"{job}-") and host[len(job) + 1 :].isdigit()) for host in hosts)


def _failure(failure: UpdateFailure) -> UpdateFailureStatus:
    return UpdateFailureStatus(
        failure.update, failure.version, failure.message, failure.in_a_row, micro_time(failure.at)
    )
