"""Node affinity by node names: a node's hostname label may differ from its name.

Rules: the template's affinity stays. Its terms are ORed, so each of them gets the additional requirements.
"""

from collections.abc import Collection, Iterable
from typing import Any

from understudy_protocol import pod as names

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def exclude_nodes(spec: dict[str, Any], nodes: Collection[str], annotations: dict[str, str]) -> None:
    """Keep the pod off these nodes, even if no other is free. An annotation of the pod lists them."""
    _require(spec, _none_of(nodes))
    annotations[names.ANNOTATION_AVOIDED_NODES] = ",".join(sorted(nodes))


def prefer_other_nodes(spec: dict[str, Any], nodes: Iterable[str]) -> None:
    """Let the scheduler use these nodes only if no other is free."""
    wishes = _node_affinity(spec).setdefault(PREFERRED, [])
    wishes.append({"weight": 100, "preference": {"matchFields": _none_of(nodes)}})


def require_node(spec: dict[str, Any], node: str) -> None:
    """Allow this node only. The scheduler still checks whether the pod fits there."""
    _require(spec, [{"key": "metadata.name", "operator": "In", "values": [node]}])


def _require(spec: dict[str, Any], fields: list[dict[str, Any]]) -> None:
    required = _node_affinity(spec).setdefault(REQUIRED, {"nodeSelectorTerms": [{}]})
    for term in required["nodeSelectorTerms"]:
        term["matchFields"] = [*term.get("matchFields", ()), *fields]


def _none_of(nodes: Iterable[str]) -> list[dict[str, Any]]:
    """The API accepts only one value in each entry."""
    return [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in sorted(nodes)]


def _node_affinity(spec: dict[str, Any]) -> dict[str, Any]:
    affinity: dict[str, Any] = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    return affinity
