"""The status of a TrainingJob. JobSet's fields keep JobSet's names and types.

Rules: status is computed from the observed facts, never from a condition of an earlier reconcile; only history
(recoveries, times) is carried over. Fields that only a coordinator knows stay until it reports (the operator has just
started, or a new coordinator waits for members). Without a change there is no write.

The phase: the end has precedence, then a suspension, then a previous attempt that still exists. A job with a world has
the phase of its training; a job without one has that of its Jobs. While no coordinator reports, the phase stays, unless
elections.unreported_loss finds that the job does not train. While the whole gang waits in a queue, it is Pending.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from msgspec.structs import replace

from understudy_operator.plan.capacity.queueing import gang_waits_for_quota
from understudy_operator.plan.facts.counts import member_counts, promoted_spares, reports_rank_holders
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.recoveries import merge_history, with_recoveries
from understudy_operator.plan.facts.status import (
    MAX_COUNT,
    Condition,
    CoordinatorStatus,
    JobStatus,
    ProgressStatus,
    ReplicatedJobStatus,
    SnapshotStatus,
    Spares,
    StrategyCounts,
)
from understudy_operator.plan.facts.stays import fill_in_nodes
from understudy_operator.plan.faults.avoidance import avoided_nodes_status
from understudy_operator.plan.faults.drills import mark_drills, plan_drill
from understudy_operator.plan.jobset.deadline import attempt_start
from understudy_operator.plan.jobset.missed_changes import handled_generation, unrecorded_suspension
from understudy_operator.plan.jobset.outcome import Completed, Failed, Restart, outcome
from understudy_operator.plan.jobset.restart import drop_open_recoveries, has_begun, reset_status, restart_status
from understudy_operator.plan.jobset.rollouts import end_rollout_recoveries, rollouts_status
from understudy_operator.plan.jobset.startup import NO_COUNTS
from understudy_operator.plan.jobset.views import (
    JobPhase,
    JobView,
    ReplicatedJobCounts,
    group_counts,
    pod_counts,
    views,
)
from understudy_operator.plan.leadership.coordination import Leadership
from understudy_operator.plan.leadership.elections import unreported_loss
from understudy_operator.plan.status.causes import explain_causes
from understudy_operator.plan.status.conditions import plan_conditions
from understudy_operator.plan.status.goodput import plan_goodput, without_ratio
from understudy_operator.plan.times.reconcile_clock import is_due
from understudy_operator.plan.times.rfc3339 import micro_time, parse_time
from understudy_operator.plan.world.members import may_start
from understudy_protocol.enums import Strategy, WorkersState
from understudy_protocol.observer import Snapshot, SnapshotTime

#: If only progress has changed, or avoided nodes without pods of the job, status is not written more often than this.
#: All running jobs together write progress at most PROGRESS_WRITES_PER_S times a second, as far as each of them still
#: writes it once in LONGEST_PROGRESS_S.
PROGRESS_EVERY_S, LONGEST_PROGRESS_S = 10.0, 30.0
PROGRESS_WRITES_PER_S = 20.0
#: If only counts of pods have changed, status is not written more often than this. A job of more than a thousand pods
#: waits this long for each thousand.
COUNTS_EVERY_S = 1.0
#: How long a suspension waits for pods to report that training has ended, if no coordinator responds.
END_REPORTED_S = 10.0


def plan_status(observed: Observed, leadership: Leadership, now: float) -> JobStatus:
    """The complete status."""
    job, result, jobs = observed.job, outcome(observed), views(observed)
    status = replace(
        job.status,
        observed_generation=handled_generation(observed),
        replicated_jobs_status=tuple(_replicated_jobs(observed, group_counts(observed))),
    )
    status = replace(status, drill=plan_drill(observed, now))
    if job.injected is not None:
        status = replace(status, target=f"{job.injected.target_kind}/{job.injected.target_name}")
    if job.spec.world is not None:
        status = _with_world(observed, leadership, status, now)
        if result is not None or job.terminal:
            status = replace(status, avoided_nodes=())
    else:
        status = replace(status, members=pod_counts(observed), spares=Spares())
    if isinstance(result, Completed | Failed):
        end = "Completed" if isinstance(result, Completed) else "Failed"
        status = replace(status, terminal_state=end, completion_time=status.completion_time or micro_time(now))
    if any(view.active or view.phase is not JobPhase.OPEN for view in jobs if not view.of_world):
        status = replace(status, start_time=status.start_time or micro_time(now))
    status = replace(status, phase=_phase(observed, status, jobs, now))
    if isinstance(result, Restart):
        status = restart_status(observed, status, result, now)
    elif attempt_ends_by_suspension(observed, now):
        status = drop_open_recoveries(reset_status(job, status, now))
        status = replace(status, phase="Suspended" if job.spec.suspend else "Restarting")
    status = replace(status, goodput=plan_goodput(observed, status, now))
    return _with_summaries(replace(status, conditions=plan_conditions(observed, status, result, now)))


def _with_summaries(status: JobStatus) -> JobStatus:
    """With the fields that repeat others for the columns of kubectl."""
    counts = status.recoveries_by_strategy
    total = sum(getattr(counts, name) or 0 for name in counts.__struct_fields__)
    return replace(
        status, ready=f"{status.members.ready}/{status.members.desired}", recovery_count=min(total, MAX_COUNT)
    )


_ENDS = {"Completed": "Succeeded", "Failed": "Failed"}


def _phase(observed: Observed, status: JobStatus, jobs: Sequence[JobView], now: float) -> str:
    """status: this reconcile's, without the phase and the conditions."""
    if status.terminal_state:
        return _ENDS[status.terminal_state]
    if observed.job.spec.suspend:
        return "Suspended"
    has_previous_jobs = any(child.attempt < observed.job.restarts for child in observed.children)
    if has_previous_jobs or any(not pod.is_done for pod in observed.previous_pods):
        return "Restarting"
    if observed.job.spec.world is None or observed.close is not None:
        return _phase_of_jobs(observed, jobs)
    return _phase_of_world(observed, status, now)


def _phase_of_jobs(observed: Observed, jobs: Sequence[JobView]) -> str:
    # A Job whose pods have all succeeded is ready and not active, until the Job controller reports its end.
    if not any(view.active or view.ready or view.phase is not JobPhase.OPEN for view in jobs):
        return "Pending"
    started_groups = {view.group for view in jobs}
    wanted = sum(group.replicas for group in observed.job.spec.replicated_jobs if group.name in started_groups)
    return "Running" if sum(view.ready or view.phase is not JobPhase.OPEN for view in jobs) >= wanted else "Starting"


def _phase_of_world(observed: Observed, status: JobStatus, now: float) -> str:
    if gang_waits_for_quota(observed):
        return "Pending"
    if status.round < 0:
        return "Starting" if any(pod.node for pod in observed.pods) else "Pending"
    if unreported_loss(observed, now):
        return "Recovering"
    if observed.snapshot is None or not reports_rank_holders(observed, observed.snapshot):
        phase = observed.job.status.phase
        return phase if phase in ("Starting", "Recovering") else "Running"
    if observed.snapshot.waiting_for:
        starts = any(member.workers is WorkersState.STARTING for member in observed.snapshot.members)
        # The first round after a suspension is no recovery, although status has recoveries from before.
        is_first = observed.snapshot.token.round == 0 and not any(entry.is_open for entry in status.recoveries)
        return "Starting" if starts and (is_first or not status.recoveries) else "Recovering"
    # A recovery of the rollouts may be open while a later one, of the training, has ended.
    return "Recovering" if any(entry.is_open for entry in status.recoveries) else "Running"


def attempt_ends_by_suspension(observed: Observed, now: float) -> bool:
    """Whether the attempt of the world ends in this reconcile, because the job is suspended or was in the meantime."""
    if unrecorded_suspension(observed):
        return True
    if observed.job.spec.world is None and not observed.job.terminal:  # it may have lost its launcher meanwhile
        return bool(observed.job.status.coordinator.pod_uid)
    if not observed.job.spec.suspend or observed.job.spec.world is None or observed.close is not None:
        return False
    return has_begun(observed) and not _may_have_ended(observed, now)


def _may_have_ended(observed: Observed, now: float) -> bool:
    """Whether training may have ended a moment ago: no coordinator responds, and pods have not reported their end."""
    coordination = observed.coordination
    closed = coordination.snapshot is not None and coordination.snapshot.closed is not None
    if coordination.coordinator_uid or closed or observed.job.round < 0 or all(pod.is_done for pod in observed.pods):
        return False
    return not is_due(coordination.since + END_REPORTED_S, now)


def is_worth_writing(
    before: JobStatus,
    status: JobStatus,
    now: float,
    *,
    pods: int = 0,
    running_jobs: int = 1,
    has_coordinator: bool = True,
    written_at: float = 0.0,
) -> bool:
    """Whether anything has changed that does not wait, or what waits is due.

    The last progress of a coordinator that is lost is written at once: the next one does not know it.
    pods: the number of the job's pods. running_jobs: as in Observed. written_at: this process's newest write of the
    status; 0.0: none.
    """
    changed, counts = _changed(before, status), _only_counted(before, status)
    others = changed - counts
    if others and not (has_coordinator and others <= _may_wait(before, status)):
        return True
    if changed & counts and (written_at > now or is_due(written_at + COUNTS_EVERY_S * max(1.0, pods / 1000), now)):
        return True
    if not others:
        return False
    reported_at = None if before.progress is None else before.progress.at
    return reported_at is None or is_due(parse_time(reported_at) + progress_every_s(running_jobs), now)


def progress_every_s(running_jobs: int) -> float:
    """The least time between two writes of a job's progress, in seconds."""
    return min(LONGEST_PROGRESS_S, max(PROGRESS_EVERY_S, running_jobs / PROGRESS_WRITES_PER_S))


def is_news(before: JobStatus, status: JobStatus) -> bool:
    """Whether the written changes may affect the next reconcile."""
    return not _changed(before, status) <= _may_wait(before, status) | _only_counted(before, status)


def _may_wait(before: JobStatus, status: JobStatus) -> set[str]:
    """The fields whose change may wait. Each job avoids a bad node, and most jobs have no pod there. If each of them
    wrote this at once, one verdict would lead to as many writes as the fleet has jobs.
    """
    own_before, own = (tuple(x for x in of.avoided_nodes if x.pods) for of in (before, status))
    return {"progress", "avoided_nodes"} if own_before == own else {"progress"}


def _only_counted(before: JobStatus, status: JobStatus) -> set[str]:
    """The fields in which at most counts of pods have changed, or what repeats them while a job starts. Pods appear and
    become ready one by one: with a write for each, a job of one pod had seven writes until it ran.
    """
    fields = {"ready", "members", "spares"}
    entries = [[replace(entry, **_NO_COUNTS) for entry in of.replicated_jobs_status] for of in (before, status)]
    if entries[0] == entries[1]:
        fields.add("replicated_jobs_status")
    if {before.phase, status.phase} <= _BEFORE_THE_START:
        fields.add("phase")
    if _without_counts(before) == _without_counts(status):
        fields.add("conditions")
    if before.coordinator.term == 0 and status.coordinator == replace(before.coordinator, term=1):
        fields.add("coordinator")  # the appointed one has begun its term
    return fields


_BEFORE_THE_START = {"Pending", "Starting"}
_NO_COUNTS = asdict(NO_COUNTS)


def _without_counts(status: JobStatus) -> tuple[Condition, ...]:
    """The conditions. While a job starts, the reason of some is the phase, and Ready counts the pods whose workers run.
    Ready counts them in a recovery, too, and SparesReady always counts the spares.
    """

    def counts(entry: Condition) -> bool:
        return entry.type == "SparesReady" or (entry.type == "Ready" and entry.reason == "Recovering")

    return tuple(
        replace(entry, reason="", message="")
        if entry.reason in _BEFORE_THE_START
        else replace(entry, message="")
        if counts(entry)
        else entry
        for entry in status.conditions
    )


def _changed(before: JobStatus, status: JobStatus) -> set[str]:
    before, status = without_ratio(before), without_ratio(status)  # it follows the progress
    return {name for name in JobStatus.__struct_fields__ if getattr(status, name) != getattr(before, name)}


def _with_world(observed: Observed, leadership: Leadership, status: JobStatus, now: float) -> JobStatus:
    members, spares = member_counts(observed)
    status = replace(
        status,
        members=members,
        spares=spares,
        promoted_spares=promoted_spares(observed),
        avoided_nodes=avoided_nodes_status(observed, now),
        attempt_start_time=attempt_start(observed, may_start=may_start(observed), now=now),
    )
    if leadership.pod is not None and leadership.epoch:
        term, holder, recorded = leadership.term, leadership.pod, status.coordinator
        kept = recorded.former_epoch, recorded.previous_attempt, recorded.address
        coordinator = CoordinatorStatus(leadership.epoch, term, holder.name, holder.uid, *kept)
        status = replace(status, coordinator=coordinator)
    if observed.snapshot is not None:
        status = _with_snapshot(observed, observed.snapshot, status, now)
    if observed.coordinator_address:
        status = replace(status, coordinator=replace(status.coordinator, address=observed.coordinator_address))
    return status


def _with_snapshot(observed: Observed, snapshot: Snapshot, status: JobStatus, now: float) -> JobStatus:
    recorded = status.recoveries
    recoveries = explain_causes(merge_history(recorded, snapshot, now), recorded, observed.pods)
    recoveries = fill_in_nodes(recoveries, recorded, observed)
    recoveries = mark_drills(recoveries, recorded, status.drill)
    recoveries = end_rollout_recoveries(recoveries, snapshot.rollouts, now)
    counts = snapshot.recoveries_by_strategy
    status = replace(
        with_recoveries(status, tuple(recoveries)) if recoveries else status,
        rollouts=rollouts_status(observed),
        recoveries_by_strategy=StrategyCounts(
            in_place=counts.get(Strategy.IN_PLACE.value),
            spare_swap=counts.get(Strategy.SPARE_SWAP.value),
            pod_recreate=counts.get(Strategy.POD_RECREATE.value),
            job_restart=status.recoveries_by_strategy.job_restart,
        ),
    )
    if snapshot.token.round >= 0:
        start = status.start_time or micro_time(now)
        status = replace(status, round=max(snapshot.token.round, status.round), start_time=start)
    if snapshot.progress is not None:
        progress, at = snapshot.progress, micro_time(snapshot.progress.at)
        newest_saved, copied = _snapshot_status(progress.snapshot), _snapshot_status(progress.copied)
        newest = ProgressStatus(progress.step, progress.total, at, progress.is_counted, newest_saved, copied)
        status = replace(status, progress=newest)
    return status


def _snapshot_status(found: SnapshotTime | None) -> SnapshotStatus | None:
    return None if found is None else SnapshotStatus(found.step, micro_time(found.at))


def _replicated_jobs(observed: Observed, counts: Mapping[str, ReplicatedJobCounts]) -> Iterator[ReplicatedJobStatus]:
    """The entries, with the recorded restarts of single Jobs."""
    for group in observed.job.spec.replicated_jobs:
        entry = observed.job.status.replicated_job(group.name) or ReplicatedJobStatus(group.name)
        yield replace(entry, **asdict(counts.get(group.name, NO_COUNTS)))
