"""Node health verdicts on real nodes: no checkpoint on broken hardware, a checkpoint before maintenance.

`make bench-pool` measures the time of a verdict from the node to its pods, and `make bench-recovery` the time until a
pod on a faulty node exits.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.compared import compared, fault_of
from tests.e2e.lanes import NAMESPACE
from tests.e2e.node_conditions import NO_XID, XID, condition
from tests.e2e.plain import MakeJob, PlainJob
from tests.e2e.test_sigterm import (
    SAVES,
    active_that_does_not_coordinate,
    log_of,
    log_of_deletion,
    log_of_last_round,
    verdict,
)
from tests.e2e.training import Raw
from tests.e2e.waiting import wait_until

pytestmark = pytest.mark.timeout(200)

MAINTENANCE = "cloud.google.com/active-node-maintenance"


@pytest.fixture(autouse=True)
def healthy_nodes(cluster: Cluster) -> Iterator[None]:
    yield
    for node in cluster.nodes():
        make_healthy(cluster, node)


def make_healthy(cluster: Cluster, node: str) -> None:
    cluster.kubectl("label", "node", node, f"{MAINTENANCE}-")
    condition(cluster, node, NO_XID)


def announce_maintenance(cluster: Cluster, node: str) -> None:
    cluster.kubectl("label", "node", node, f"{MAINTENANCE}=ONGOING")


def report_xid(cluster: Cluster, node: str) -> None:
    condition(cluster, node, XID)


def test_a_deleted_pod_saves_before_maintenance_and_not_after_a_fatal_xid(make_job: MakeJob, tmp_path: Path) -> None:
    # given a job with a pod on a node that is about to go into maintenance
    job = make_job("verdicts", script=SAVES)
    job.apply()
    victim = active_that_does_not_coordinate(job)
    announce_maintenance(job.cluster, victim["spec"]["nodeName"])
    wait_until("the verdict is in the pod", lambda: '"Maintenance"' in verdict(job, victim), 10)
    assert '"Faulty"' not in verdict(job, victim)
    # when the pod is deleted, then it saves, and a spare takes over
    with compared(job, fault_of(victim, "Pod", "SpareSwap")):
        log = log_of_deletion(job, victim, tmp_path / "maintenance")
    assert "saved a checkpoint" in log, log
    assert "no checkpoint is tried" not in log, log

    # given another pod, on a node with a fatal Xid
    make_healthy(job.cluster, victim["spec"]["nodeName"])
    victim = active_that_does_not_coordinate(job)
    node = victim["spec"]["nodeName"]
    report_xid(job.cluster, node)
    wait_until("the verdict is in the pod", lambda: '"Faulty"' in verdict(job, victim), 10)
    assert "nvsentinel-xid" in verdict(job, victim)
    # when the pod is deleted, then it does not save, and a spare takes over
    with compared(job, fault_of(victim, "Node", "SpareSwap")) as comparison:
        log = log_of_deletion(job, victim, tmp_path / "xid")
    assert "saved a checkpoint" not in log, log
    assert "no checkpoint is tried: the node is faulty: nvsentinel-xid" in log, log
    assert "exits 1:" in log, log
    assert "nvsentinel-xid" in comparison.recovery["cause"]["message"]
    # and the job's status and events name the node's fault
    avoided = next(entry for entry in job.status()["avoidedNodes"] if entry["node"] == node)
    assert (avoided["source"], avoided["class"]) == ("nvsentinel-xid", "Hardware")
    events = job.cluster.kubectl("-n", NAMESPACE, "get", "events", "-o", "json")
    notes = [x.get("message", "") for x in json.loads(events)["items"] if x["involvedObject"]["name"] == job.name]
    assert any("nvsentinel-xid" in note for note in notes), notes

    # when the condition is withdrawn, then the node is no longer avoided
    make_healthy(job.cluster, node)
    job.wait_for("the node is used again", lambda s: node not in {x["node"] for x in s.get("avoidedNodes", ())})


def test_with_next_checkpoint_a_pod_is_swapped_once_it_has_saved_or_at_once_on_broken_hardware(
    make_job: MakeJob, tmp_path: Path
) -> None:
    job = make_job("proactive", script=SAVES)
    job.apply(faults={"proactiveReplacement": "NextCheckpoint"})
    log = log_of_swap(job, announce_maintenance, "gke-maintenance", tmp_path / "maintenance")
    assert "saved a checkpoint" in log
    job.wait_until_whole()
    assert "saved a checkpoint" not in log_of_swap(job, report_xid, "nvsentinel-xid", tmp_path / "xid")


def test_with_now_a_pod_is_swapped_without_a_checkpoint(make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job("proactive-now", script=SAVES)
    job.apply(faults={"proactiveReplacement": "Now"})
    assert "saved a checkpoint" not in log_of_swap(job, announce_maintenance, "gke-maintenance", tmp_path / "log")


def log_of_swap(job: PlainJob, report: Callable[[Cluster, str], None], source: str, file: Path) -> str:
    """Report the node of an active pod as bad: a spare takes over before a worker fails. Returns the pod's last log."""
    victim: Raw = active_that_does_not_coordinate(job)
    node = victim["spec"]["nodeName"]
    with log_of(job, victim, file), compared(job, fault_of(victim, "Node", "SpareSwap")) as comparison:
        report(job.cluster, node)
    make_healthy(job.cluster, node)
    assert source in comparison.recovery["cause"]["message"]
    assert comparison.recovery["reason"] == "it is swapped before it fails"
    return log_of_last_round(file)
