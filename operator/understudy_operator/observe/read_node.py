"""A raw node -> the plan's facts about it, by the table of fault sources.

Signals without a row in the table are not in the fact. So a node's heartbeat changes no fact, and enqueues no job.
Labels are in the fact, and enqueue only the jobs that use them.
"""

from collections.abc import Iterator, Sequence
from typing import cast

from understudy_operator.observe.store import Raw
from understudy_operator.plan.facts.cluster_objects import Node
from understudy_operator.plan.leadership.elections import OUT_OF_SERVICE
from understudy_operator.plan.times.rfc3339 import parse_time
from understudy_operator.plan.verdicts.built_in import BUILT_IN
from understudy_operator.plan.verdicts.fault_sources import (
    READY,
    FaultSource,
    NodeSignal,
    SignalKind,
    findings,
    time_in,
)
from understudy_operator.runtime import kept_fields
from understudy_protocol import pod as names


class NodeReader:
    """One reader for all nodes. The store keeps its results."""

    def __init__(self, table: Sequence[FaultSource] = BUILT_IN) -> None:
        self._table = tuple(table)

    def __call__(self, kept: Raw) -> Node:
        """kept: a node's fields from kept_fields.select_node_fields."""
        raw = cast(kept_fields.RawNode, kept)
        metadata, spec = raw["metadata"], raw.get("spec", {})
        conditions = raw.get("status", {}).get("conditions") or ()
        ready = next((entry for entry in conditions if entry["type"] == READY), kept_fields.Condition())
        annotations = metadata.get("annotations") or {}
        return Node(
            name=metadata["name"],
            ready=ready.get("status") == "True",
            since=_at(ready.get("lastTransitionTime")) or 0.0,
            labels=metadata.get("labels") or {},
            findings=findings(_signals(raw), annotations, self._table),
            out_of_service=any(taint["key"] == OUT_OF_SERVICE for taint in spec.get("taints") or ()),
            created_at=_at(metadata.get("creationTimestamp")) or 0.0,
            forgiven_at=_forgiven_at(annotations.get(names.ANNOTATION_IGNORE_FAULTS_BEFORE)),
        )


def _signals(raw: kept_fields.RawNode) -> Iterator[NodeSignal]:
    metadata, spec = raw["metadata"], raw.get("spec", {})
    for entry in raw.get("status", {}).get("conditions") or ():
        parts = (entry["type"], entry.get("reason", ""), entry.get("message", ""))
        text = ": ".join(part.strip() for part in parts if part)
        since = _at(entry.get("lastTransitionTime"))
        yield NodeSignal(SignalKind.CONDITION, entry["type"], entry.get("status", ""), text, since)
    for key, value in (metadata.get("labels") or {}).items():
        yield NodeSignal(SignalKind.LABEL, key, value)
    for key, value in (metadata.get("annotations") or {}).items():
        is_own = key in (names.ANNOTATION_FAULTY, names.ANNOTATION_MAINTENANCE)
        yield NodeSignal(SignalKind.ANNOTATION, key, value, value.strip() if is_own else "")
    for taint in spec.get("taints") or ():
        text = f"taint {taint['key']}" + (f"={taint['value']}" if taint.get("value") else "")
        since, is_preference = _at(taint.get("timeAdded")), taint.get("effect") == "PreferNoSchedule"
        yield NodeSignal(SignalKind.TAINT, taint["key"], taint.get("value", ""), text, since, is_preference)
    if spec.get("unschedulable"):
        yield NodeSignal(SignalKind.CORDON, "", "true", "the node is cordoned")


def _at(text: str | None) -> float | None:
    return parse_time(text) if text else None


def _forgiven_at(text: str | None) -> float | None:
    """A value that is not a time forgives all faults while it is there. "false" and "" forgive none."""
    if text is None or text.strip().lower() in ("", "false"):
        return None
    at = time_in(text)
    return float("inf") if at is None else at


read_node = NodeReader()
