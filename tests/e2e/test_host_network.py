"""A job whose pods share the networks of their nodes, two on each node: each sidecar listens on a port of its own."""

import os
import signal
from collections import defaultdict
from dataclasses import replace

import pytest

from tests.e2e.acts import worker_pids
from tests.e2e.compared import compared, fault_of
from tests.e2e.lanes import NAMESPACE
from tests.e2e.plain import MakeJob, PlainJob, alive
from tests.e2e.training import Raw
from tests.e2e.waiting import wait_until

pytestmark = pytest.mark.timeout(400)

ACTIVES, SPARES = 5, 3
RECOVERY_S = 90.0


def ports_of(pod: Raw) -> dict[str, int]:
    (trainer,) = pod["spec"]["containers"]
    return {port["name"]: port["hostPort"] for port in trainer["ports"]}


def by_node(job: PlainJob) -> dict[str, list[Raw]]:
    """A replacement that waits for a node is on none."""
    pods = defaultdict(list)
    for pod in alive(job):
        if "nodeName" in pod["spec"]:
            pods[pod["spec"]["nodeName"]].append(pod)
    return pods


def wait_for_next_round(job: PlainJob, before: Raw) -> Raw:
    def steps(status: Raw) -> bool:
        is_later = (status["coordinator"].get("epoch", 0), status["round"]) > (
            before["coordinator"]["epoch"],
            before["round"],
        )
        return is_later and status["phase"] == "Running" and status["members"]["active"] == ACTIVES

    return job.wait_for("all ranks train in a later round", steps, RECOVERY_S)


def test_a_job_with_host_network_survives_the_loss_of_a_worker_of_the_coordinator_and_of_a_node(
    make_job: MakeJob,
) -> None:
    # given two pods on each node, which share its address and listen on different ports
    job = make_job("host-network", actives=ACTIVES, spares=SPARES, apart=True, host_network=True)
    job.apply()
    job.wait_until_whole()
    job.wait_for_voters()
    nodes = by_node(job)
    assert {len(pods) for pods in nodes.values()} == {2}
    for pods in nodes.values():
        assert len({pod["status"]["podIP"] for pod in pods}) == 1
        ports = [port for pod in pods for port in ports_of(pod).values()]
        assert len(set(ports)) == 4
        assert all(24000 <= port <= 24999 for port in ports)

    # when a worker is killed
    active = next(pod for pod in alive(job) if pod["metadata"]["labels"]["understudy.dev/role"] == "active")
    with compared(job, replace(fault_of(active, "Process", "InPlace"), signal="SIGKILL")):
        # then all workers restart in place
        os.kill(worker_pids(job, active["metadata"]["name"])[0], signal.SIGKILL)

    # when the coordinator is killed
    was = job.status()["coordinator"]
    coordinator = job.pod(was["podUID"])["metadata"]["name"]
    for pid in job.cluster.container_pids(NAMESPACE, coordinator).values():
        os.kill(pid, signal.SIGKILL)
    # then the members elect another one, at its own port, and train on with all ranks
    job.wait_for("another pod coordinates", lambda s: s["coordinator"].get("podUID") not in ("", was["podUID"]))
    job.wait_until_whole()
    job.wait_for_voters()

    # when a node is powered off, and two pods with it
    before = job.status()
    chosen = before["coordinator"]["podUID"]
    ranked = {
        node: [pod for pod in pods if pod["metadata"]["labels"]["understudy.dev/role"] == "active"]
        for node, pods in by_node(job).items()
        if all(pod["metadata"]["uid"] != chosen for pod in pods)
    }
    node = max(ranked, key=lambda name: len(ranked[name]))
    job.cluster.power_off(node)
    # then spares take their ranks
    status = wait_for_next_round(job, before)
    assert status["lastRecovery"]["strategy"] in ("SpareSwap", "PodRecreate")
    wait_until("the pods of the dead node are gone", lambda: not by_node(job).get(node), 90, seen=job.text)
    job.cluster.restore(node)
