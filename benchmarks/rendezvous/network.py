"""Separate nodes for single processes: network namespaces on a bridge, behind cables that can be pulled.

Needs root, and the program `ip`. As in a pod, a process there has all ports for itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.cluster.commands import run
from tests.cluster.failures import MissingTool

#: In the range for benchmarks, which is not routed.
_SUBNET = "198.19.255.{}"
HERE = _SUBNET.format(1)
#: The first of the nodes' further addresses. Each node's own address is below it.
_FURTHER = 100
POLL_S = 0.005
#: The name of a bridge, without the pid of the process that uses it.
_BRIDGE = "ub"


@dataclass(frozen=True)
class Node:
    name: str
    ip: str

    @property
    def inside(self) -> tuple[str, ...]:
        """The command prefix that starts a process on the node."""
        return ("ip", "netns", "exec", self.name)

    def pull_the_cable(self) -> None:
        run(["ip", "-n", self.name, "link", "set", "far", "down"])

    def plug_in_the_cable(self) -> None:
        run(["ip", "-n", self.name, "link", "set", "far", "up"])

    def add_address(self, ip: str) -> None:
        run(["ip", "-n", self.name, "addr", "add", f"{ip}/24", "dev", "far"])

    def processes(self) -> list[int]:
        return [int(pid) for pid in run(["ip", "netns", "pids", self.name]).split()]

    def power_off(self) -> float:
        """Pull the cable, then send SIGKILL to all of its processes, so that no FIN or RST leaves the node.

        Returns time.monotonic() from before both. `plug_in_the_cable` turns the node on again.
        """
        at = time.monotonic()
        self.pull_the_cable()
        self.end_processes()
        return at

    def end_processes(self) -> None:
        """Send SIGKILL until none is left: a process may have started another one meanwhile."""
        while pids := self.processes():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_S)


def further_address(number: int) -> str:
    """The number counts from 0. Raises ValueError if there are no more."""
    if _FURTHER + number > 254:
        raise ValueError(f"the subnet of the benchmark's nodes has {255 - _FURTHER} further addresses")
    return _SUBNET.format(_FURTHER + number)


@contextmanager
def nodes(count: int) -> Iterator[list[Node]]:
    """So many nodes, which reach each other, and this machine at HERE."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise MissingTool("nodes of a benchmark are network namespaces: that needs root, and the program `ip`")
    _remove_leftovers()
    with ExitStack() as undo:
        bridge = f"{_BRIDGE}{os.getpid()}"
        run(["ip", "link", "add", bridge, "type", "bridge"])
        undo.callback(run, ["ip", "link", "del", bridge])
        run(["ip", "addr", "add", f"{HERE}/24", "dev", bridge])
        run(["ip", "link", "set", bridge, "up"])
        yield [_add(undo, bridge, number) for number in range(count)]


def _remove_leftovers() -> None:
    """Of processes that were killed: two bridges with the same address would get the packets of one."""
    bridges = [link["ifname"] for link in json.loads(run(["ip", "-j", "link", "show", "type", "bridge"]) or "[]")]
    for bridge in bridges:
        pid = bridge.removeprefix(_BRIDGE)
        if pid == bridge or not pid.isdecimal() or os.path.exists(f"/proc/{pid}"):
            continue
        for name in [line.split()[0] for line in run(["ip", "netns", "list"]).splitlines()]:
            if name.startswith(f"understudy-{bridge}-"):
                Node(name, "").end_processes()
                run(["ip", "netns", "del", name])
        run(["ip", "link", "del", bridge])


def _add(undo: ExitStack, bridge: str, number: int) -> Node:
    node = Node(f"understudy-{bridge}-{number}", _SUBNET.format(2 + number))
    near = f"{bridge}n{number}"
    run(["ip", "netns", "add", node.name])
    undo.callback(run, ["ip", "netns", "del", node.name])
    run(["ip", "link", "add", near, "type", "veth", "peer", "name", "far", "netns", node.name])
    # Its namespace would delete it only some time later, and its name is needed again.
    undo.callback(run, ["ip", "link", "del", near])
    run(["ip", "link", "set", near, "master", bridge, "up"])
    run(["ip", "-n", node.name, "addr", "add", f"{node.ip}/24", "dev", "far"])
    for interface in ("lo", "far"):
        run(["ip", "-n", node.name, "link", "set", interface, "up"])
    return node
