"""Nodes that stopped responding a moment ago, and that the scheduler still takes for ready."""

from understudy_operator.plan.facts.cluster_objects import Node
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.times.reconcile_clock import is_due
from understudy_protocol.enums import Fault

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
