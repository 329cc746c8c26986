"""Which nodes a job's new pods are kept off, how strictly, and what status tells of it (faults.avoidNodes).

    what is held                                            Prefer     Require    Off
    ------------------------------------------------------  ---------  ---------  ---------
    a pod fell silent there a moment ago                    required   required   required
    a verdict about its hardware                            required   required   -
    maintenance or preemption                               preferred  required   -
    faults of several jobs, as the memory tells             preferred  required   -

Rules: on broken hardware a pod would get no ranks, so no job is placed better for being put there. Whatever is only
preferred is the scheduler's to overrule where nothing else is free: no job waits for it, and an event tells. What the
scheduler knows by itself (taints, cordons, nodes that are not ready) is not told it again, but for pods that tolerate
every taint: it would put them there. A pod is kept off for good by what it was made with: one that waits for a node is
made anew once such a node is well again, however many there are.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from understudy_operator.plan.faults.silence import silent_nodes
from understudy_operator.plan.faults.verdicts import Finding
from understudy_operator.plan.intents import Event
from understudy_operator.plan.observed import Node, Observed, Pod, with_findings
from understudy_operator.plan.reconcile_cache import cached_per_reconcile
from understudy_operator.plan.rfc3339 import whole_seconds
from understudy_protocol import pod as names

OFF, REQUIRE = "Off", "Require"
MEMORY, SILENCE = "memory", "silence"
MAX_REPORTED_NODES = 20
MAX_REPORTED_PODS = 5
#: An affinity names each node: so many of those that are only preferred, and of the others. The names of all are in
#: the pod's annotations, which may be 256 KiB long.
PREFERRED, REQUIRED = 100, 900
MAX_NAMES = 3


@dataclass(frozen=True)
class Avoided:
    node: str
    source: str  # of the verdict; MEMORY; SILENCE
    reason: str
    fault_class: str = ""
    until: float | None = None
    preferred: bool = False  # where nothing else is free it is used all the same


@cached_per_reconcile
def avoidance(observed: Observed, now: float) -> tuple[Avoided, ...]:
    """By name; the strictest reason of each node. Nothing where somebody else makes the pods."""
    found: dict[str, Avoided] = {}
    if observed.job.injected is not None:
        return ()
    for avoided in (*_with_verdict(observed, now), *_silent(observed, now), *_remembered(observed)):
        known = found.get(avoided.node)
        if known is None or (known.preferred and not avoided.preferred):
            found[avoided.node] = avoided
    return tuple(found[name] for name in sorted(found))


def required(avoided: tuple[Avoided, ...]) -> list[str]:
    return [entry.node for entry in avoided if not entry.preferred]


def preferred(avoided: tuple[Avoided, ...]) -> list[str]:
    return [entry.node for entry in avoided if entry.preferred][:PREFERRED]


def avoided_by(pod: Pod) -> set[str]:
    """The nodes that were avoided when the pod was made: it is kept off them for good."""
    return set(filter(None, pod.annotations.get(names.ANNOTATION_AVOIDS, "").split(",")))


def usable_again(pod: Pod, avoid: Collection[str], nodes: Mapping[str, Node]) -> list[str]:
    """Nodes that the pod is kept off, and that a new one would not be. Where one is gone that makes no difference."""
    return sorted(name for name in avoided_by(pod) - set(avoid) if name in nodes and nodes[name].ready)


def join_names(nodes: Collection[str]) -> str:
    """The first few names, for people."""
    first, remaining = sorted(nodes)[:MAX_NAMES], len(nodes) - MAX_NAMES
    return ", ".join(first) + (f" and {remaining} more" if remaining > 0 else "")


def _silent(observed: Observed, now: float) -> Iterator[Avoided]:
    for node in silent_nodes(observed, now):
        yield Avoided(node, SILENCE, "a pod of the job stopped responding there")


def _with_verdict(observed: Observed, now: float) -> Iterator[Avoided]:
    policy = observed.job.world.avoid_nodes
    if policy == OFF:
        return
    tolerates_taints = tolerates_all(group.pod_template.get("spec", {}) for group in observed.job.world.groups)
    for node in with_findings(observed.nodes):
        finding = node.verdict_at(now)
        if finding is None or finding.fault_class is None:
            continue
        if needs_anti_affinity(finding, tolerates_taints):
            is_preferred = policy != REQUIRE and not finding.hardware
            description = (finding.source, finding.reason, finding.fault_class.value, finding.until)
            yield Avoided(node.name, *description, preferred=is_preferred)


def needs_anti_affinity(finding: Finding, tolerates_taints: bool) -> bool:
    """Whether the scheduler does not keep pods off a node by itself. blind: these tolerate every taint."""
    return finding.hardware or tolerates_taints or not finding.known_to_scheduler


def tolerates_all(specs: Iterable[Mapping[str, Any]]) -> bool:
    """Whether pods of some of these templates go wherever there is room."""
    tolerations = [entry for spec in specs for entry in spec.get("tolerations") or ()]
    every = [entry for entry in tolerations if entry.get("operator") == "Exists" and not entry.get("key")]
    return any(entry.get("effect", "") in ("", "NoSchedule") for entry in every)


def _remembered(observed: Observed) -> Iterator[Avoided]:
    policy = observed.job.world.avoid_nodes
    if policy != OFF:
        for node, reason in observed.offenders.items():
            if node in observed.nodes:
                yield Avoided(node, MEMORY, reason, preferred=policy != REQUIRE)


# Told ----------------------------------------------------------------------------------------------------------------


def avoided_nodes_status(observed: Observed, now: float) -> list[dict[str, Any]]:
    """status.avoidedNodes: those that have pods of the job first. Silence is over in a minute; its recovery is told."""
    reported = [entry for entry in avoidance(observed, now) if entry.source != SILENCE]
    pods = _pods_by_node(observed) if reported else {}
    entries = sorted(reported, key=lambda entry: (entry.node not in pods, entry.node))
    return [_entry(entry, pods.get(entry.node, [])) for entry in entries[:MAX_REPORTED_NODES]]


def _entry(avoided: Avoided, pods: list[Pod]) -> dict[str, Any]:
    entry: dict[str, Any] = {"node": avoided.node, "source": avoided.source}
    if avoided.fault_class:
        entry["class"] = avoided.fault_class
    entry["reason"] = avoided.reason
    if avoided.until is not None:
        entry["until"] = whole_seconds(avoided.until)
    if avoided.preferred:
        entry["preferred"] = True
    if pods:
        entry["pods"] = [pod.name for pod in pods[:MAX_REPORTED_PODS]]
    return entry


def _pods_by_node(observed: Observed) -> dict[str, list[Pod]]:
    found: dict[str, list[Pod]] = {}
    for pod in observed.pods:
        if pod.node and pod.alive:
            found.setdefault(pod.node, []).append(pod)
    return found


def plan_avoidance_events(observed: Observed, status: Mapping[str, Any]) -> Iterator[Event]:
    """Once each: that the node of a pod of the job is avoided by now, and that one is used all the same."""
    before = {entry["node"]: entry for entry in observed.job.status.get("avoidedNodes", ())}
    pods = {pod.name: pod for pod in observed.pods}
    for entry in status.get("avoidedNodes", ()):
        known = before.get(entry["node"], {})
        pod_names, reason = entry.get("pods", []), f"{entry['source']}: {entry['reason']}"
        new = any(known.get(field) != entry.get(field) for field in ("source", "class"))
        if pod_names and new:
            class_text = f" ({entry['class']})" if "class" in entry else ""
            message = f"new pods of the job avoid node {entry['node']} of {pod_names[0]}{class_text}: {reason}"
            yield Event("Warning", "NodeAvoided", message)
        for name in pod_names:
            if name not in known.get("pods", ()) and entry["node"] in prefers_not(pods[name]):
                message = (
                    f"{name} runs on node {entry['node']}, which the job avoids, because no other node was free: "
                    f"{reason}"
                )
                yield Event("Warning", "AvoidedNodeUsed", message)


def prefers_not(pod: Pod) -> set[str]:
    """The nodes that were avoided when the pod was made, and might be used all the same."""
    return set(filter(None, pod.annotations.get(names.ANNOTATION_PREFERS_NOT, "").split(",")))
