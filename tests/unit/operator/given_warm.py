"""The base data of tests of warm claims: the pool `shared` with a launcher, whose spares equal the job's own except for
the fields that a spare gets when it is adopted; and its spares.
"""

from typing import Any

from tests.unit.operator.given import AN_HOUR_AGO, KEYRING, NOW, TEMPLATE, a_pod
from tests.unit.operator.given_pool import a_pool
from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.pods import Pods
from understudy_operator.plan.facts.pool_facts import Pool, PoolLauncher, PoolView
from understudy_operator.plan.manifests.pool_pods import pool_fingerprint, pool_labels
from understudy_operator.plan.manifests.warm_spare_pods import pool_secret_name
from understudy_operator.plan.times.rfc3339 import micro_time
from understudy_protocol import pod as names


def a_warm_pool(**changes: Any) -> Pool:
    """Its launcher is that of given.a_job."""
    return a_pool(**{"template": TEMPLATE, "launcher": PoolLauncher(nproc_per_node=8), **changes})


#: The Secret with the pool's key.
SECRET = pool_secret_name(a_warm_pool(), KEYRING)


def a_warm_spare(name: str, *, template: str = "", secret: str = SECRET, **changes: Any) -> Pod:
    """A pod of the pool that is ready."""
    pool = a_warm_pool()
    values = {**pool_labels(pool), names.LABEL_TEMPLATE_HASH: template or pool_fingerprint(pool)}
    ordinary: dict[str, Any] = {"ready": True, "version": "11", "created_at": AN_HOUR_AGO}
    return a_pod(name, labels=values, annotations={}, secrets=frozenset({secret}), **{**ordinary, **changes})


def claimed_warm(name: str = "w", *, adopted: bool = False, at: float = NOW, **changes: Any) -> Pod:
    """A pod of the job that was a spare of the pool."""
    notes = {names.ANNOTATION_WARM_POOL_UID: "pool-uid", names.ANNOTATION_CLAIMED_AT: micro_time(at)}
    if adopted:
        notes[names.ANNOTATION_ADOPTED_AT] = micro_time(at)
    values = {names.LABEL_POOL_UID: "pool-uid", names.LABEL_ROLE: names.ROLE_SPARE}
    return a_pod(name, labels=values, annotations=notes, **{"version": "12", "created_at": AN_HOUR_AGO, **changes})


def a_warm_view(*pods: Pod, pool: Pool | None = None, secret: str = SECRET) -> PoolView:
    pool = pool or a_warm_pool()
    return PoolView("shared", True, 1, pool_fingerprint(pool), Pods(pods), pool, secret)
