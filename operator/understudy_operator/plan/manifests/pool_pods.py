"""The manifest of a pool's pod, and the fingerprint of a template."""

import copy
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from understudy_operator.plan.facts.ownership import POOL_KIND, reference
from understudy_operator.plan.facts.pool_facts import Pool
from understudy_operator.plan.manifests.node_affinity import exclude_nodes, prefer_other_nodes
from understudy_operator.plan.manifests.object_names import name_suffix
from understudy_operator.plan.manifests.warm_spare_pods import warm_spec
from understudy_protocol import pod as names

HOLDING_GRACE_S = 1


def pool_fingerprint(pool: Pool) -> str:
    """The fingerprint of all fields that its pods are made from: spares with another fingerprint are replaced."""
    made_from: list[Any] = [pool.template, pool.topology_key]
    if pool.launcher is not None:
        made_from.append(asdict(pool.launcher))
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:16]


def pool_spare_manifest(
    pool: Pool,
    serial: str,
    avoid_nodes: Sequence[str] = (),
    *,
    avoid_if_possible: Sequence[str] = (),
    sidecar_image: str = "",
    secret: str = "",
) -> dict[str, Any]:
    """serial makes its name unique. sidecar_image, secret: for a pool with a launcher."""
    template = copy.deepcopy(dict(pool.template))
    given = template.get("metadata", {})
    holds = pool.launcher is None
    spec = _holding_spec(template["spec"]) if holds else warm_spec(pool, sidecar_image, secret, serial)
    if pool.topology_key:
        spec["topologySpreadConstraints"] = [*spec.get("topologySpreadConstraints", ()), _spread(pool)]
    annotations = dict(given.get("annotations", {}))
    annotations.pop(names.ANNOTATION_DRAIN, None)
    if avoid_nodes:
        exclude_nodes(spec, avoid_nodes, annotations)
    if avoid_if_possible:
        prefer_other_nodes(spec, avoid_if_possible)
    metadata = {
        "name": f"{pool.name}-{name_suffix(f'{pool.uid}/{serial}')}",
        "namespace": pool.namespace,
        "labels": {**given.get("labels", {}), **pool_labels(pool), names.LABEL_TEMPLATE_HASH: pool_fingerprint(pool)},
        "annotations": annotations,
        "ownerReferences": [reference(POOL_KIND, pool.name, pool.uid)],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _holding_spec(spec: dict[str, Any]) -> dict[str, Any]:
    """A pod that only reserves a place has nothing to save: a preempting pod need not wait for the usual 30 s."""
    spec.setdefault("terminationGracePeriodSeconds", HOLDING_GRACE_S)
    return spec


def pool_labels(pool: Pool) -> dict[str, str]:
    """Only this pool's pods have both."""
    return {names.LABEL_POOL: pool.name, names.LABEL_JOB_UID: pool.uid}


def pool_selector(pool: Pool) -> str:
    return ",".join(f"{name}={value}" for name, value in pool_labels(pool).items())


def _spread(pool: Pool) -> dict[str, Any]:
    return {
        "maxSkew": 1,
        "topologyKey": pool.topology_key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": pool_labels(pool)},
    }
