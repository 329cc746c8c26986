"""The ways in which the local cluster can fail, one class a kind.

Every message has three parts: what was seen, what was expected, what to do. The
command line prints the message alone; a test sees the class.
"""

from __future__ import annotations


class ClusterError(Exception):
    """Any failure of the local cluster; the message says what to do."""


class MissingTool(ClusterError):
    """The machine lacks a program or a right that the cluster needs."""


class CommandFailed(ClusterError):
    """A program that the cluster ran ended with an error or ran out of time."""


class ComponentFailed(ClusterError):
    """A component of the cluster ended, or was not ready within its limit."""


class ClusterDown(ClusterError):
    """The cluster, or the node asked for, does not run."""


class UnknownNode(ClusterError):
    """There is no node of that name."""


class ImageFailed(ClusterError):
    """An image cannot be built, found or loaded."""
