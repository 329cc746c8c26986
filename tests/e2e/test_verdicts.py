"""What a fault source says of a node, in the pods on it: no checkpoint on broken hardware, one before maintenance."""

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.conftest import NAMESPACE
from tests.e2e.node_conditions import NO_XID, XID, condition
from tests.e2e.plain import PlainJob
from tests.e2e.test_sigterm import SAVES, active_that_does_not_coordinate, log_of, verdict
from tests.e2e.waiting import wait_until

pytestmark = pytest.mark.timeout(200)

#: The kubelet may take so long to ask the container to end, and to tell that it has.
KUBELET_S = 2.0
MAINTENANCE = "cloud.google.com/active-node-maintenance"


@pytest.fixture
def job(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[PlainJob]:
    name = request.node.name.split("[")[0].removeprefix("test_").replace("_", "-")[:30].strip("-")
    made = PlainJob(cluster, NAMESPACE, f"verdicts-{name}"[:40].strip("-"), script=SAVES)
    made.delete()
    try:
        yield made
    finally:
        for node in cluster.nodes():
            well(cluster, node)
        made.delete()


def well(cluster: Cluster, node: str) -> None:
    cluster.kubectl("label", "node", node, f"{MAINTENANCE}-")
    condition(cluster, node, NO_XID)


def is_told(job: PlainJob, pod: str, text: str) -> bool:
    return text in verdict(job, pod)


def test_after_a_fatal_xid_no_checkpoint_is_tried_and_the_pod_is_swapped(job: PlainJob, tmp_path: Path) -> None:
    # given a job of which a pod is on a node that gets a fatal Xid
    job.apply()
    victim = active_that_does_not_coordinate(job)
    name, node = victim["metadata"]["name"], victim["spec"]["nodeName"]
    told_at = time.monotonic()
    condition(job.cluster, node, XID)
    wait_until("the verdict is in the pod", lambda: is_told(job, name, '"Faulty"'), 10)
    assert time.monotonic() - told_at < 3.0  # a second, and the look with kubectl exec
    assert "nvsentinel-xid" in verdict(job, name)

    # when the pod is deleted
    with log_of(job, victim, tmp_path / "log") as log:
        deleted_at = time.time()
        job.cluster.kubectl("-n", NAMESPACE, "delete", "pod", name, "--wait=false")

    # then nothing is saved, and a spare has its ranks
    said = log.read_text()
    assert "saved a checkpoint" not in said, said
    assert "no checkpoint is tried: the node is faulty: nvsentinel-xid" in said, said
    assert "exits 1:" in said, said
    status = job.wait_for("the job has recovered", lambda s: s.get("lastRecovery", {}).get("resumedAt"))
    recovery = status["lastRecovery"]
    assert (recovery["strategy"], recovery["fault"], recovery["cause"]["pod"]) == ("SpareSwap", "Node", name)
    assert "nvsentinel-xid" in recovery["cause"]["message"]
    assert seconds_from(deleted_at, recovery["detectedAt"]) <= 1.0 + KUBELET_S
    avoided = next(entry for entry in status["avoidedNodes"] if entry["node"] == node)
    assert (avoided["source"], avoided["class"]) == ("nvsentinel-xid", "Hardware")
    events = job.cluster.kubectl("-n", NAMESPACE, "get", "events", "-o", "json")
    notes = [x.get("message", "") for x in json.loads(events)["items"] if x["involvedObject"]["name"] == job.name]
    assert any("nvsentinel-xid" in note for note in notes), notes

    # and the verdict goes with the condition
    well(job.cluster, node)
    job.wait_for("the node is used again", lambda s: node not in {x["node"] for x in s.get("avoidedNodes", ())})


def test_before_maintenance_the_checkpoint_is_saved_and_then_the_pod_is_swapped(job: PlainJob, tmp_path: Path) -> None:
    # given a job of which a pod is on a node under maintenance
    job.apply()
    victim = active_that_does_not_coordinate(job)
    name, node = victim["metadata"]["name"], victim["spec"]["nodeName"]
    job.cluster.kubectl("label", "node", node, f"{MAINTENANCE}=ONGOING")
    wait_until("the verdict is in the pod", lambda: is_told(job, name, '"Maintenance"'), 10)
    assert '"Faulty"' not in verdict(job, name)

    # when the pod is deleted
    with log_of(job, victim, tmp_path / "log") as log:
        job.cluster.kubectl("-n", NAMESPACE, "delete", "pod", name, "--wait=false")

    # then it saves, and a spare has its ranks
    said = log.read_text()
    assert "saved a checkpoint" in said, said
    assert "no checkpoint is tried" not in said, said
    status = job.wait_for("the job has recovered", lambda s: s.get("lastRecovery", {}).get("resumedAt"))
    assert (status["lastRecovery"]["strategy"], status["lastRecovery"]["fault"]) == ("SpareSwap", "Pod")


def goes(cluster: Cluster, node: str) -> None:
    cluster.kubectl("label", "node", node, f"{MAINTENANCE}=ONGOING")


def breaks(cluster: Cluster, node: str) -> None:
    condition(cluster, node, XID)


@pytest.mark.parametrize(
    ("proactive", "turns_bad", "source", "saves"),
    [
        ("NextCheckpoint", goes, "gke-maintenance", True),
        ("Now", goes, "gke-maintenance", False),
        ("NextCheckpoint", breaks, "nvsentinel-xid", False),
    ],
    ids=["next-checkpoint", "now", "broken"],
)
def test_a_pod_is_swapped_before_anything_fails(
    job: PlainJob, tmp_path: Path, proactive: str, turns_bad: Callable[[Cluster, str], None], source: str, saves: bool
) -> None:
    job.apply(faults={"proactive": proactive})
    victim = active_that_does_not_coordinate(job)
    name, node = victim["metadata"]["name"], victim["spec"]["nodeName"]
    with log_of(job, victim, tmp_path / "log") as log:
        turns_bad(job.cluster, node)
        status = job.wait_for("the pod is swapped", lambda s: s.get("lastRecovery", {}).get("resumedAt"))
    assert ("saved a checkpoint" in log.read_text()) == saves
    recovery = status["lastRecovery"]
    assert (recovery["strategy"], recovery["cause"]["pod"]) == ("SpareSwap", name)
    assert source in recovery["cause"]["message"]
    assert recovery["reason"] == "it is swapped before it fails"


def seconds_from(at: float, told: str) -> float:
    return datetime.fromisoformat(told).timestamp() - at
