"""Breaks nodes as reality does, and mends them.

    power-off   cable out first, so that no FIN or RST reaches anybody; then SIGKILL to
                everything at once: kubelet, containerd, shims, containers
    freeze      every process of the node stops where it is; its kernel goes on
                acknowledging packets, as that of a hung machine does
    partition   cable out; everything runs on. From some nodes only: these and the
                node hear nothing of each other, and all of them reach the rest
    restore     whatever it was: thaw, cable in, boot, and wait until it is Ready

A booted node finds its images, its kubelet's state and its emptyDirs, as on a disk,
and no container of before.
"""

from __future__ import annotations

from collections.abc import Sequence

from .failures import ClusterDown
from .node import Node, Power


def power_off(node: Node) -> None:
    """Take the node's power away; takes well under a second. Nothing to do if it is off."""
    if node.power() is not Power.OFF:
        node.kill()


def freeze(node: Node) -> None:
    """Hang the node. Raises ClusterDown if it is off, ComponentFailed if it will not stop within 5 s."""
    node.init()
    node.group.freeze()


def thaw(node: Node) -> None:
    """Let a frozen node run on; nothing to do if it is not frozen."""
    node.group.thaw()


def partition(node: Node, others: Sequence[Node] = ()) -> None:
    """Cut the node off the network, or off these others alone. Raises ClusterDown if it is off."""
    if node.power() is Power.OFF:
        raise ClusterDown(f"{node.name} is off, and has no network to lose; restore it first")
    if others:
        node.lan.part(node.addresses, node.init(), [other.addresses for other in others])
    else:
        node.lan.set_port(node.addresses, up=False)
