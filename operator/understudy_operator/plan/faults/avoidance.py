"""Which nodes a job's new pods avoid, how strictly, and how status reports it (faults.avoidNodes).

    finding about the node                                  Prefer     Require    Off
    ------------------------------------------------------  ---------  ---------  ---------
    a pod stopped responding there a moment ago             required   required   required
    a verdict about its hardware                            required   required   -
    maintenance or preemption                               preferred  required   -
    faults of several jobs, from the memory                 preferred  required   -

Rules: a pod on broken hardware would get no ranks, so scheduling it there helps no job. The scheduler may use a node
that is only avoided if possible when no other node is free: the job does not wait, and an event reports it. Pods get no
affinity against nodes that the scheduler avoids by itself (taints, cordons, nodes that are not ready), unless they
tolerate every taint. The affinity of a pod cannot change: a pod that waits for a node is recreated once a node that it
avoids is usable again, even if these are many pods.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from understudy_operator.plan.facts.cluster_objects import Node, Pod, with_findings
from understudy_operator.plan.facts.observed import Observed, cached_per_reconcile
from understudy_operator.plan.facts.status import AvoidedNode, JobStatus
from understudy_operator.plan.intents import Event
from understudy_operator.plan.times.reconcile_clock import is_due
from understudy_operator.plan.times.rfc3339 import whole_seconds
from understudy_operator.plan.verdicts.findings import Finding
from understudy_protocol import pod as names
from understudy_protocol.enums import Fault

OFF, REQUIRE = "Off", "Require"
MEMORY, SILENCE = "memory", "silence"
MAX_REPORTED_NODES = 20
MAX_REPORTED_PODS = 5
#: An affinity names each node: at most PREFERRED nodes that are avoided if possible, and at most REQUIRED others. The
#: names of all are in the pod's annotations, which may be 256 KiB long.
PREFERRED, REQUIRED = 100, 900
MAX_NAMES = 3


@dataclass(frozen=True)
class Avoided:
    node: str
    source: str  # of the verdict; MEMORY; SILENCE
    reason: str
    fault_class: str = ""
    until: float | None = None
    usable_as_last_resort: bool = False  # the scheduler may use the node if no other is free


@cached_per_reconcile
def avoidance(observed: Observed, now: float) -> tuple[Avoided, ...]:
    """By name; the strictest reason of each node. Empty if another controller creates the pods."""
    found: dict[str, Avoided] = {}
    if observed.job.injected is not None:
        return ()
    for avoided in (*_with_verdict(observed, now), *_silent(observed, now), *_remembered(observed)):
        known = found.get(avoided.node)
        if known is None or (known.usable_as_last_resort and not avoided.usable_as_last_resort):
            found[avoided.node] = avoided
    return tuple(found[name] for name in sorted(found))


def unusable_nodes(observed: Observed, now: float) -> list[str]:
    """The nodes that are silent, or whose hardware is broken: a pod there could not train. Also of an injected job."""
    found = (*_with_verdict(observed, now), *_silent(observed, now))
    return sorted({entry.node for entry in found if not entry.usable_as_last_resort})


def required(avoided: tuple[Avoided, ...]) -> list[str]:
    return [entry.node for entry in avoided if not entry.usable_as_last_resort]


def preferred(avoided: tuple[Avoided, ...]) -> list[str]:
    return [entry.node for entry in avoided if entry.usable_as_last_resort][:PREFERRED]


def avoided_by(pod: Pod) -> set[str]:
    """The nodes that were avoided when the pod was created: its affinity cannot change."""
    return set(filter(None, pod.annotations.get(names.ANNOTATION_AVOIDED_NODES, "").split(",")))


def usable_again(pod: Pod, avoid: Collection[str], nodes: Mapping[str, Node]) -> list[str]:
    """Ready nodes that the pod avoids and a new pod would not. Nodes that no longer exist make no difference."""
    return sorted(name for name in avoided_by(pod) - set(avoid) if name in nodes and nodes[name].ready)


def join_names(nodes: Collection[str]) -> str:
    """The first few names, for messages."""
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
            yield Avoided(node.name, *description, usable_as_last_resort=is_preferred)


def needs_anti_affinity(finding: Finding, tolerates_taints: bool) -> bool:
    """Whether the scheduler places pods on the node despite the finding. tolerates_taints: the pods tolerate all."""
    return finding.hardware or tolerates_taints or not finding.known_to_scheduler


def tolerates_all(specs: Iterable[Mapping[str, Any]]) -> bool:
    """Whether pods of some of these templates tolerate every taint."""
    tolerations = [entry for spec in specs for entry in spec.get("tolerations") or ()]
    every = [entry for entry in tolerations if entry.get("operator") == "Exists" and not entry.get("key")]
    return any(entry.get("effect", "") in ("", "NoSchedule") for entry in every)


def _remembered(observed: Observed) -> Iterator[Avoided]:
    policy = observed.job.world.avoid_nodes
    if policy != OFF:
        for node, reason in observed.offenders.items():
            if node in observed.nodes:
                yield Avoided(node, MEMORY, reason, usable_as_last_resort=policy != REQUIRE)


#: Jobs avoid a silent node for so long. By then the node controller has marked it, or the node is back.
SUSPECT_S = 60.0


def silent_nodes(observed: Observed, now: float) -> list[str]:
    """Nodes on which a member stopped responding a moment ago, and that have not become ready since."""
    if observed.snapshot is None:
        return []
    lost = [x for x in observed.snapshot.lost if x.fault is Fault.NODE and not is_due(x.at + SUSPECT_S, now)]
    return sorted({x.node for x in lost if not _came_back(observed.nodes.get(x.node), x.at)})


def _came_back(node: Node | None, at: float) -> bool:
    return node is not None and node.ready and node.since > at


# Reported -------------------------------------------------------------------------------------------------------------


def avoided_nodes_status(observed: Observed, now: float) -> tuple[AvoidedNode, ...]:
    """status.avoidedNodes: nodes with pods of the job first. Silent nodes are left to the report of their recovery."""
    reported = [entry for entry in avoidance(observed, now) if entry.source != SILENCE]
    pods = observed.pods.alive.by_node
    entries = sorted(reported, key=lambda entry: (entry.node not in pods, entry.node))
    return tuple(_entry(entry, pods.get(entry.node, ())) for entry in entries[:MAX_REPORTED_NODES])


def _entry(avoided: Avoided, pods: Sequence[Pod]) -> AvoidedNode:
    return AvoidedNode(
        node=avoided.node,
        source=avoided.source,
        fault_class=avoided.fault_class,
        reason=avoided.reason,
        until=None if avoided.until is None else whole_seconds(avoided.until),
        usable_as_last_resort=avoided.usable_as_last_resort,
        pods=tuple(pod.name for pod in pods[:MAX_REPORTED_PODS]),
    )


def plan_avoidance_events(observed: Observed, status: JobStatus) -> Iterator[Event]:
    """One event each: the job now avoids the node of one of its pods; a pod runs on an avoided node."""
    before = {entry.node: entry for entry in observed.job.status.avoided_nodes}
    pods = observed.pods.by_name
    for entry in status.avoided_nodes:
        known, reason = before.get(entry.node), f"{entry.source}: {entry.reason}"
        new = known is None or (known.source, known.fault_class) != (entry.source, entry.fault_class)
        if entry.pods and new:
            class_text = f" ({entry.fault_class})" if entry.fault_class else ""
            message = f"new pods of the job avoid node {entry.node} of {entry.pods[0]}{class_text}: {reason}"
            yield Event("Warning", "NodeAvoided", message)
        for name in entry.pods:
            if (known is None or name not in known.pods) and entry.node in prefers_not(pods[name]):
                message = (
                    f"{name} runs on node {entry.node}, which the job avoids, because no other node was free: {reason}"
                )
                yield Event("Warning", "AvoidedNodeUsed", message)


def prefers_not(pod: Pod) -> set[str]:
    """The nodes that were avoided if possible when the pod was created."""
    return set(filter(None, pod.annotations.get(names.ANNOTATION_LEAST_PREFERRED_NODES, "").split(",")))
