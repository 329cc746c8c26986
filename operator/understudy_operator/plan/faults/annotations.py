"""The node health verdict as an annotation of each pod on the node: pods read it when no coordinator can send it.

Rules: the operator writes the annotation only when the verdict changes. It writes to pods whose node has findings, and
to pods that have the annotation: a verdict is also withdrawn in writing. The time in it shows which verdict is newer
if the coordinator has meanwhile sent another one.
"""

from dataclasses import replace

from understudy_operator.plan.facts.cluster_objects import Node, Pod, with_findings
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.intents import PatchPod
from understudy_operator.plan.verdicts.findings import Finding
from understudy_protocol import pod as names
from understudy_protocol import wire
from understudy_protocol.enums import Verdict
from understudy_protocol.membership import NodeVerdict

_KNOWN = {"NodeVerdict": NodeVerdict}
#: Written as \\uXXXX each, they stay below the size of an annotation that runtime/kept_fields.py keeps.
REASON_CHARACTERS = 100
NO_VERDICT = NodeVerdict(Verdict.UNKNOWN)


def plan_annotations(observed: Observed, now: float) -> tuple[PatchPod, ...]:
    pods = observed.pods
    concerned = {pod.uid for pod in pods.with_annotation(names.ANNOTATION_NODE_VERDICT)}
    for node in with_findings(observed.nodes):
        concerned.update(pod.uid for pod in pods.by_node.get(node.name, ()))
    patches = (plan_annotation(pod, observed.nodes.get(pod.node), now) for pod in pods.with_uids(concerned))
    return tuple(patch for patch in patches if patch is not None)


def plan_annotation(pod: Pod, node: Node | None, now: float) -> PatchPod | None:
    """node: the pod's, as far as it is known. None if the pod has the current verdict."""
    finding = None if node is None else node.verdict_at(now)
    if finding is None and names.ANNOTATION_NODE_VERDICT not in pod.annotations:
        return None
    if not pod.node or pod.ended:
        return None
    written, current = _written_verdict(pod), node_verdict(finding)
    if current == NO_VERDICT if written is None else replace(written, at=0.0) == current:
        return None
    return PatchPod(pod.name, {}, {names.ANNOTATION_NODE_VERDICT: wire.encode(replace(current, at=float(now)))})


def node_verdict(finding: Finding | None) -> NodeVerdict:
    """The finding in the form that the programs of the node's pods read, without its time."""
    if finding is None:
        return NO_VERDICT
    verdict = Verdict.FAULTY if finding.hardware else Verdict.UNKNOWN
    return NodeVerdict(
        verdict, finding.description[:REASON_CHARACTERS], finding.until, finding.fault_class, finding.grace_s
    )


def _written_verdict(pod: Pod) -> NodeVerdict | None:
    """The verdict in the annotation; None if it is missing or unreadable."""
    text = pod.annotations.get(names.ANNOTATION_NODE_VERDICT)
    if text is None:
        return None
    try:
        written = wire.decode(text, _KNOWN)
    except wire.WireError:
        return None
    return written if isinstance(written, NodeVerdict) else None
