"""The node of a job's pod at a given time, as the operator itself saw it in pod objects.

Coordinators report the node of a fault, too. That name is text of a tenant: it could blame any node of the cluster. So
the operator takes the node from the pod that the coordinator names, and only if the pod existed when the fault
happened.

Rules: a pod counts from its creation until its object is gone, and TOLERANCE_S before and after: clocks differ, and a
coordinator may detect a silent node after the API server has deleted its pods. The pods of a PyTorchJob reuse names:
the newest pod that counts is taken. A node that status has recorded for the same fault and pod stays, because the pod
may be gone by now.
"""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from understudy_operator.plan.facts.cluster_objects import Stay
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.recoveries import identified
from understudy_operator.plan.facts.status import RecoveryStatus
from understudy_operator.plan.times.rfc3339 import parse_time

TOLERANCE_S = 60.0


def node_at(observed: Observed, pod: str, at: float) -> str:
    """The node of the pod of that name at that time; "" if the job had no such pod then."""
    matching = [stay for stay in _stays(observed, pod) if _covers(stay, at)]
    return max(matching, key=lambda stay: stay.since).node if matching else ""


def _stays(observed: Observed, name: str) -> Iterator[Stay]:
    """All that this operator has seen of that name, of existing pods and of those whose objects are gone."""
    for pods in (observed.pods, observed.previous_pods):
        pod = pods.by_name.get(name)
        if pod is not None and pod.node:
            yield Stay(pod.name, pod.uid, pod.node, pod.created_at)
    yield from (stay for stay in observed.past_stays if stay.pod == name)


def fill_in_nodes(
    entries: Sequence[RecoveryStatus], before: Sequence[RecoveryStatus], observed: Observed
) -> list[RecoveryStatus]:
    """The recoveries of status with the nodes that the operator has seen. before: as status has them now."""
    recorded = identified(before)
    return [_with_node(entry, recorded.get(identity), observed) for identity, entry in identified(entries).items()]


def _with_node(entry: RecoveryStatus, recorded: RecoveryStatus | None, observed: Observed) -> RecoveryStatus:
    cause, node = entry.cause, ""
    if not cause.node:
        return entry
    if recorded is not None and recorded.cause.pod == cause.pod:
        node = recorded.cause.node
    node = node or node_at(observed, cause.pod, parse_time(entry.detected_at))
    return replace(entry, cause=replace(cause, node=node))


def _covers(stay: Stay, at: float) -> bool:
    return stay.since - TOLERANCE_S <= at and (stay.until is None or at <= stay.until + TOLERANCE_S)
