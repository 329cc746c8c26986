"""The base data of tests of pools: a pool `shared` of two spares, its pods, and the jobs that name it.

As in given.py, each builder makes an ordinary object, and a test states only the differences.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tests.unit.operator.given import AN_HOUR_AGO, KEYRING, NOW, a_pod
from understudy_operator.plan.facts.cluster_objects import Node, Pod
from understudy_operator.plan.facts.pods import Pods
from understudy_operator.plan.facts.pool_facts import ObservedPool, Pool, PoolView
from understudy_operator.plan.manifests.pool_pods import pool_fingerprint, pool_labels
from understudy_operator.plan.times.rfc3339 import micro_time
from understudy_protocol import pod as names

SPARE_TEMPLATE: Mapping[str, Any] = {"spec": {"containers": [{"name": "hold", "image": "example.com/pause:1"}]}}
OLD = "0123456789abcdef"


def a_pool(**changes: Any) -> Pool:
    ordinary = Pool("research", "shared", "pool-uid", 1, "7", False, 2, SPARE_TEMPLATE)
    return replace(ordinary, **changes)


def a_spare(name: str, *, claimed_by: str = "", at: float = NOW, template: str = "", **changes: Any) -> Pod:
    """A pod of a pool that is ready, on a node of its own; of the newest template unless another one is named."""
    pool = a_pool()
    values = {**pool_labels(pool), names.LABEL_TEMPLATE_HASH: template or pool_fingerprint(pool)}
    notes: dict[str, str] = {}
    if claimed_by:
        values[names.LABEL_CLAIMED_BY_UID] = claimed_by
        notes = {names.ANNOTATION_CLAIMED_BY: "llm", names.ANNOTATION_CLAIMED_AT: micro_time(at)}
        changes = {"finalizers": (names.FINALIZER_CLAIM,), **changes}
    ordinary = a_pod(name, labels=values, annotations=notes, created_at=AN_HOUR_AGO, ready=True, version="11")
    return replace(ordinary, sidecar_started=False, sidecar_ran=False, **changes)


def without_room(pod: Pod) -> Pod:
    return replace(pod, node="", ready=False, phase="Pending", trouble="Unschedulable: 0/3 nodes are available")


def not_ready(pod: Pod) -> Pod:
    return replace(pod, ready=False)


def observed_pool(
    pool: Pool | None = None, pods: Iterable[Pod] = (), replacement_pods: Iterable[Pod] = (), **changes: Any
) -> ObservedPool:
    """All nodes are Ready, and the job job-uid exists."""
    pods = Pods(pods)
    ordinary = ObservedPool(
        pool=pool if pool is not None else a_pool(),
        pods=pods,
        replacement_pods=Pods(replacement_pods),
        nodes={pod.node: Node(pod.node, True) for pod in pods if pod.node},
        active_claimants=frozenset({"job-uid"}),
        entropy="entropy",
        keyring=KEYRING,
    )
    return replace(ordinary, **changes)


def a_view(*pods: Pod, desired: int = 1, exists: bool = True) -> PoolView:
    """The job's view of the pool."""
    return PoolView("shared", exists, desired, pool_fingerprint(a_pool()), Pods(pods))
