"""The end of a process on a node without power is not visible, and such a node gets no pod."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.recovery.local_nodes import NodeCluster, OnNode, PoweredNode
from benchmarks.rendezvous.network import Node
from understudy_local.options import Options
from understudy_local.output import LocalOutput, Plain
from understudy_local.process import ChildProcess
from understudy_local.run_folder import RunFolder


class HasEnded(ChildProcess):
    def __init__(self) -> None: ...

    @property
    def runs(self) -> bool:
        return False

    async def ended(self) -> int:
        return 3


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The recorded changes of the network."""
    ran: list[list[str]] = []

    def run(argv: list[str]) -> str:
        ran.append(argv)
        return ""

    monkeypatch.setattr("benchmarks.rendezvous.network.run", run)
    return ran


async def test_the_end_of_a_process_is_not_visible_before_its_node_is_on_again() -> None:
    # given a process that has ended, and a node that is off
    powered = PoweredNode(Node("a", "198.19.255.2"))
    powered.is_on.clear()
    on_node = OnNode(HasEnded(), powered)
    # when a test waits for its end, for some turns of the loop, then it seems to run
    ended = asyncio.create_task(on_node.ended())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not ended.done()
    assert on_node.runs
    # and when its power is back, the end is visible
    powered.is_on.set()
    assert await ended == 3
    assert not on_node.runs


def test_a_node_without_power_gets_no_pod(tmp_path: Path, commands: list[list[str]]) -> None:
    nodes = [Node("a", "198.19.255.2"), Node("b", "198.19.255.3")]
    options = Options(("true",), nodes=1, spares=1)
    cluster = NodeCluster(options, RunFolder(tmp_path), nodes, LocalOutput(Plain(), verbose=False))
    assert cluster._node_for("node-1") == "node-1"

    assert cluster.kill("node-1") == "the power of node-1"

    assert commands[0] == ["ip", "-n", "b", "link", "set", "far", "down"]
    assert cluster._node_for("node-1") is None
    assert cluster._node_for("node-0") == "node-0"
    # each pod has an address of its own on its node
    assert [cluster._place("pod", "node-0").ip for _ in range(2)] == ["198.19.255.100", "198.19.255.101"]
    assert commands[-1] == ["ip", "-n", "a", "addr", "add", "198.19.255.101/24", "dev", "far"]

    cluster.kill("restore node-1")

    assert commands[-1] == ["ip", "-n", "b", "link", "set", "far", "up"]
    assert cluster._node_for("node-1") == "node-1"
