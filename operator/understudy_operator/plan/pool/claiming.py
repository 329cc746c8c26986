"""A job's claims on its pool's pods: how they are made, carried out, and released.

A claim is `Warm` if the job can use the spare as it is (warm_claims.py): one write, and it is the job's pod. Every
other claim is `Replace` and takes several steps. Each reconcile takes each claim one step further, from the observed
state alone; so the next operator continues wherever the previous one stopped, between any two writes:

    the pool's pod is                                 the job's pod is  action
    ------------------------------------------------  ----------------  ----------------------------------------
    ready, and a rank is vacant                       -                 claim it: one write, or nothing
    claimed, and the job has all its pods without it  missing           release it: to the pool, or it is deleted
    claimed                                           missing           delete it, in CLAIMED_GRACE_S
    being deleted                                     missing           wait: it still has its devices
    ended, as its kubelet reports                     missing           create it, bound to the same node
    ended or being deleted                            present           release it: the object may be deleted
    on a node that is not ready                       missing           release it: no kubelet will end it

The claim adds a finalizer: the object stays until its end is confirmed and the job's pod is created. The name of the
job's pod comes from the uid of the pool's pod, so it cannot be created twice. While pods that failed to start are
delayed (failed_starts.py), the job claims no spares for them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from understudy_operator.plan.capacity.failed_starts import failed_in_a_row, plan_start_backoff
from understudy_operator.plan.capacity.gang import unmark
from understudy_operator.plan.capacity.vacancies import (
    candidates,
    claim_budget,
    claims_in_order,
    coming_claims,
    count_vacancies,
    places_taken,
)
from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.pool_facts import pool_of
from understudy_operator.plan.intents import ClaimIntent, ClaimPod, CreatePod, DeletePod, ReleaseClaim
from understudy_operator.plan.manifests.node_affinity import require_node
from understudy_operator.plan.manifests.pods import pod_manifest
from understudy_operator.plan.manifests.shape import facts_secret_name
from understudy_operator.plan.pool.warm_claims import claim_warm, warm_claim_obstacle, warm_spare_obstacle
from understudy_operator.plan.world.objects import has_secrets
from understudy_protocol import pod as names

CLAIMED_GRACE_S = 1

Intent = ClaimIntent | CreatePod | DeletePod


@dataclass(frozen=True)
class ClaimPlan:
    claims: tuple[ClaimIntent, ...] = ()
    pods: tuple[CreatePod | DeletePod, ...] = ()


def plan_claims(observed: Observed, sidecar_image: str, now: float) -> ClaimPlan:
    if observed.job.spec.world is None:
        return ClaimPlan()
    steps = tuple(_steps(observed, sidecar_image, now))
    return ClaimPlan(
        tuple(step for step in steps if isinstance(step, ClaimIntent)),
        tuple(step for step in steps if isinstance(step, CreatePod | DeletePod)),
    )


def _steps(observed: Observed, sidecar_image: str, now: float) -> Iterator[Intent]:
    kept, replaced = claim_budget(observed, now), places_taken(observed)
    for pod in claims_in_order(observed):
        is_done = pod.ended or pod.deleting_since is not None
        if pod.uid in replaced:
            yield release(pod, "the job has a pod in its place") if is_done else _end(pod)
        elif not observed.node_ready(pod.node):
            yield release(pod, f"node {pod.node} is not ready, so no kubelet ends the pod")
        elif not observed.rank_holders_known:
            continue  # without the rank holders, the vacant ranks are unknown
        elif kept <= 0:
            yield release(pod, "the job has all of its pods")
        else:
            kept -= 1
            if pod.ended:
                yield from _create(observed, pod, sidecar_image, now)
            elif not is_done:
                yield _end(pod)
    wanted = count_vacancies(observed, now) - len(coming_claims(observed))
    if wanted > 0 and observed.rank_holders_known:
        backoff = plan_start_backoff(observed, now)
        found = candidates(observed, now)[: 0 if backoff.delays_all else max(0, wanted - backoff.spares)]
        obstacle = warm_claim_obstacle(observed, now) if found else ""
        for pod in found:
            warm = not obstacle and not warm_spare_obstacle(observed, pod)
            yield claim_warm(observed, pod, now) if warm else _claim(observed, pod, now)


def release(pod: Pod, reason: str) -> ReleaseClaim:
    return ReleaseClaim(pod.name, pod.uid, pod.version, pod.finalizers, reason)


def _claim(observed: Observed, pod: Pod, now: float) -> ClaimPod:
    job = observed.job
    reason = f"job {job.name} has lost more pods than it has spares"
    return ClaimPod(pod.name, pod.uid, pod.version, pod.finalizers, job.uid, job.name, now, reason)


def _end(pod: Pod) -> DeletePod:
    return DeletePod(
        pod.name, pod.uid, CLAIMED_GRACE_S, f"it was claimed, and its place on {pod.node} is needed", pod.version
    )


def _create(observed: Observed, spare: Pod, sidecar_image: str, now: float) -> Iterator[CreatePod]:
    if not observed.coordinator_address or not has_secrets(observed):
        return
    manifest = pod_manifest(
        observed.job,
        index=None,
        serial=spare.uid,
        facts=facts_secret_name(observed.job, observed.coordinator_address),
        sidecar_image=sidecar_image,
    )
    require_node(manifest["spec"], spare.node)
    metadata = manifest["metadata"]
    metadata["labels"][names.LABEL_POOL_UID] = spare.labels[names.LABEL_JOB_UID]
    metadata["annotations"][names.ANNOTATION_CLAIMED_POD_UID] = spare.uid
    if in_a_row := failed_in_a_row(observed, now):
        metadata["annotations"][names.ANNOTATION_FAILED_STARTS] = str(in_a_row)
    unmark(manifest)
    yield CreatePod(manifest, f"it takes the place of {spare.name} of pool {pool_of(spare)} on {spare.node}")
