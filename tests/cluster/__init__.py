"""A real Kubernetes on one machine, for tests and the demo. See README.md."""

from .cluster import Cluster
from .failures import (
    ClusterDown,
    ClusterError,
    CommandFailed,
    ComponentFailed,
    ImageFailed,
    MissingTool,
    UnknownNode,
)
from .node import Power
from .status import ClusterStatus, NodeStatus

__all__ = [
    "Cluster",
    "ClusterDown",
    "ClusterError",
    "ClusterStatus",
    "CommandFailed",
    "ComponentFailed",
    "ImageFailed",
    "MissingTool",
    "NodeStatus",
    "Power",
    "UnknownNode",
]
