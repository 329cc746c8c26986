"""What `status` says: which components run, and how every node is."""

from __future__ import annotations

from dataclasses import dataclass

from .node import Power


@dataclass(frozen=True)
class NodeStatus:
    """A line of the table that `status` prints."""

    name: str
    power: Power
    ready: str  # "True", "False" or "Unknown", the control plane's word


@dataclass(frozen=True)
class ClusterStatus:
    """Which components run, and how every node is."""

    components: dict[str, bool]
    nodes: list[NodeStatus]

    def table(self) -> str:
        """For people: one line a component, one line a node."""
        lines = [f"{'COMPONENT':<26}RUNS"]
        lines += [f"{name:<26}{'yes' if runs else 'NO'}" for name, runs in self.components.items()]
        lines += ["", f"{'NODE':<10}{'POWER':<14}READY"]
        lines += [f"{node.name:<10}{node.power.value:<14}{node.ready}" for node in self.nodes]
        return "\n".join(lines) + "\n"
