"""Which nodes new pods avoid, how strictly, and how this is reported."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.given import (
    A0,
    A1,
    NOW,
    TEMPLATE,
    XID_79,
    S,
    a_job,
    a_pod,
    a_snapshot,
    in_round,
    lost,
    observed,
)
from understudy_operator.plan.facts.cluster_objects import Node
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.pods import Pods
from understudy_operator.plan.facts.status import JobStatus, written
from understudy_operator.plan.faults.avoidance import (
    avoidance,
    avoided_nodes_status,
    plan_avoidance_events,
    preferred,
    required,
)
from understudy_operator.plan.intents import CreatePod
from understudy_operator.plan.verdicts.findings import Finding
from understudy_operator.plan.world.members import plan_members
from understudy_protocol import pod as names
from understudy_protocol.enums import Fault, FaultClass

BAD = Node("bad", True, findings=(XID_79,))
GOES = Node("goes", True, findings=(Finding("gke-maintenance", FaultClass.MAINTENANCE, "ONGOING", NOW + 60),))
CORDONED = Node("cordoned", True, findings=(Finding("cordon", FaultClass.MAINTENANCE, "", known_to_scheduler=True),))
OFFENDER = Node("offender", True)
EVERY = (BAD, GOES, CORDONED, OFFENDER)
REASON = "failed 3 times recently (x/y), the last time by Node: silent"


def given(policy: str = "Prefer", status: dict[str, Any] | None = None, **changes: Any) -> Observed:
    ordinary = observed(
        a_job(status=in_round(0) if status is None else status, avoid_nodes=policy), snapshot=a_snapshot()
    )
    nodes = {**ordinary.nodes, **{node.name: node for node in EVERY}}
    return replace(ordinary, **{"nodes": nodes, "offenders": {"offender": REASON, "gone": REASON}, **changes})


@pytest.mark.parametrize(
    ("policy", "hard", "soft"),
    [
        ("Prefer", ["bad"], ["goes", "offender"]),
        ("Require", ["bad", "goes", "offender"], []),
        ("Off", [], []),
    ],
)
def test_the_policy_decides_how_strictly_nodes_are_avoided(policy: str, hard: list[str], soft: list[str]):
    avoided = avoidance(given(policy), NOW)
    assert (required(avoided), preferred(avoided)) == (hard, soft)


@pytest.mark.parametrize(
    ("tolerations", "blind"),
    [
        ([], False),
        ([{"operator": "Exists"}], True),
        ([{"operator": "Exists", "effect": "NoSchedule"}], True),
        ([{"operator": "Exists", "effect": "NoExecute"}], False),
        ([{"key": "nvidia.com/gpu", "operator": "Exists"}], False),
    ],
)
def test_pods_that_tolerate_every_taint_avoid_cordoned_nodes(tolerations: list[dict[str, str]], blind: bool):
    template = {**TEMPLATE, "spec": {**TEMPLATE["spec"], "tolerations": tolerations}}
    tolerant = given(job=a_job(status=in_round(0), pod_template=template))
    assert ("cordoned" in preferred(avoidance(tolerant, NOW))) is blind
    strict = given(job=a_job(status=in_round(0), pod_template=template, avoid_nodes="Require"))
    assert ("cordoned" in required(avoidance(strict, NOW))) is blind


@pytest.mark.parametrize("policy", ["Prefer", "Require", "Off"])
def test_silent_nodes_are_avoided_under_each_policy(policy: str):
    silent = given(
        policy, coordination=observed(snapshot=a_snapshot(lost=[lost(A1, Fault.NODE, NOW - 1)])).coordination
    )
    assert A1.node in required(avoidance(silent, NOW))


def test_a_node_whose_finding_has_expired_is_not_avoided():
    assert "goes" not in preferred(avoidance(given(), NOW + 60))


def affinity(policy: str) -> dict[str, Any]:
    """The node affinity of a spare that is created."""
    (made,) = [x for x in plan_members(given(policy, pods=Pods((A0, A1))), "i", NOW) if isinstance(x, CreatePod)]
    found: dict[str, Any] = made.manifest["spec"].get("affinity", {}).get("nodeAffinity", {})
    return found


def off(*nodes: str) -> list[dict[str, Any]]:
    return [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]


def test_a_pod_with_prefer_may_be_scheduled_to_a_node_that_will_be_shut_down():
    result = affinity("Prefer")
    (hard,) = result["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    (soft,) = result["preferredDuringSchedulingIgnoredDuringExecution"]
    assert hard == {"matchFields": off("bad")}
    assert soft == {"weight": 100, "preference": {"matchFields": off("goes", "offender")}}


def test_a_pod_with_require_is_never_scheduled_to_an_avoided_node():
    result = affinity("Require")
    (hard,) = result["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert hard == {"matchFields": off("bad", "goes", "offender")}
    assert "preferredDuringSchedulingIgnoredDuringExecution" not in result


def test_a_pod_with_off_avoids_no_node():
    assert affinity("Off") == {}


# Reports --------------------------------------------------------------------------------------------------------------


def test_status_reports_avoided_nodes_with_their_reasons():
    assert [written(entry) for entry in avoided_nodes_status(given(), NOW)] == [
        {"node": "bad", "source": "nvsentinel-xid", "class": "Hardware", "reason": "Xid 79"},
        {
            "node": "goes",
            "source": "gke-maintenance",
            "class": "Maintenance",
            "reason": "ONGOING",
            "until": "2026-09-21T14:14:20Z",
            "usableAsLastResort": True,
        },
        {"node": "offender", "source": "memory", "reason": REASON, "usableAsLastResort": True},
    ]


def test_status_reports_a_few_avoided_nodes_first_those_with_pods_of_the_job():
    nodes = {f"n{i:02}": Node(f"n{i:02}", True, findings=(XID_79,)) for i in range(30)}
    nodes |= {A1.node: Node(A1.node, True, findings=(XID_79,)), A0.node: Node(A0.node, True)}
    result = avoided_nodes_status(given(nodes=nodes), NOW)
    assert (len(result), result[0].node, result[0].pods) == (20, A1.node, ("a1",))


def events(before: Observed, now: Observed) -> list[tuple[str, str]]:
    """The events of a change of the observation."""
    status = JobStatus(round=0, avoided_nodes=avoided_nodes_status(before, NOW))
    after = replace(now, job=replace(now.job, status=status))
    return [
        (event.reason, event.message)
        for event in plan_avoidance_events(after, JobStatus(avoided_nodes=avoided_nodes_status(after, NOW)))
    ]


def test_an_event_reports_once_that_the_node_of_a_pod_is_avoided_and_by_which_source():
    bad = {**given().nodes, A1.node: Node(A1.node, True, findings=(XID_79,))}
    turned = given(nodes=bad)
    assert events(given(), turned) == [
        ("NodeAvoided", "new pods of the job avoid node node-a1 of a1 (Hardware): nvsentinel-xid: Xid 79")
    ]
    assert events(turned, turned) == []


def test_nodes_without_a_pod_of_the_job_are_reported_in_status_alone():
    assert events(given(nodes={}), given()) == []


def test_the_use_of_an_avoided_node_for_lack_of_others_is_reported_once():
    fallen_back = a_pod("t", node="offender", annotations={names.ANNOTATION_LEAST_PREFERRED_NODES: "goes,offender"})
    waits = given(pods=Pods((A0, A1, S, replace(fallen_back, node=""))))
    runs = given(pods=Pods((A0, A1, S, fallen_back)))
    result = [entry for entry in events(waits, runs) if entry[0] == "AvoidedNodeUsed"]
    reason = "which the job avoids, because no other node was free"
    assert result == [("AvoidedNodeUsed", f"t runs on node offender, {reason}: memory: {REASON}")]
    assert events(runs, runs) == []
