"""Objects of the cluster, read from the API server without a kubectl process: see tests/cluster/api.py."""

from typing import Any
from urllib.parse import urlencode

from tests.cluster import Cluster, ClusterDown

Raw = dict[str, Any]

LIMIT_S = 30.0
GROUPS = {
    "events": "apis/events.k8s.io/v1",
    "hotsparepools": "apis/understudy.dev/v1alpha1",
    "injectedjobs": "apis/understudy.dev/v1alpha1",
    "recoveries": "apis/understudy.dev/v1alpha1",
    "jobs": "apis/batch/v1",
    "jobsets": "apis/jobset.x-k8s.io/v1alpha2",
    "leases": "apis/coordination.k8s.io/v1",
    "pods": "api/v1",
    "secrets": "api/v1",
    "services": "api/v1",
    "trainingjobs": "apis/understudy.dev/v1alpha1",
}


def find(cluster: Cluster, namespace: str, kind: str, name: str) -> Raw | None:
    """The object; None if there is none. kind: one of GROUPS. Raises ClusterDown for any other failure."""
    found: Raw | None = cluster.api.find(f"/{_collection(namespace, kind)}/{name}", timeout_s=LIMIT_S)
    return found


def read(cluster: Cluster, namespace: str, kind: str, name: str) -> Raw:
    """The object. Raises ClusterDown if there is none."""
    found = find(cluster, namespace, kind, name)
    if found is None:
        raise ClusterDown(f"there is no {kind}/{name} in the namespace {namespace}")
    return found


def listed(cluster: Cluster, namespace: str, kind: str, selector: str = "") -> list[Raw]:
    """All objects of a kind that the label selector selects."""
    query = f"?{urlencode({'labelSelector': selector})}" if selector else ""
    items: list[Raw] = cluster.api.get(f"/{_collection(namespace, kind)}{query}", timeout_s=LIMIT_S)["items"]
    return items


def read_log(cluster: Cluster, namespace: str, pod: str, container: str) -> str:
    """The log of a container so far; "" while the kubelet has no log of it, and pytest shows why if the test fails."""
    path = f"/{_collection(namespace, 'pods')}/{pod}/log?container={container}"
    try:
        return cluster.api.read(path, timeout_s=LIMIT_S).decode(errors="replace")
    except ClusterDown as error:
        print(f"no log of {container} in {pod}: {error}")
        return ""


def _collection(namespace: str, kind: str) -> str:
    return f"{GROUPS[kind]}/namespaces/{namespace}/{kind}"
