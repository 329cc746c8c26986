"""Breaks nodes as in reality, and restores them.

    power-off   pull the cable first, so that no peer receives FIN or RST; then SIGKILL all
                processes at once: kubelet, containerd, shims, containers
    freeze      stop every process of the node; its kernel continues to acknowledge
                packets, like that of a hung machine
    partition   pull the cable; all processes continue. From some nodes only: these and the
                node do not reach each other, and all of them reach the others
    restore     undo any fault: thaw, plug the cable in, boot, and wait until it is Ready

A booted node has its images, its kubelet's state and its emptyDirs, as on a disk,
and no container from before.
"""

from __future__ import annotations

from collections.abc import Sequence

from .failures import ClusterDown
from .node import Node, Power


def power_off(node: Node) -> None:
    """Take the node's power away; takes well under a second. Does nothing if it is off."""
    if node.power() is not Power.OFF:
        node.kill()


def freeze(node: Node) -> None:
    """Hang the node. Raises ClusterDown if it is off, ComponentFailed if it will not stop within 5 s."""
    node.init()
    node.group.freeze()


def thaw(node: Node) -> None:
    """Thaw a frozen node. Does nothing if it is not frozen."""
    node.group.thaw()


def partition(node: Node, others: Sequence[Node] = ()) -> None:
    """Cut the node off the network, or off these others only. Raises ClusterDown if it is off."""
    if node.power() is Power.OFF:
        raise ClusterDown(f"{node.name} is off, and has no network to lose; restore it first")
    if others:
        node.lan.part(node.addresses, node.init(), [other.addresses for other in others])
    else:
        node.lan.set_port(node.addresses, up=False)
