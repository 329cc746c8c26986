"""The facts about a job that each of its sidecars gets at its start."""

from understudy_operator.plan.facts.job import Job
from understudy_protocol import pod as names
from understudy_protocol.enums import Proactive


def job_shape(job: Job, grace_s: int) -> names.JobShape:
    return names.JobShape(
        job.membership,
        job.namespace,
        job.name,
        job.world.actives,
        job.world.nproc_per_node,
        job.world.in_place_max_restarts,
        job.world.in_place_window_s,
        job.world.min_actives,
        job.world.spare_timeout_s,
        job.world.fence_s,
        job.world.backoff_max_delay_s,
        float(grace_s),
        job.world.replica_groups,
        job.world.in_place_max_per_pod,
        None if job.spec.rollouts is None else job.spec.rollouts.on_failed_update,
        0 if job.spec.rollouts is None else job.spec.rollouts.max_retries,
        Proactive(job.world.proactive_replacement),
        job.world.launcher_timeout_s,
        job.world.script_fault_rounds,
        job.world.start_timeout_s,
        job.world.snapshot_bytes > 0,
        job.world.snapshot_copies,
        job.world.slow_rank_percent,
    )
