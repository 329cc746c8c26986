"""The ports of pods with hostNetwork, which share the network of their node, and so cannot all use the same port.

Each pod gets two consecutive ports: its sidecar listens on the first, and answers probes on the second. They are
declared as ports of the trainer container, so that the scheduler places no two pods with the same port on a node:
before Kubernetes 1.34 it ignores the ports of init containers, such as the sidecar. Two pods that draw the same ports
need different nodes.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from understudy_protocol import pod as names

ENV_HOST_PORTS = "UNDERSTUDY_HOST_NETWORK_PORTS"
#: Ports of the trainer container. The coordinator's Service names the first; Kubernetes resolves it for each pod.
MEMBERSHIP_PORT_NAME, HEALTH_PORT_NAME = "understudy", "understudy-http"
PORTS_PER_POD = 2
_LEAST, _MOST = 1024, 65535
_RANGE = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")


@dataclass(frozen=True)
class HostPorts:
    """A range of ports."""

    first: int = 24000
    last: int = 24999

    def draw(self, seed: str) -> int:
        """The first of the two ports of a pod. Another seed probably gives other ports."""
        pairs = (self.last - self.first + 1) // PORTS_PER_POD
        number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big")
        return self.first + PORTS_PER_POD * (number % pairs)

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


DEFAULT_HOST_PORTS = HostPorts()


def read_host_ports(env: Mapping[str, str]) -> HostPorts:
    """Raises ValueError, which names the chart's value."""
    text = env.get(ENV_HOST_PORTS, "")
    if not text:
        return DEFAULT_HOST_PORTS
    found = _RANGE.fullmatch(text)
    first, last = map(int, found.groups()) if found is not None else (0, 0)
    if not (first >= _LEAST and first + PORTS_PER_POD - 1 <= last <= _MOST):
        raise ValueError(
            f"{ENV_HOST_PORTS} (chart: hostNetworkPorts) is {text[:80]!r}: set it to FIRST-LAST, such as "
            f"{DEFAULT_HOST_PORTS}, with at least {PORTS_PER_POD} ports, from {_LEAST} to {_MOST}"
        )
    return HostPorts(first, last)


def declare_host_ports(trainer: dict[str, Any], port: int) -> None:
    """Declare both ports of a pod with hostNetwork in its trainer container, unless they are there already."""
    declared = {entry.get("name") for entry in trainer.get("ports") or ()}
    wanted = {MEMBERSHIP_PORT_NAME: port, HEALTH_PORT_NAME: names.health_port(port)}
    missing = [{"name": name, "containerPort": number} for name, number in wanted.items() if name not in declared]
    if missing:
        trainer["ports"] = [*(trainer.get("ports") or ()), *missing]


def declared_port(trainer: Mapping[str, Any]) -> int | None:
    """The first of the ports that declare_host_ports has declared; None if there is none."""
    ports = (x["containerPort"] for x in trainer.get("ports") or () if x.get("name") == MEMBERSHIP_PORT_NAME)
    return next(ports, None)


def without_host_ports(trainer: Mapping[str, Any]) -> list[Any]:
    """The user's ports of the container."""
    ours = (MEMBERSHIP_PORT_NAME, HEALTH_PORT_NAME)
    return [entry for entry in trainer.get("ports") or () if entry.get("name") not in ours]
