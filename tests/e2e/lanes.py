"""Lanes of nodes, so that end-to-end tests run at the same time and no test is disturbed by the faults of another one.

    node1             the operator's and the webhook's pods
    node2 to node5    lane 0
    node6 to node9    lane 1

A test sees only the nodes of its lane. A namespace belongs to a lane: Kubernetes' PodNodeSelector admission adds the
node selector of the namespace's annotation to each of its pods, so no manifest has to name its lane. pytest-xdist's
worker number N is lane N; without pytest-xdist, tests run in lane 0.
"""

import json
import os

from tests.cluster import Cluster

SYSTEM_NODE = "node1"
LANES = 2  # the same number as in `make e2e-lanes`: three were no faster on two cores, and tests timed out
NODES_OF_A_LANE = 4
NODES = 1 + LANES * NODES_OF_A_LANE
#: This process's lane.
LANE = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
#: The tests' own namespace; a test that needs another one derives its name from this one.
NAMESPACE = f"understudy-e2e-{LANE}"
SYSTEM_LABEL = "e2e.understudy.dev/system"
#: The kinds of test_inject.py, each with one job for all of its tests; without JobSets.
INJECTED_KINDS = ("job", "torchrun", "job-label")
#: Files whose tests share one job, or one set of jobs.
SHARED_JOB = ("test_conformance.py", "test_snapshots.py", "test_story.py", "test_torchrun.py")
NODE_SELECTOR = "scheduler.alpha.kubernetes.io/node-selector"


class LaneCluster(Cluster):
    """The cluster, with nodes() of this lane only: a test that restores all nodes disturbs no other lane."""

    def __init__(self) -> None:
        super().__init__(nodes=NODES)

    def nodes(self) -> list[str]:
        return nodes_of(LANE)


def nodes_of(lane: int) -> list[str]:
    first = 2 + lane * NODES_OF_A_LANE
    return [f"node{number}" for number in range(first, first + NODES_OF_A_LANE)]


def unit_of(test: str) -> str:
    """The unit of a test, given by its pytest id: the tests of one unit run in one lane.

    One lane runs all tests that use JobSet's controller, because two controllers would compete.
    """
    file, _, name = test.rpartition("/")[2].partition("::")
    parameter = name.partition("[")[2].removesuffix("]")
    if file in ("test_inject_page.py", "test_inject_auto.py") or parameter.lower().startswith("jobset"):
        return "jobset"
    if file == "test_inject.py" and parameter in INJECTED_KINDS:
        return f"{file}[{parameter}]"
    return file if file in SHARED_JOB else test


def label_nodes(cluster: Cluster) -> None:
    """Label each node with its lane, and one for the operator's namespace.

    The operator prefers nodes without faults in the last days. It would put all pods of a job on the one node of a lane
    that no test has broken yet, so the faults of these nodes are forgiven at once.
    """
    cluster.kubectl("label", "node", SYSTEM_NODE, "--overwrite", f"{SYSTEM_LABEL}=true")
    for lane in range(LANES):
        nodes = nodes_of(lane)
        cluster.kubectl("label", "node", *nodes, "--overwrite", f"{_lane_label(lane)}=true")
        cluster.kubectl("annotate", "node", *nodes, "--overwrite", "understudy.dev/ignore-faults-before=always")


def create_namespace(cluster: Cluster, name: str, **labels: str) -> None:
    """Create the namespace, or change it, so that its pods run on this lane's nodes."""
    _apply_namespace(cluster, name, f"{_lane_label(LANE)}=true", labels)


def create_system_namespace(cluster: Cluster, name: str) -> None:
    """A namespace whose pods run on the system's node, on which no test causes a fault."""
    _apply_namespace(cluster, name, f"{SYSTEM_LABEL}=true", {})


def _lane_label(lane: int) -> str:
    return f"e2e.understudy.dev/lane-{lane}"


def _apply_namespace(cluster: Cluster, name: str, selector: str, labels: dict[str, str]) -> None:
    metadata = {"name": name, "labels": labels, "annotations": {NODE_SELECTOR: selector}}
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=json.dumps(manifest))
