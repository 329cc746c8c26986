"""One node: an init process with its own namespaces, containerd, kubelet and kube-proxy.

A node is a small machine. Its init keeps a network, a mount and a UTS namespace;
its own folders are mounted over the standard paths (/var/lib/kubelet, /run/containerd, …);
all of its processes are in one subtree of control groups. When they die together, its
mounts, its interfaces and its iptables rules are gone with them. The contents of a disk
are kept: images, the kubelet's state, logs, emptyDirs. The contents of /run are not.
"""

from __future__ import annotations

import contextlib
import enum
import http.client
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .api import SERVER, Api
from .certificates import Authority, Certificate
from .cgroups import ControlGroup, machine
from .commands import run, wait_until, write_if_changed
from .failures import ClusterDown, ClusterError
from .host_tools import overlay_works, tool
from .network import Lan, NodeAddresses
from .node_config import PROXY_HEALTH_PORT, containerd_config, kubelet_config, network_config, proxy_config
from .paths import Paths
from .processes import Component, Processes

READY_LIMIT_S = 60
CONTAINERD_STARTS, CONTAINERD_SERVES = 'msg="starting containerd"', 'msg="containerd successfully booted'
# The node's folder -> its path on the node. The targets exist on the host, empty, while a node runs.
NODE_FOLDERS = {
    "kubelet": Path("/var/lib/kubelet"),
    "containerd": Path("/var/lib/containerd"),
    "cni": Path("/var/lib/cni"),
    "run": Path("/run/containerd"),
    "log": Path("/var/log"),
}
# Settings that a kubelet would change for the whole machine. It sees them with the right values, and does not change
# the host's.
KERNEL_SETTINGS = {"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1"}
# $1 the node's name, then pairs of folder and target up to "--", then init's command.
BOOT = (
    'mount --make-rshared / && hostname "$1" && shift && '
    'while [ "$1" != -- ]; do mount --bind "$1" "$2" || exit 1; shift 2; done; shift; exec "$@"'
)


class Power(enum.Enum):
    """The state of a node, seen from outside."""

    ON = "on"
    OFF = "off"
    FROZEN = "frozen"
    PARTITIONED = "partitioned"


@dataclass(frozen=True)
class Node:
    """A node of the cluster; `addresses` identifies it."""

    paths: Paths
    processes: Processes
    lan: Lan
    addresses: NodeAddresses

    @property
    def name(self) -> str:
        return self.addresses.name

    @property
    def folder(self) -> Path:
        return self.paths.node(self.name)

    @property
    def group(self) -> ControlGroup:
        """All of the node's processes."""
        return machine(self.name)

    @property
    def components(self) -> list[str]:
        return [self._component_name(program) for program in ("init", "containerd", "kubelet", "kube-proxy")]

    def init(self) -> int:
        """The host's pid of the node's init. Raises ClusterDown when the node is off."""
        record = self.processes.running(self._component_name("init"))
        if record is None:
            raise ClusterDown(f"{self.name} is off; run `cluster node {self.name} restore`, or `cluster up`")
        return record.pid

    def power(self) -> Power:
        """Whether the node runs, and if not, which fault it has."""
        if self.processes.running(self._component_name("init")) is None:
            return Power.OFF
        if self.group.frozen():
            return Power.FROZEN
        return Power.ON if self.lan.port_is_up(self.addresses) else Power.PARTITIONED

    def ensure(self, load_images: Callable[[Node], None], *, wait: bool = True) -> bool:
        """Make the node run and be Ready, from any state. Returns whether anything had to be done.

        Boots, thaws, plugs in, and restarts dead programs. `load_images` is called
        between containerd and kubelet, as a pod needs its image. Raises ComponentFailed.
        """
        began, power = time.time(), self.power()
        if power is Power.OFF:
            self._boot()
        self.group.thaw()
        init = self.init()
        self.lan.plug(self.addresses, init)
        self.lan.set_port(self.addresses, up=True)
        self.lan.join(self.addresses, init)
        started = self.processes.ensure(self._containerd(init))
        self._wait_for_containerd()
        load_images(self)
        started |= self.processes.ensure(self._kubelet(init))
        started |= self.processes.ensure(self._proxy(init))
        if wait:
            self.wait_ready(began if power in (Power.FROZEN, Power.PARTITIONED) else 0)
        return started or power is not Power.ON

    def wait_ready(self, heartbeat_since: float = 0, limit_s: float = READY_LIMIT_S) -> None:
        """Wait until the control plane counts the node as Ready and schedulable.

        Reports of an earlier kubelet process do not count, nor, with `heartbeat_since`
        (seconds of the epoch), earlier heartbeats. Raises ComponentFailed if the kubelet
        or kube-proxy ended, or `limit_s` ran out.
        """
        api, kubelet = Api(self.paths.pki), self._component_name("kubelet")

        def ready() -> bool:
            self.processes.check_alive(self._component_name("kube-proxy"))
            booted_at = self.processes.check_alive(kubelet).started_at()
            with contextlib.suppress(ClusterDown):
                return (
                    api.node_is_ready(self.name, booted_at=booted_at, heartbeat_since=heartbeat_since)
                    and self._proxy_is_ready()
                )
            return False

        wait_until(
            ready,
            limit_s=limit_s,
            failure=lambda: self.processes.failure(kubelet, f"was not Ready within {limit_s:.0f} s"),
        )

    def kill(self) -> None:
        """Kill every process of the node at once, without a message to any peer."""
        with contextlib.suppress(ClusterError):  # no switch, or no port: then no peer can receive a message anyway
            self.lan.set_port(self.addresses, up=False)
        self.group.kill()
        self.lan.unplug(self.addresses)
        self.group.remove()
        for name in self.components:
            self.processes.record_file(name).unlink(missing_ok=True)

    def ctr(self, *words: str | Path, timeout_s: float = 30) -> str:
        """Run ctr against the node's containerd, in Kubernetes' namespace."""
        return run([self.paths.binaries / "ctr", "--address", self.socket, "-n", "k8s.io", *words], timeout_s=timeout_s)

    def execute(self, argv: Sequence[str]) -> list[str]:
        """The command that runs `argv` on the node: in its network and mount namespaces."""
        return [*self._enter(self.init()), *argv]

    @property
    def socket(self) -> Path:
        """containerd's socket, by a path that is short wherever the cache is (108 bytes are the limit)."""
        return Path(f"/proc/{self.init()}/root/run/containerd/containerd.sock")

    def _proxy_is_ready(self) -> bool:
        """Whether kube-proxy has written its rules: before that, no pod reaches a Service."""
        connection = http.client.HTTPConnection(self.addresses.ip, PROXY_HEALTH_PORT, timeout=2)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/healthz")
            return connection.getresponse().status == http.client.OK
        return False

    def _component_name(self, program: str) -> str:
        return f"{program}-{self.name}"

    def _daemon(self, program: str, init: int, *flags: str, configuration: str) -> Component:
        return Component(
            self._component_name(program),
            self.group.child("daemons").child(program),
            [self.paths.binaries / program, *flags],
            configuration,
            self._enter(init),
        )

    def _enter(self, init: int) -> list[str]:
        return [tool("nsenter"), *(f"--{kind}=/proc/{init}/ns/{file}" for kind, file in NAMESPACES.items()), "--"]

    def _boot(self) -> None:
        """Start init. Remaining processes are ended first, as a reset would."""
        self.kill()
        self.group.ensure_everywhere()
        run(["rm", "-rf", "--", self.folder / "run"], timeout_s=60)
        pairs: list[str] = []
        for name, target in NODE_FOLDERS.items():
            (self.folder / name).mkdir(parents=True, exist_ok=True)
            target.mkdir(parents=True, exist_ok=True)
            pairs += [str(self.folder / name), str(target)]
        for setting, value in KERNEL_SETTINGS.items():
            pairs += [str(write_if_changed(self.folder / "sys" / setting, value + "\n")), f"/proc/sys/{setting}"]
        unshare = [tool("unshare"), "--net", "--mount", "--uts", "--propagation", "slave"]
        name = self._component_name("init")
        self.processes.ensure(
            Component(
                name,
                self.group.child("daemons").child("init"),
                [self.paths.binaries / "pause"],
                settings=[*unshare, tool("sh"), "-c", BOOT, "boot", self.name, *pairs, "--"],
            )
        )
        init = self.init()

        def booted() -> bool:
            self.processes.check_alive(name)
            return Path(f"/proc/{init}/comm").read_text().strip() == "pause"

        wait_until(
            booted,
            limit_s=10,
            interval_s=0.01,
            failure=lambda: self.processes.failure(name, "did not boot within 10 s"),
        )

    def _containerd(self, init: int) -> Component:
        networks = self.folder / "net.d"
        write_if_changed(networks / "10-pods.conflist", network_config(self.addresses))
        snapshotter = "overlayfs" if overlay_works(self.paths.cache) else "native"
        configuration = containerd_config(self.paths.binaries, networks, tool("runc"), snapshotter)
        file = write_if_changed(self.folder / "containerd.toml", configuration)
        return self._daemon("containerd", init, "--config", str(file), configuration=configuration)

    def _wait_for_containerd(self) -> None:
        """Wait until containerd serves requests, because a kubelet ends at once if its first one fails. Its socket
        accepts connections before: while it recovers its containers, it answers "server is not initialized yet".
        """
        name = self._component_name("containerd")

        def serves() -> bool:
            self.processes.check_alive(name)
            with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
                client.connect(str(self.socket))  # so its log has the line of its start
                log = self.processes.log_file(name).read_text(errors="replace")
                return log.rfind(CONTAINERD_SERVES) > log.rfind(CONTAINERD_STARTS)
            return False

        wait_until(
            serves,
            limit_s=30,
            interval_s=0.05,
            failure=lambda: self.processes.failure(name, "did not serve requests within 30 s"),
        )

    def _kubelet(self, init: int) -> Component:
        authority = Authority(self.paths.pki)
        certificate, key = authority.issue(
            Certificate(
                self._component_name("kubelet"), self.name, addresses=(f"IP:{self.addresses.ip}", f"DNS:{self.name}")
            )
        )
        user = Certificate(self.name, f"system:node:{self.name}", "system:nodes")
        kubeconfig = authority.kubeconfig(self.folder / "kubelet.kubeconfig", SERVER, user)
        configuration = kubelet_config(self.addresses, certificate, key, authority.certificate)
        file = write_if_changed(self.folder / "kubelet.json", configuration)
        return self._daemon(
            "kubelet", init,
            f"--config={file}", f"--kubeconfig={kubeconfig}", f"--hostname-override={self.name}",
            f"--node-ip={self.addresses.ip}",
            configuration=configuration + kubeconfig.read_text() + certificate.read_text(),
        )  # fmt: skip

    def _proxy(self, init: int) -> Component:
        user = Certificate("kube-proxy", "system:kube-proxy")
        kubeconfig = Authority(self.paths.pki).kubeconfig(self.folder / "kube-proxy.kubeconfig", SERVER, user)
        configuration = proxy_config(self.addresses, kubeconfig)
        file = write_if_changed(self.folder / "kube-proxy.json", configuration)
        return self._daemon(
            "kube-proxy", init, f"--config={file}", configuration=configuration + kubeconfig.read_text()
        )


NAMESPACES = {"net": "net", "mount": "mnt", "uts": "uts"}


def remove_mount_points() -> None:
    """Remove the host's empty folders over which the nodes' own ones are mounted."""
    for target in NODE_FOLDERS.values():
        with contextlib.suppress(OSError):
            target.rmdir()
