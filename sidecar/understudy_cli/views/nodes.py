"""`nodes`: the nodes of jobs, the findings against them, and the pods that run there. Pure.

The findings are those that jobs report in `status.avoidedNodes`, and the annotations of the Node. If the account may
not read nodes, their state is not known.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from understudy_cli.facts import AvoidedNode, Job, Node, Pod
from understudy_cli.views.jobs import ranks_of
from understudy_cli.views.phrases import NONE, duration


@dataclass(frozen=True)
class NodeRow:
    """state: Ready, NotReady, or NONE if it is not known. avoided_by: jobs."""

    name: str
    state: str
    findings: tuple[str, ...]
    avoided_by: tuple[str, ...]
    pods: tuple[str, ...]


def node_rows(
    jobs: Iterable[Job], pods: Iterable[Pod], nodes: Iterable[Node] | None, now: float
) -> tuple[NodeRow, ...]:
    """Nodes with a pod of a job or of a pool, and nodes with findings; those with findings first. nodes: None if not
    readable."""
    known = {node.name: node for node in nodes or ()}
    running: dict[str, list[str]] = {}
    for pod in sorted(pods, key=lambda pod: (pod.job, pod.group_rank is None, pod.group_rank or 0, pod.name)):
        if pod.node and not pod.has_ended:
            running.setdefault(pod.node, []).append(f"{pod.pool or pod.job}:{ranks_of(pod)}")
    avoided: dict[str, list[tuple[str, AvoidedNode]]] = {}
    for job in jobs:
        for entry in job.avoided_nodes:
            avoided.setdefault(entry.node, []).append((job.name, entry))
    reported = {name for name, node in known.items() if node.faulty or node.maintenance}
    names = running.keys() | avoided.keys() | reported
    rows = [_row(name, known.get(name), running.get(name, []), avoided.get(name, []), now) for name in names]
    return tuple(sorted(rows, key=lambda row: (not row.findings, row.state != "NotReady", row.name)))


def _row(name: str, node: Node | None, pods: list[str], avoided: list[tuple[str, AvoidedNode]], now: float) -> NodeRow:
    findings = [_finding(entry, now) for _, entry in avoided]
    if node is not None and node.faulty:
        findings.append(f"Hardware: {node.faulty} (annotation understudy.dev/faulty)")
    if node is not None and node.maintenance:
        findings.append(f"Maintenance: {node.maintenance} (annotation understudy.dev/maintenance)")
    state = NONE
    if node is not None:
        state = ("Ready" if node.is_ready else "NotReady") + (",SchedulingDisabled" if node.is_unschedulable else "")
    return NodeRow(name, state, tuple(dict.fromkeys(findings)), tuple(sorted({job for job, _ in avoided})), tuple(pods))


def _finding(entry: AvoidedNode, now: float) -> str:
    reason = ": ".join(filter(None, (entry.fault_class, entry.reason))) or "no reason given"
    until = "" if entry.until is None else f", for another {duration(entry.until - now)}"
    return f"{reason} (source {entry.source}{until})"
