"""The cluster's network: one LAN, a network namespace per node, routes between their pods.

    10.246.0.0/24   the LAN: the control plane (host) is .1, node N is .(10+N)
    10.244.N.0/24   the pods of node N, on the bridge cni0 inside its namespace
    10.96.0.0/16    Services (kube-proxy in each node's namespace)

The LAN's switch is a bridge in a namespace of its own, with one port per machine. The
host gets one interface (us-lan) and routes to the pods, and no iptables rule. To pull
a node's cable, its port is taken down: no peer receives FIN, RST or ICMP. The switch's
namespace lives as long as its holder process; a node's as long as its init.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from .cgroups import machine
from .commands import run, wait_until
from .failures import ClusterDown, CommandFailed
from .host_tools import tool
from .paths import Paths
from .processes import Component, Processes

LAN = "10.246.0"
PODS = "10.244"
POD_NETWORK = "10.244.0.0/16"
SERVICE_NETWORK = "10.96.0.0/16"
API_SERVICE_IP = "10.96.0.1"
DNS_SERVICE_IP = "10.96.0.10"
#: A chain that drops packets from the nodes of a partial partition: routes drop only packets to them.
_PARTED = "PARTED"
_REFUSE = """
chain=$1; shift
iptables -w -N "$chain" 2>/dev/null
for hook in FORWARD INPUT; do
    iptables -w -C "$hook" -j "$chain" 2>/dev/null || iptables -w -I "$hook" 1 -j "$chain" || exit 1
done
for source; do iptables -w -A "$chain" -s "$source" -j DROP || exit 1; done
"""
CONTROL_PLANE_IP = f"{LAN}.1"
MOST_NODES = 32
HOST_INTERFACE = "us-lan"
SWITCH = "switch"
HOST_PORT = "port-host"


@dataclass(frozen=True)
class NodeAddresses:
    """The addresses of node number `index`, counted from 1."""

    index: int

    def __post_init__(self) -> None:
        if not 1 <= self.index <= MOST_NODES:
            raise ValueError(f"node {self.index}: the address plan has room for nodes 1 to {MOST_NODES}")

    @property
    def name(self) -> str:
        return f"node{self.index}"

    @property
    def ip(self) -> str:
        return f"{LAN}.{10 + self.index}"

    @property
    def mac(self) -> str:
        """Fixed, so that no neighbor keeps a stale address after a reboot."""
        return f"02:00:0a:f6:00:{10 + self.index:02x}"

    @property
    def pod_subnet(self) -> str:
        return f"{PODS}.{self.index}.0/24"

    @property
    def pod_gateway(self) -> str:
        return f"{PODS}.{self.index}.1"

    @property
    def port(self) -> str:
        """The node's port on the switch."""
        return f"port-{self.name}"


def all_nodes() -> list[NodeAddresses]:
    """The addresses of all possible nodes."""
    return [NodeAddresses(index) for index in range(1, MOST_NODES + 1)]


def inside(pid: int, *argv: str) -> list[str]:
    """A command that runs in the network namespace of process `pid`."""
    return [tool("nsenter"), f"--net=/proc/{pid}/ns/net", "--", *argv]


@dataclass(frozen=True)
class Lan:
    """The switch, and the machines on it."""

    paths: Paths
    processes: Processes

    def ensure(self) -> None:
        """Ensure that the switch runs and the host is plugged in."""
        holder = self._switch_component()
        self.processes.ensure(holder)
        switch = self._switch_pid()
        wait_until(
            lambda: _own_network(switch),
            limit_s=5,
            interval_s=0.02,
            failure=lambda: self.processes.failure(SWITCH, "got no network namespace within 5 s"),
        )
        if not _has_link(switch, "lan"):
            _batch(switch, ["link add lan type bridge", "link set lan up", "link set lo up"])
        # A switch does not filter the packets that it forwards.
        _set(switch, {f"net/bridge/bridge-nf-call-{family}": 0 for family in ("iptables", "ip6tables", "arptables")})
        if not (_has_link(switch, HOST_PORT) and _has_link(None, HOST_INTERFACE)):
            self._plug_host(switch)

    def _switch_component(self) -> Component:
        group = machine("control-plane").child(SWITCH)
        return Component(SWITCH, group, [self.paths.binaries / "pause"], settings=[tool("unshare"), "--net"])

    def _plug_host(self, switch: int) -> None:
        run([tool("ip"), "link", "delete", HOST_INTERFACE], check=False)
        create = f"link add {HOST_INTERFACE} type veth peer name {HOST_PORT} netns {switch}"
        _batch(
            None, [create, f"address add {CONTROL_PLANE_IP}/24 dev {HOST_INTERFACE}", f"link set {HOST_INTERFACE} up"]
        )
        _batch(switch, [f"link set {HOST_PORT} master lan", f"link set {HOST_PORT} up"])
        _batch(None, [f"route replace {node.pod_subnet} via {node.ip} dev {HOST_INTERFACE}" for node in all_nodes()])

    def plug(self, node: NodeAddresses, init: int) -> None:
        """Plug a node in, unless it is: `init` is a process in its network namespace."""
        switch = self._switch_pid()
        if _has_link(switch, node.port) and _has_link(init, "eth0"):
            return
        self.unplug(node)
        _batch(switch, [
            f"link add {node.port} type veth peer name eth0 address {node.mac} netns {init}",
            f"link set {node.port} master lan", f"link set {node.port} up",
        ])  # fmt: skip
        _batch(init, [
            "link set lo up", f"address add {node.ip}/24 dev eth0", "link set eth0 up",
            *(f"route replace {other.pod_subnet} via {other.ip} dev eth0" for other in all_nodes() if other != node),
            # Packets to Services that kube-proxy does not forward have to reach the rule that rejects them.
            f"route replace {SERVICE_NETWORK} dev eth0",
        ])  # fmt: skip
        _set(
            init,
            {
                "net/ipv4/ip_forward": 1,
                # kube-proxy must see packets from a pod to a Service and back to a pod of the same bridge.
                "net/bridge/bridge-nf-call-iptables": 1,
                "net/ipv4/conf/all/rp_filter": 0,
                # Each lookup is to be refused at once, not one per second.
                "net/ipv4/icmp_ratelimit": 0,
            },
        )

    def part(self, node: NodeAddresses, init: int, others: list[NodeAddresses]) -> None:
        """From now on this node and those others do not reach each other; `init` as in `plug`. No ICMP is sent."""
        hosts = [f"route replace blackhole {other.ip}/32" for other in others]
        _batch(init, [*hosts, *(f"route replace blackhole {other.pod_subnet}" for other in others)])
        sources = [source for other in others for source in (f"{other.ip}/32", other.pod_subnet)]
        run(inside(init, tool("sh"), "-c", _REFUSE, "refuse", _PARTED, *sources))

    def join(self, node: NodeAddresses, init: int) -> None:
        """The node reaches all others again."""
        others = [other for other in all_nodes() if other != node]
        routes = [f"route replace {other.pod_subnet} via {other.ip} dev eth0" for other in others]
        run(inside(init, tool("ip"), "route", "flush", "type", "blackhole"), check=False)
        run(inside(init, tool("iptables"), "-w", "-F", _PARTED), check=False)
        _batch(init, routes)

    def unplug(self, node: NodeAddresses) -> None:
        """Remove a node's port and cable. Does nothing if there is none."""
        if self.processes.running(SWITCH):
            run(inside(self._switch_pid(), tool("ip"), "link", "delete", node.port), check=False)

    def set_port(self, node: NodeAddresses, *, up: bool) -> None:
        """Plug a node's cable in or pull it; both ends lose the carrier at once."""
        run(inside(self._switch_pid(), tool("ip"), "link", "set", node.port, "up" if up else "down"))

    def port_is_up(self, node: NodeAddresses) -> bool:
        """Whether a node is plugged in; false when it has no port."""
        if not self.processes.running(SWITCH):
            return False
        shown = run(inside(self._switch_pid(), tool("ip"), "-json", "link", "show", node.port), check=False)
        return bool(shown.strip()) and any("UP" in link.get("flags", []) for link in json.loads(shown))

    def _switch_pid(self) -> int:
        record = self.processes.running(SWITCH)
        if record is None:
            raise ClusterDown("the cluster's LAN is down, so nodes can be neither plugged in nor out; run `cluster up`")
        return record.pid


def remove_host_interface() -> None:
    """Take the host off the LAN; its address and routes go with the interface."""
    if _has_link(None, HOST_INTERFACE):
        run([tool("ip"), "link", "delete", HOST_INTERFACE], check=False)


def _own_network(pid: int) -> bool:
    """Whether `unshare` has finished and become the holder."""
    try:
        with open(f"/proc/{pid}/comm") as comm:
            return comm.read().strip() == "pause"
    except OSError:
        return False


def _has_link(pid: int | None, name: str) -> bool:
    show = [tool("ip"), "link", "show", name]
    try:
        run(show if pid is None else inside(pid, *show))
    except CommandFailed:
        return False
    return True


def _set(pid: int, settings: dict[str, int]) -> None:
    """Write network settings, named by their path under /proc/sys, in the namespace of `pid`."""
    write = 'for setting; do echo "${setting#*=}" > "/proc/sys/${setting%%=*}" || exit 1; done'
    run(inside(pid, tool("sh"), "-c", write, "set", *(f"{name}={value}" for name, value in settings.items())))


def _batch(pid: int | None, lines: list[str]) -> None:
    """Run many `ip` commands at once, in the namespace of `pid` or on the host."""
    command = [tool("ip"), "-batch", "-"]
    run(command if pid is None else inside(pid, *command), text_input="\n".join(lines) + "\n")
