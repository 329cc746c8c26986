"""The options of a local run as the TrainingJob that the operator's plan knows. Pure."""

from collections.abc import Mapping
from typing import Any

from understudy_local.options import Options
from understudy_operator.plan.observed import Job, JobSpec

NAMESPACE, NAME, REPLICATED_JOB, CONTAINER = "local", "local", "workers", "trainer"
WINDOW_S = 3600.0


def training_job(options: Options, uid: str, created_at: float, status: Mapping[str, Any], *, deleting: bool) -> Job:
    template = {
        "spec": {
            "terminationGracePeriodSeconds": options.grace_s,
            "containers": [{"name": CONTAINER, "command": list(options.command)}],
        }
    }
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
        spec=JobSpec(
            replicated_job=REPLICATED_JOB,
            replicas=1,
            parallelism=options.nodes,
            pod_template=template,
            job_template_metadata={},
            nproc_per_node=options.nproc,
            container=CONTAINER,
            spares=options.spares,
            in_place_max_restarts=options.restarts,
            in_place_window_s=WINDOW_S,
            zygote=options.zygote,
            preload=options.preload,
            in_place_max_per_pod=options.restarts_per_member,
        ),
    )
