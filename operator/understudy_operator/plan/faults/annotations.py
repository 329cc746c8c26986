"""The verdict about a pod's node in the pod's own annotation, for when no coordinator is there to tell it.

Rules: written when the verdict changes, and only then: to pods whose node something is held against, and to those that
were told so before, for a verdict that is withdrawn is withdrawn in writing. The time in it says which word is newer
where the coordinator has told another one meanwhile.
"""

from dataclasses import replace

from understudy_operator.plan.faults.verdicts import Finding
from understudy_operator.plan.intents import PatchPod
from understudy_operator.plan.observed import Node, Observed, Pod
from understudy_protocol import pod as names
from understudy_protocol import wire
from understudy_protocol.enums import Verdict
from understudy_protocol.membership import NodeVerdict

_KNOWN = {"NodeVerdict": NodeVerdict}
#: Written as \\uXXXX each, they stay within what is kept of an annotation (observe/kept_fields.py).
REASON_CHARACTERS = 100
NO_VERDICT = NodeVerdict(Verdict.UNKNOWN)


def plan_annotations(observed: Observed, now: float) -> tuple[PatchPod, ...]:
    patches = (plan_annotation(pod, observed.nodes.get(pod.node), now) for pod in observed.pods)
    return tuple(patch for patch in patches if patch is not None)


def plan_annotation(pod: Pod, node: Node | None, now: float) -> PatchPod | None:
    """node: the pod's, as far as it is known. None if the pod has been told what is to be told."""
    finding = None if node is None else node.verdict_at(now)
    if finding is None and names.ANNOTATION_VERDICT not in pod.annotations:
        return None  # so it is with almost all pods, in each pass
    if not pod.node or pod.ended:
        return None
    written, current = _written_verdict(pod), node_verdict(finding)
    if current == NO_VERDICT if written is None else replace(written, at=0.0) == current:
        return None
    return PatchPod(pod.name, {}, {names.ANNOTATION_VERDICT: wire.encode(replace(current, at=float(now)))})


def node_verdict(finding: Finding | None) -> NodeVerdict:
    """What is held about a node, as its pods' programs read it; without its time."""
    if finding is None:
        return NO_VERDICT
    verdict = Verdict.FAULTY if finding.hardware else Verdict.UNKNOWN
    return NodeVerdict(
        verdict, finding.description[:REASON_CHARACTERS], finding.until, finding.fault_class, finding.grace_s
    )


def _written_verdict(pod: Pod) -> NodeVerdict | None:
    """What was written before; None if nothing was, or nothing that can be read."""
    text = pod.annotations.get(names.ANNOTATION_VERDICT)
    if text is None:
        return None
    try:
        written = wire.decode(text, _KNOWN)
    except wire.WireError:
        return None
    return written if isinstance(written, NodeVerdict) else None
