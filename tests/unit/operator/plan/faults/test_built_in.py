"""Each row of the built-in table, on a node in the shape that its source gives it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from understudy_operator.observe.read_node import read_node
from understudy_operator.observe.trim import trimmed_node
from understudy_operator.plan.faults.built_in import BUILT_IN
from understudy_operator.plan.faults.sources import Polarity
from understudy_operator.plan.rfc3339 import unix

NOW = unix("2026-11-20T10:00:10Z")
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
NODES: Mapping[str, Any] = yaml.safe_load((Path(__file__).parent / "nodes.yaml").read_text(encoding="utf-8"))


def a_node(told: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {"name": "n1", "labels": told.get("labels", {}), "annotations": told.get("annotations", {})}
    spec = {name: told[name] for name in ("taints", "unschedulable") if name in told}
    conditions = [
        {"lastTransitionTime": "2026-11-20T10:00:00Z", "lastHeartbeatTime": "2026-11-20T10:00:09Z", **entry}
        for entry in (*told.get("conditions", ()), told.get("ready", READY))
    ]
    return {"metadata": metadata, "spec": spec, "status": {"conditions": conditions}}


@pytest.mark.parametrize("name", NODES)
def test_what_is_held_against_a_node_of_this_shape(name: str):
    told = NODES[name]
    node = read_node(trimmed_node(a_node(told)))
    held, expected = node.held(NOW), told["held"]
    if expected is None:
        assert held is None
        return
    assert held is not None
    assert held.fault_class is not None
    assert (held.source, held.fault_class.value, held.grace_s) == (
        expected["source"],
        expected["class"],
        expected.get("grace_s"),
    )
    assert expected["reason"] in held.reason
    assert held.until == (unix(expected["until"]) if "until" in expected else None)


def test_every_row_that_accuses_a_node_is_shown_here():
    shown = {told["held"]["source"] for told in NODES.values() if told["held"] is not None}
    assert {source.name for source in BUILT_IN if source.polarity is Polarity.FAULTY} == shown


def test_a_heartbeat_changes_nothing():
    raw = a_node(NODES["GKE, a node under maintenance"])
    before = read_node(trimmed_node(raw))
    raw["status"]["conditions"][0]["lastHeartbeatTime"] = "2026-11-20T10:05:00Z"
    assert read_node(trimmed_node(raw)) == before


def test_the_scheduler_keeps_pods_off_cordoned_tainted_and_unready_nodes_by_itself():
    known = {
        name: held.known_to_scheduler
        for name, told in NODES.items()
        if (held := read_node(trimmed_node(a_node(told))).held(NOW)) is not None
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
def test_a_taint_that_only_prefers_keeps_no_pod_off(effect: str, by_itself: bool):
    told = {
        "taints": [{"key": "aws-node-termination-handler/spot-itn", "value": "spot-itn-event-3162", "effect": effect}]
    }
    held = read_node(trimmed_node(a_node(told))).held(NOW)
    assert held is not None
    assert held.known_to_scheduler is by_itself
