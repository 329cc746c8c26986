"""`understudy local` with a network namespace for each node: a process of bench-recovery, which ends it with SIGKILL.

A node that loses its power sends nothing. This process is kubelet and operator in one. So until the node's power is
back, it reports the node's pod as running, and starts no pod there: only the coordinator can report the loss to the
operator's plan. The run's control (understudy_local/control.py) accepts `{"kill": "node-1"}` to power off a node, and
`{"kill": "restore node-1"}` to power it on.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import uvloop

from benchmarks.rendezvous.network import HERE, Node, further_address
from understudy_launcher.package import write_package
from understudy_local import control, process, run_folder
from understudy_local.cluster import LocalCluster, NoSuchTarget
from understudy_local.local_pod import LocalPod
from understudy_local.manifest import PodPlacement
from understudy_local.options import Options, snapshot_bytes_of
from understudy_local.output import LocalOutput, Plain
from understudy_local.process import ChildProcess, Sink
from understudy_local.run_folder import RunFolder

RESTORE = "restore "


class PoweredNode:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.is_on = asyncio.Event()
        self.is_on.set()


class OnNode(ChildProcess):
    """A process on a node. While the node is off, the process counts as running, even if it has ended."""

    def __init__(self, started: ChildProcess, node: PoweredNode) -> None:
        self._started, self._node = started, node

    @property
    def pid(self) -> int:
        return self._started.pid

    @property
    def runs(self) -> bool:
        return self._started.runs or not self._node.is_on.is_set()

    async def ended(self) -> int:
        code = await self._started.ended()
        await self._node.is_on.wait()
        return code

    def terminate(self) -> None:
        self._started.terminate()

    def kill_tree(self) -> None:
        self._started.kill_tree()


class NodePod(LocalPod):
    def __init__(self, node: PoweredNode, *arguments: Any) -> None:
        self._node = node
        super().__init__(*arguments)

    def kill(self) -> None:
        if self._node.is_on.is_set():  # a node without power cannot kill it
            super().kill()

    async def _start(self, command: Sequence[str], env: Mapping[str, str], sink: Sink) -> ChildProcess:
        return OnNode(await process.start([*self._node.node.inside, *command], env, sink), self._node)


class NodeCluster(LocalCluster):
    def __init__(self, options: Options, folder: RunFolder, nodes: Sequence[Node], output: LocalOutput) -> None:
        super().__init__(options, folder, "", (), output)
        self._powered = {name: PoweredNode(node) for name, node in zip(self._nodes, nodes, strict=True)}

    def kill(self, target: str) -> str:
        if target.startswith(RESTORE):
            return self._restore(self._powered[target.removeprefix(RESTORE)])
        if target not in self._powered:
            raise NoSuchTarget(f"there is no node {target!r}, but {', '.join(self._powered)}")
        powered = self._powered[target]
        powered.is_on.clear()
        powered.node.power_off()
        return f"the power of {target}"

    def _restore(self, powered: PoweredNode) -> str:
        powered.node.plug_in_the_cable()
        powered.is_on.set()
        return "nothing: its power is back"

    def _address(self, number: int) -> str:
        return HERE if number == 0 else further_address(number - 1)

    def _node_for(self, own: str | None) -> str | None:
        node = super()._node_for(own)
        return node if node is None or self._powered[node].is_on.is_set() else None

    def _place(self, name: str, node: str) -> PodPlacement:
        place = super()._place(name, node)
        self._powered[node].node.add_address(place.ip)
        return place

    def _pod(self, manifest: Mapping[str, Any], place: PodPlacement) -> LocalPod:
        sinks = self._output.of_pod(place.node, self.folder.log(place.node))
        return NodePod(self._powered[place.node], manifest, place, self._enqueue, *sinks)


async def serve(options: Options, nodes: Sequence[Node]) -> int:
    folder = run_folder.make(options.name)
    write_package(folder.shipped)
    cluster = NodeCluster(options, folder, nodes, LocalOutput(Plain(), verbose=True))
    server = await control.serve(cluster, folder.control)
    try:
        return await cluster.run()
    finally:
        server.close()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--nodes", required=True, help="NAME=ADDRESS of each network namespace, separated by commas")
    parser.add_argument("--spares", type=int, required=True)
    parser.add_argument("--nproc", type=int, default=1)
    parser.add_argument("--snapshots", default="", help="memory for the state of one worker")
    parser.add_argument("--snapshot-copies", type=int, default=0)
    parser.add_argument("--no-zygote", action="store_true")
    parser.add_argument("command", nargs="+")
    requests = parser.parse_args()
    nodes = [Node(*text.split("=")) for text in requests.nodes.split(",")]
    options = Options(
        tuple(requests.command),
        nodes=len(nodes) - requests.spares,
        spares=requests.spares,
        nproc=requests.nproc,
        snapshot_bytes=snapshot_bytes_of(requests.snapshots),
        snapshot_copies=requests.snapshot_copies,
        zygote=not requests.no_zygote,
        name=requests.name,
        plain=True,
    )
    return uvloop.run(serve(options, nodes))


if __name__ == "__main__":
    sys.exit(main())
