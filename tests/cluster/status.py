"""The data of `status`: the components that run, and the state of every node."""

from __future__ import annotations

from dataclasses import dataclass

from .node import Power


@dataclass(frozen=True)
class NodeStatus:
    """A line of the table that `status` prints."""

    name: str
    power: Power
    ready: str  # "True", "False" or "Unknown", from the control plane


@dataclass(frozen=True)
class ClusterStatus:
    """The components that run, and the state of every node."""

    components: dict[str, bool]
    nodes: list[NodeStatus]

    def table(self) -> str:
        """For people: one line per component, one line per node."""
        lines = [f"{'COMPONENT':<26}RUNS"]
        lines += [f"{name:<26}{'yes' if runs else 'NO'}" for name, runs in self.components.items()]
        lines += ["", f"{'NODE':<10}{'POWER':<14}READY"]
        lines += [f"{node.name:<10}{node.power.value:<14}{node.ready}" for node in self.nodes]
        return "\n".join(lines) + "\n"
