"""Which nodes the scheduler may put a pod on, by their names: a node's hostname label may differ.

Rules: what the template asks for stays. Its terms are ORed, so each of them has to say what is required beyond it.
"""

from collections.abc import Iterable
from typing import Any

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def exclude_nodes(spec: dict[str, Any], nodes: Iterable[str]) -> None:
    """Keep the pod off nodes whatever else is free."""
    _require(spec, _none_of(nodes))


def prefer_other_nodes(spec: dict[str, Any], nodes: Iterable[str]) -> None:
    """Let the scheduler put the pod there only where nothing else is free."""
    wishes = _node_affinity(spec).setdefault(PREFERRED, [])
    wishes.append({"weight": 100, "preference": {"matchFields": _none_of(nodes)}})


def require_node(spec: dict[str, Any], node: str) -> None:
    """Have the scheduler put the pod there or nowhere. It still asks whether there is room."""
    _require(spec, [{"key": "metadata.name", "operator": "In", "values": [node]}])


def _require(spec: dict[str, Any], fields: list[dict[str, Any]]) -> None:
    required = _node_affinity(spec).setdefault(REQUIRED, {"nodeSelectorTerms": [{}]})
    for term in required["nodeSelectorTerms"]:
        term["matchFields"] = [*term.get("matchFields", ()), *fields]


def _none_of(nodes: Iterable[str]) -> list[dict[str, Any]]:
    """One value each is all that the API takes here."""
    return [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in sorted(nodes)]


def _node_affinity(spec: dict[str, Any]) -> dict[str, Any]:
    affinity: dict[str, Any] = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    return affinity
