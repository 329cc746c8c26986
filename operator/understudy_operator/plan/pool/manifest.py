"""The manifest of a pool's pod, what tells one template from another, and a node that a pod is bound to."""

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from understudy_operator.plan.ownership import API_VERSION, POOL_KIND
from understudy_operator.plan.pool.facts import Pool
from understudy_operator.plan.pool.warm_manifest import warm_spec
from understudy_protocol import pod as names

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def fingerprint(pool: Pool) -> str:
    """Of what its pods are made from: spares with another one are replaced."""
    made_from: list[Any] = [pool.template, pool.topology_key]
    if pool.launcher is not None:
        made_from.append(asdict(pool.launcher))
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:16]


def spare_manifest(
    pool: Pool, serial: str, avoid_nodes: Iterable[str] = (), *, sidecar_image: str = "", key_id: str = ""
) -> dict[str, Any]:
    """serial makes its name unique. sidecar_image, key_id: for a pool with a launcher."""
    template = copy.deepcopy(dict(pool.template))
    given = template.get("metadata", {})
    spec = template["spec"] if pool.launcher is None else warm_spec(pool, sidecar_image)
    if pool.topology_key:
        spec["topologySpreadConstraints"] = [*spec.get("topologySpreadConstraints", ()), _spread(pool)]
    keep_off(spec, avoid_nodes)
    suffix = hashlib.sha256(f"{pool.uid}/{serial}".encode()).hexdigest()[:5]
    metadata = {
        "name": f"{pool.name}-{suffix}",
        "namespace": pool.namespace,
        "labels": {**given.get("labels", {}), **labels(pool), names.LABEL_TEMPLATE: fingerprint(pool)},
        "annotations": dict(given.get("annotations", {})) | ({names.ANNOTATION_POOL_KEY: key_id} if key_id else {}),
        "ownerReferences": [owner_reference(pool)],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def labels(pool: Pool) -> dict[str, str]:
    """Of all its pods, and of nobody else's."""
    return {names.LABEL_POOL: pool.name, names.LABEL_JOB_UID: pool.uid}


def selector(pool: Pool) -> str:
    return ",".join(f"{name}={value}" for name, value in labels(pool).items())


def bind(spec: dict[str, Any], node: str) -> None:
    """Have the scheduler put the pod there or nowhere. It still asks whether there is room."""
    # By name: a node's hostname label may differ.
    _require(spec, {"key": "metadata.name", "operator": "In", "values": [node]})


def keep_off(spec: dict[str, Any], nodes: Iterable[str]) -> None:
    # One value each is all that the API takes here.
    for node in sorted(nodes):
        _require(spec, {"key": "metadata.name", "operator": "NotIn", "values": [node]})


def _require(spec: dict[str, Any], field: Mapping[str, Any]) -> None:
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault(REQUIRED, {"nodeSelectorTerms": [{}]})
    # The terms are ORed, so each of them has to say it.
    for term in required["nodeSelectorTerms"]:
        term["matchFields"] = [*term.get("matchFields", ()), dict(field)]


def _spread(pool: Pool) -> dict[str, Any]:
    return {
        "maxSkew": 1,
        "topologyKey": pool.topology_key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels(pool)},
    }


def owner_reference(pool: Pool) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": POOL_KIND,
        "name": pool.name,
        "uid": pool.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
