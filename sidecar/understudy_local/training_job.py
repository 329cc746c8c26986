"""The options of a local run as a TrainingJob for the operator's plan. Pure."""

from typing import Any

from understudy_local.options import Options
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.spec import JobSpec, ReplicatedJob, World
from understudy_operator.plan.facts.status import JobStatus

NAMESPACE, NAME, REPLICATED_JOB, CONTAINER = "local", "local", "workers", "trainer"
WINDOW_S = 3600.0
#: The run ends if the script fails on all ranks before its first step this often in a row with the same exception.
SCRIPT_FAULT_ROUNDS = 3


def training_job(options: Options, uid: str, created_at: float, status: JobStatus, *, deleting: bool) -> Job:
    trainer: dict[str, Any] = {"name": CONTAINER, "command": list(options.command)}
    if options.snapshot_path:  # all members have the files of this machine
        trainer["volumeMounts"] = [{"name": "snapshots", "mountPath": options.snapshot_path}]
    pods = {"spec": {"terminationGracePeriodSeconds": options.grace_s, "containers": [trainer]}}
    members = ReplicatedJob(REPLICATED_JOB, {"spec": {"parallelism": options.nodes, "template": pods}})
    world = World(
        groups=(members,),
        nproc_per_node=options.nproc,
        spares=options.spares,
        in_place_max_restarts=options.restarts,
        in_place_window_s=WINDOW_S,
        in_place_max_per_pod=options.restarts_per_member,
        zygote=options.zygote,
        preload=options.preload,
        script_fault_rounds=SCRIPT_FAULT_ROUNDS,
        snapshot_bytes=options.snapshot_bytes,
        snapshot_every=options.snapshot_every,
        wanted_copies=options.snapshot_copies,
        snapshot_path=options.snapshot_path,
        snapshot_path_every=options.snapshot_path_every,
        step_timeout_s=options.step_timeout_s,
        start_timeout_s=options.start_timeout_s,
        slow_rank_percent=options.slow_rank_percent,
    )
    return Job(
        namespace=NAMESPACE,
        name=NAME,
        uid=uid,
        generation=1,
        resource_version="1",
        deleting=deleting,
        created_at=created_at,
        completed_at=None,
        status=status,
        spec=JobSpec((members,), world),
    )
