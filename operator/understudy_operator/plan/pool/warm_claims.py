"""The claim `Warm`: one write, conditional on the resourceVersion, makes a pool's spare the job's pod as it is.

The write sets the labels, annotations and owner of the job's own spares, and records the pool. Nothing has to be
deleted afterwards, so the claim needs no finalizer: from then on the spare is the job's pod, and the operator only has
to send it the job (adopting.py).
"""

from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.ownership import owner_reference
from understudy_operator.plan.facts.pool_facts import pool_of, template_of
from understudy_operator.plan.intents import ClaimWarm
from understudy_operator.plan.pool.adopting import recent_adoption_failure
from understudy_operator.plan.pool.comparing import difference, job_spare_manifest
from understudy_operator.plan.times.rfc3339 import micro_time
from understudy_protocol import pod as names


def warm_claim_obstacle(observed: Observed, now: float) -> str:
    """Why the job can use no spare of its pool as it is; "" if it can."""
    pool = observed.pool
    if pool is None or pool.definition is None or pool.definition.launcher is None:
        return "the pool's spares have no launcher"
    if failed := recent_adoption_failure(observed, now):
        return f"the operator could not send the job to a spare a moment ago: {failed}"
    return difference(observed.job, pool.definition)


def warm_spare_obstacle(observed: Observed, spare: Pod) -> str:
    """Why the job cannot use this spare as it is, although it could use others; "" if it can."""
    pool = observed.pool
    assert pool is not None, "it has spares"
    if template_of(spare) != pool.template:
        return "it has an old template"
    if pool.secret not in spare.secrets:
        return "its key is not the pool's"
    return "" if spare.address else "it has no address"


def replacement_reason(observed: Observed, now: float) -> str:
    """Why the current claims are Replace, for messages; "" for a pool whose spares only reserve places."""
    pool = observed.pool
    if pool is None or pool.definition is None or pool.definition.launcher is None:
        return ""
    return warm_claim_obstacle(observed, now) or "the spares have an old template"


def claim_warm(observed: Observed, spare: Pod, now: float) -> ClaimWarm:
    job = observed.job
    metadata = job_spare_manifest(job)["metadata"]
    labels: dict[str, str | None] = {
        **metadata["labels"],
        names.LABEL_POOL: None,
        names.LABEL_TEMPLATE_HASH: None,
        names.LABEL_POOL_UID: spare.labels[names.LABEL_JOB_UID],
    }
    annotations: dict[str, str | None] = {
        **metadata["annotations"],
        names.ANNOTATION_WARM_POOL_UID: spare.labels[names.LABEL_JOB_UID],
        names.ANNOTATION_CLAIMED_AT: micro_time(now),
    }
    reason = (
        f"job {job.name} has lost more pods than it has spares, and takes this spare of pool {pool_of(spare)} as it is"
    )
    return ClaimWarm(spare.name, spare.uid, spare.version, job.uid, labels, annotations, owner_reference(job), reason)
