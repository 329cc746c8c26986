"""The facts about a job that each of its sidecars gets at its start, and the name of the Secret with them.

All pods of a job need the same facts. A Secret contains them, so that they are not in each of thousands of pods. But a
change of the job applies to new pods only (the fields of `recovery` can change at any time), and the operator can
neither read nor change a Secret. So the name of the Secret contains a digest of the facts: if they change, new pods
mount another Secret. Each Secret stays until the job is deleted.
"""

import hashlib

import msgspec

from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.manifests.pods import DEFAULT_GRACE_S, variables_in_facts
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


def job_facts_json(job: Job, coordinator_address: str) -> str:
    """The content of JOB_FILE. coordinator_address: host:port of the coordinator's Service."""
    if job.injected is None:
        shape = job_shape(job, _longest_grace_s(job))
        facts = names.JobFacts(shape, coordinator_address, variables=variables_in_facts(job))
    else:
        facts = names.JobFacts(job_shape(job, job.injected.grace_s), coordinator_address, job.injected.groups)
    return msgspec.json.encode(facts).decode()


def facts_secret_name(job: Job, coordinator_address: str) -> str:
    digest = hashlib.sha256(job_facts_json(job, coordinator_address).encode()).hexdigest()[:10]
    return f"{job.name}-{job.uid}-facts-{digest}"


def _longest_grace_s(job: Job) -> int:
    """In seconds: the largest terminationGracePeriodSeconds of the world's templates."""
    specs = [group.pod_template.get("spec", {}) for group in job.world.groups]
    return max(int(spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)) for spec in specs)
