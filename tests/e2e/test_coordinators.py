"""The end of the coordinator, and network partitions: the training continues, with one coordinator."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.acts import described, running, worker_pids
from tests.e2e.compared import compared, fault_of
from tests.e2e.lanes import NAMESPACE
from tests.e2e.plain import PlainJob, alive
from tests.e2e.training import GROUP_RANK, Raw
from tests.e2e.truth import unix
from tests.e2e.waiting import wait_until

ESTABLISHED = "01"  # in /proc/net/tcp: proc_pid_net(5)
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def job(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[PlainJob]:
    """The number of active pods and spares that the test sets (2 and 1). A spare coordinates. Deleted afterwards."""
    actives, spares = getattr(request, "param", (2, 1))
    name = request.node.originalname.removeprefix("test_").replace("_", "-")[:40].rstrip("-")
    made = PlainJob(cluster, NAMESPACE, name, actives=actives, spares=spares, apart=True)
    try:
        made.apply_until_a_spare_coordinates()
        made.wait_for_voters()
        yield made
    finally:
        for node in cluster.nodes():
            cluster.restore(node)
        made.discard()


def coordinator(job: PlainJob) -> Raw:
    return job.pod(job.status()["coordinator"]["podUID"])


def actives(job: PlainJob) -> list[Raw]:
    return [pod for pod in job.pods() if pod["metadata"]["labels"]["understudy.dev/role"] == "active"]


def workers_of(job: PlainJob, pods: list[Raw]) -> list[int]:
    return [pid for pod in pods for pid in worker_pids(job, pod["metadata"]["name"])]


def kill(job: PlainJob, *pods: Raw) -> None:
    """SIGKILL to all containers of these pods, at once."""
    pids = [pid for pod in pods for pid in job.cluster.container_pids(NAMESPACE, pod["metadata"]["name"]).values()]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it followed the others of its pod
            os.kill(pid, signal.SIGKILL)


def elected(job: PlainJob, before: Raw) -> Raw:
    """Wait until status has a later term of the same epoch."""
    was = before["coordinator"]

    def newer(status: Raw) -> bool:
        now = status.get("coordinator", {})
        return bool(now.get("epoch") == was["epoch"] and now.get("term", 0) > was["term"])

    return job.wait_for("members have elected a coordinator", newer)


def test_a_coordinator_that_is_killed_alone_is_succeeded_by_election_without_a_restart(job: PlainJob) -> None:
    before, workers = job.status(), workers_of(job, actives(job))
    with compared(job, None):
        kill(job, coordinator(job))
        after = elected(job, before)
        assert after["round"] == before["round"]
        job.wait_until_whole()
    assert not any(job.status().get("recoveriesByStrategy", {}).values())
    assert all(map(running, workers))


@pytest.mark.parametrize("job", [(2, 3)], indirect=True)
def test_a_coordinator_that_is_killed_with_an_active_pod_is_succeeded_and_the_active_pod_replaced(
    job: PlainJob,
) -> None:
    before, victim = job.status(), actives(job)[0]
    with compared(job, fault_of(victim, "Pod", "SpareSwap")):
        kill(job, coordinator(job), victim)
        elected(job, before)
    assert job.status()["members"]["active"] == 2


@pytest.mark.parametrize("job", [(1, 1)], indirect=True)
def test_one_of_two_pods_continues_when_the_other_one_is_killed(job: PlainJob) -> None:
    # given a job of an active pod and a spare, which coordinates: alone it is no majority
    before, victim = job.status(), actives(job)[0]
    # when the active pod is killed
    kill(job, victim)
    # then the spare takes the ranks; the record of the steps before is lost with the pod, so no time is compared
    status = job.wait_for("it makes steps again", lambda status: "resumedAt" in status.get("lastRecovery", {}))
    recovery = status["lastRecovery"]
    assert (recovery["fault"], recovery["strategy"]) == ("Pod", "SpareSwap")
    assert recovery["cause"]["pod"] == victim["metadata"]["name"]
    # and the operator has appointed the spare again
    assert status["coordinator"]["podUID"] == before["coordinator"]["podUID"]
    assert status["coordinator"]["epoch"] > before["coordinator"]["epoch"]


def coordinator_with_ranks(job: PlainJob) -> Raw:
    """The coordinator, once it has ranks: it was the only spare, and an active pod is killed."""
    kill(job, actives(job)[0])
    job.wait_for("the spare has taken the ranks", lambda s: s.get("recoveriesByStrategy", {}).get("spareSwap") == 1)
    job.wait_until_whole()
    job.wait_for_voters()

    def ranked() -> bool:
        return GROUP_RANK in coordinator(job)["metadata"].get("annotations", {})

    wait_until("the coordinator's pod has its rank", ranked, 30, seen=job.text)
    return coordinator(job)


def move_others_away_from(lost: Raw, job: PlainJob) -> None:
    """Delete the spare on this pod's node, if there is one, so that the killed pod's node is free for the next spare.

    If the kubelet had not reported the end of the killed pod yet, the scheduler has counted it when it placed the
    spare.
    """

    def neighbors() -> list[str]:
        """The names of the other pods on its node."""
        on_node = [pod["metadata"] for pod in alive(job) if pod["spec"]["nodeName"] == lost["spec"]["nodeName"]]
        return [metadata["name"] for metadata in on_node if metadata["uid"] != lost["metadata"]["uid"]]

    if present := neighbors():
        job.cluster.kubectl("-n", NAMESPACE, "delete", "pod", *present, "--wait=true")
        job.wait_until_whole()
        job.wait_for_voters()
    assert not neighbors(), job.text()


@pytest.mark.parametrize("job", [(3, 1)], indirect=True)
def test_a_coordinator_with_ranks_that_is_killed_is_succeeded_and_replaced(job: PlainJob) -> None:
    # given a job of three pods and a spare, whose coordinator trains
    lost = coordinator_with_ranks(job)
    before = job.status()
    # when its pod is killed, then the new coordinator reports its loss, and a spare takes its ranks
    with compared(job, replace(fault_of(lost, "Pod", "SpareSwap"), ended=lost["metadata"]["uid"])):
        kill(job, lost)
        elected(job, before)


@pytest.mark.parametrize("job", [(3, 1)], indirect=True)
def test_a_coordinator_with_ranks_on_a_powered_off_node_is_succeeded_and_replaced(job: PlainJob) -> None:
    # given a job of three pods and a spare, whose coordinator trains, on a node without another of its pods
    lost = coordinator_with_ranks(job)
    move_others_away_from(lost, job)
    before = job.status()
    # when its node is powered off, then a majority is left: the new coordinator reports its loss, and a spare takes its
    # ranks
    with compared(job, replace(fault_of(lost, "Node", "SpareSwap"), ended=lost["metadata"]["uid"])):
        job.cluster.power_off(lost["spec"]["nodeName"])
        elected(job, before)


def test_without_a_majority_the_operator_appoints_a_coordinator(job: PlainJob) -> None:
    # given an operator that knows the voters: it has received a step that was made later
    counted_at = time.time()
    job.wait_for("the operator has heard of a later step", lambda s: unix(s["progress"]["at"]) > counted_at)
    before, victim = job.status(), actives(job)[0]
    with compared(job, fault_of(victim, "Pod", "SpareSwap", "PodRecreate")):
        # when two of three voters have ended, and their kubelets report it
        kill(job, coordinator(job), victim)
        # then no election is possible, and the operator appoints a coordinator in a newer epoch
        after = job.wait_for(
            "a coordinator was appointed",
            lambda s: s.get("coordinator", {}).get("epoch", 0) > before["coordinator"]["epoch"],
        )
    assert after["coordinator"]["podUID"] != before["coordinator"]["podUID"]
    job.wait_until_whole()


def connections(job: PlainJob, pod: Raw) -> set[str]:
    """The addresses of the other pods of the job to which the kernel of this pod has established connections."""
    pid = job.cluster.container_pids(NAMESPACE, pod["metadata"]["name"])["understudy-sidecar"]
    fields = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    remote = [int(field[2].partition(":")[0], 16) for field in fields if field[3] == ESTABLISHED]
    peers = {str(IPv4Address(number.to_bytes(4, "little"))) for number in remote}
    return peers & {
        other["status"]["podIP"] for other in alive(job) if other["metadata"]["uid"] != pod["metadata"]["uid"]
    }


def test_a_disconnected_coordinator_is_succeeded_and_steps_down(job: PlainJob) -> None:
    before, workers, lost = job.status(), workers_of(job, actives(job)), coordinator(job)
    assert len(connections(job, lost)) == 2
    with compared(job, None):
        job.cluster.partition(lost["spec"]["nodeName"])
        after = elected(job, before)
        assert after["round"] == before["round"]
        assert all(map(running, workers))
        # and when its node is back after its connections have timed out, then there is one coordinator, another one
        # (otherwise a reset connection would look to it like the end of that member's pod)
        wait_until(
            "it has lost its members", lambda: not connections(job, lost), 30, seen=lambda: connections(job, lost)
        )
        job.cluster.restore(lost["spec"]["nodeName"])
        job.wait_until_whole()
    assert job.status()["coordinator"]["podUID"] != lost["metadata"]["uid"]


@pytest.mark.parametrize("job", [(2, 2)], indirect=True)
def test_an_active_pod_that_only_the_coordinator_cannot_reach_is_replaced_and_fences_itself(job: PlainJob) -> None:
    before, lost = job.status(), actives(job)[0]
    workers = workers_of(job, [lost])
    with compared(job, fault_of(lost, "Node", "SpareSwap")):
        job.cluster.partition(coordinator(job)["spec"]["nodeName"], lost["spec"]["nodeName"])
    assert job.status()["coordinator"] == before["coordinator"]
    wait_until("its workers end", lambda: not any(map(running, workers)), 60, seen=lambda: described(workers))
