"""Each row of the built-in table, with a node as its source marks it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from understudy_operator.observe.read_node import read_node
from understudy_operator.plan.times.rfc3339 import parse_time
from understudy_operator.plan.verdicts.built_in import BUILT_IN
from understudy_operator.plan.verdicts.fault_sources import Polarity
from understudy_operator.runtime.kept_fields import select_node_fields

NOW = parse_time("2026-11-20T10:00:10Z")
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
NODES: Mapping[str, Any] = yaml.safe_load((Path(__file__).parent / "nodes.yaml").read_text(encoding="utf-8"))


def a_node(result: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {"name": "n1", "labels": result.get("labels", {}), "annotations": result.get("annotations", {})}
    spec = {name: result[name] for name in ("taints", "unschedulable") if name in result}
    conditions = [
        {"lastTransitionTime": "2026-11-20T10:00:00Z", "lastHeartbeatTime": "2026-11-20T10:00:09Z", **entry}
        for entry in (*result.get("conditions", ()), result.get("ready", READY))
    ]
    return {"metadata": metadata, "spec": spec, "status": {"conditions": conditions}}


@pytest.mark.parametrize("name", NODES)
def test_each_shape_of_a_node_has_its_findings(name: str):
    result = NODES[name]
    node = read_node(select_node_fields(a_node(result)))
    kept, expected = node.verdict_at(NOW), result["held"]
    if expected is None:
        assert kept is None
        return
    assert kept is not None
    assert kept.fault_class is not None
    assert (kept.source, kept.fault_class.value, kept.grace_s) == (
        expected["source"],
        expected["class"],
        expected.get("grace_s"),
    )
    assert expected["reason"] in kept.reason
    assert kept.until == (parse_time(expected["until"]) if "until" in expected else None)


def test_every_row_with_a_fault_class_has_a_test():
    shown = {result["held"]["source"] for result in NODES.values() if result["held"] is not None}
    assert {source.name for source in BUILT_IN if source.polarity is Polarity.FAULTY} == shown


def test_a_heartbeat_does_not_change_findings():
    raw = a_node(NODES["GKE, a node under maintenance"])
    before = read_node(select_node_fields(raw))
    raw["status"]["conditions"][0]["lastHeartbeatTime"] = "2026-11-20T10:05:00Z"
    assert read_node(select_node_fields(raw)) == before


def test_the_scheduler_keeps_pods_off_cordoned_tainted_and_unready_nodes_by_itself():
    known = {
        name: kept.known_to_scheduler
        for name, result in NODES.items()
        if (kept := read_node(select_node_fields(a_node(result))).verdict_at(NOW)) is not None
    }
    assert {name for name, by_itself in known.items() if by_itself} == {
        "GKE, a node that is taken away",
        "AWS, a spot machine that is reclaimed",
        "AWS, a spot machine that may be reclaimed soon",
        "AWS, a machine that its group gives up",
        "AWS, maintenance of the host",
        "the cluster autoscaler removes it",
        "Karpenter replaces it",
        "cordoned",
        "not ready",
    }


@pytest.mark.parametrize(
    ("effect", "by_itself"), [("NoSchedule", True), ("NoExecute", True), ("PreferNoSchedule", False)]
)
def test_the_scheduler_enforces_all_taints_except_prefer_no_schedule(effect: str, by_itself: bool):
    values = {
        "taints": [{"key": "aws-node-termination-handler/spot-itn", "value": "spot-itn-event-3162", "effect": effect}]
    }
    kept = read_node(select_node_fields(a_node(values))).verdict_at(NOW)
    assert kept is not None
    assert kept.known_to_scheduler is by_itself
