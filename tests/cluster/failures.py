"""The failures of the local cluster, one class per kind.

Every message has three parts: the observation, the expectation, the fix. The
command line prints only the message; a test sees the class.
"""

from __future__ import annotations


class ClusterError(Exception):
    """Any failure of the local cluster; the message names the fix."""


class MissingTool(ClusterError):
    """The machine lacks a program or a right that the cluster needs."""


class CommandFailed(ClusterError):
    """A program that the cluster ran ended with an error or ran out of time."""


class ComponentFailed(ClusterError):
    """A component of the cluster ended, or was not ready within its limit."""


class ClusterDown(ClusterError):
    """The cluster, or the given node, does not run."""


class UnknownNode(ClusterError):
    """There is no node of that name."""


class ImageFailed(ClusterError):
    """An image cannot be built, found or loaded."""
