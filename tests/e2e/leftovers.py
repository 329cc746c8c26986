"""Objects that an interrupted run has left in the cluster: jobs and pools of the tests' namespaces."""

from tests.cluster import Cluster
from tests.e2e.objects import GROUPS
from tests.e2e.waiting import wait_until

PREFIX = "understudy-e2e-"
KINDS = ("jobsets", "jobs", "trainingjobs", "hotsparepools")
LIMIT_S = 120


def delete_leftovers(cluster: Cluster) -> None:
    """Delete them, and wait until none of their pods is left: then the next run can use their names."""
    for kind in KINDS:
        found = cluster.api.find(f"/{GROUPS[kind]}/{kind}") or {"items": []}  # None: JobSet's CRD is not installed yet
        for namespace in {item["metadata"]["namespace"] for item in found["items"]}:
            if namespace.startswith(PREFIX):
                cluster.kubectl("-n", namespace, "delete", kind, "--all", "--wait=false")
    wait_until("no pod of an earlier run is left", lambda: not _pods(cluster), LIMIT_S, seen=lambda: _pods(cluster))


def _pods(cluster: Cluster) -> list[str]:
    names = [item["metadata"] for item in cluster.api.get("/api/v1/pods")["items"]]
    return [f"{meta['namespace']}/{meta['name']}" for meta in names if meta["namespace"].startswith(PREFIX)]
