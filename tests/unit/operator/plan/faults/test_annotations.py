"""The verdict about a pod's node, in the pod's annotation."""

from dataclasses import replace

import pytest

from tests.unit.operator.given import A0, A1, NOW, XID_79, S, a_snapshot, ended, observed, pending
from understudy_operator.plan.facts.cluster_objects import Node, Pod
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.faults.annotations import plan_annotations
from understudy_operator.plan.verdicts.findings import Finding
from understudy_protocol import pod as names
from understudy_protocol import wire
from understudy_protocol.enums import FaultClass, Verdict
from understudy_protocol.membership import NodeVerdict

LONGEST_ANNOTATION = 1024

KNOWN = {"NodeVerdict": NodeVerdict}
BROKEN = NodeVerdict(Verdict.FAULTY, "nvsentinel-xid: Xid 79", None, FaultClass.HARDWARE, at=NOW)


def on(*findings: Finding, pod: Pod = A1) -> Observed:
    given = observed(pods=(A0, pod, S), snapshot=a_snapshot())
    return replace(given, nodes={**given.nodes, A1.node: Node(A1.node, True, findings=findings)})


def written_verdict(given: Observed, now: float = NOW) -> dict[str, NodeVerdict]:
    found = {}
    for patch in plan_annotations(given, now):
        text = patch.annotations[names.ANNOTATION_NODE_VERDICT]
        assert text is not None
        verdict = wire.decode(text, KNOWN)
        assert isinstance(verdict, NodeVerdict)
        found[patch.name] = verdict
    return found


def having(verdict: NodeVerdict) -> Pod:
    return replace(A1, annotations={names.ANNOTATION_NODE_VERDICT: wire.encode(verdict)})


def test_pods_of_a_node_with_a_finding_are_annotated():
    assert written_verdict(on(XID_79)) == {"a1": BROKEN}


def test_pods_without_a_finding_and_pods_that_do_not_run_are_not_annotated():
    assert written_verdict(on()) == {}
    assert written_verdict(on(XID_79, pod=pending(A1))) == {}
    assert written_verdict(on(XID_79, pod=ended(A1))) == {}


@pytest.mark.attack("B1", "a node that names another one's pods in its health", before="refused, too")
def test_a_finding_is_written_only_to_the_pods_of_its_node():
    # given a node whose finding has the names of other pods and of their node in each of its texts
    text = f"node {A0.node}, pods {A0.name} {S.name} {A0.uid}"
    finding = replace(XID_79, source=text, reason=text)
    # when its verdict is written, then only its own pod is annotated
    assert list(written_verdict(on(finding))) == ["a1"]


def test_an_unchanged_verdict_is_written_once():
    assert written_verdict(on(XID_79, pod=having(BROKEN)), NOW + 60) == {}


def test_a_verdict_whose_finding_ends_or_expires_is_withdrawn_in_the_annotation():
    assert written_verdict(on(pod=having(BROKEN)), NOW + 60) == {"a1": NodeVerdict(Verdict.UNKNOWN, at=NOW + 60)}
    expired = replace(XID_79, until=NOW + 60)
    before = replace(BROKEN, until=NOW + 60)
    assert written_verdict(on(expired, pod=having(before)), NOW + 59) == {}
    assert written_verdict(on(expired, pod=having(before)), NOW + 60) == {
        "a1": NodeVerdict(Verdict.UNKNOWN, at=NOW + 60)
    }


def test_a_node_that_will_be_shut_down_is_not_faulty():
    spot = Finding("gke-termination", FaultClass.PREEMPTION, "taint", grace_s=15.0)
    verdict = NodeVerdict(Verdict.UNKNOWN, "gke-termination: taint", None, FaultClass.PREEMPTION, 15.0, NOW)
    assert written_verdict(on(spot)) == {"a1": verdict}


def test_an_unreadable_annotation_is_written_again():
    assert written_verdict(on(XID_79, pod=replace(A1, annotations={names.ANNOTATION_NODE_VERDICT: "{"}))) == {
        "a1": BROKEN
    }


def test_a_verdict_is_short_enough_for_the_operator_to_keep():
    """Otherwise each reconcile would write it again."""
    long = replace(XID_79, reason="ü" * 500, until=NOW + 1.123456)
    (patch,) = plan_annotations(on(long), NOW + 0.123456)
    assert len(patch.annotations[names.ANNOTATION_NODE_VERDICT] or "") <= LONGEST_ANNOTATION
