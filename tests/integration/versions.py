"""The version of Kubernetes that the API servers of these tests have."""

import os

from tests.cluster.binaries import kubernetes_version
from tests.cluster.other_kubernetes import VARIABLE


def minor() -> int:
    """36 for Kubernetes 1.36."""
    version = os.environ.get(VARIABLE) or kubernetes_version()
    return int(version.split(".")[1])
