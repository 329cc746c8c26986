"""The claim `Warm`: a pool's spare becomes the job's pod as it is, by one write that counts on its resourceVersion.

What is written is what the job's own spare would have been made with: labels, annotations, the owner; and which pool it
came from. There is nothing to delete afterwards, so no finalizer: from then on it is the job's pod, which only has to
be told so (adopting.py).
"""

from understudy_operator.plan.intents import ClaimWarm
from understudy_operator.plan.observed import Observed, Pod
from understudy_operator.plan.ownership import owner_reference
from understudy_operator.plan.pool.adopting import recent_adoption_failure
from understudy_operator.plan.pool.comparing import difference, job_spare_manifest
from understudy_operator.plan.pool.facts import pool_of, template_of
from understudy_operator.plan.rfc3339 import micro_time
from understudy_protocol import pod as names


def warm_claim_obstacle(observed: Observed, now: float) -> str:
    """Why no spare of its pool can be the job's as it is; "" if one can."""
    pool = observed.pool
    if pool is None or pool.definition is None or pool.definition.launcher is None:
        return "the pool's spares have no launcher"
    if failed := recent_adoption_failure(observed, now):
        return f"the operator could not send the job to a spare a moment ago: {failed}"
    return difference(observed.job, pool.definition)


def warm_spare_obstacle(observed: Observed, spare: Pod) -> str:
    """The same of this spare, where others would do."""
    pool = observed.pool
    assert pool is not None, "it has spares"
    if template_of(spare) != pool.template:
        return "it has an old template"
    if pool.secret not in spare.secrets:
        return "its key is not the pool's"
    return "" if spare.ip else "it has no address"


def replacement_reason(observed: Observed, now: float) -> str:
    """To be told of the claims that are under way; "" of a pool whose spares only hold places."""
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
        names.LABEL_TEMPLATE: None,
        names.LABEL_FROM_POOL: spare.labels[names.LABEL_JOB_UID],
    }
    annotations: dict[str, str | None] = {
        **metadata["annotations"],
        names.ANNOTATION_WARM: spare.labels[names.LABEL_JOB_UID],
        names.ANNOTATION_CLAIMED_AT: micro_time(now),
    }
    reason = (
        f"job {job.name} has lost more pods than it has spares, and takes this spare of pool {pool_of(spare)} as it is"
    )
    return ClaimWarm(spare.name, spare.uid, spare.version, job.uid, labels, annotations, owner_reference(job), reason)
