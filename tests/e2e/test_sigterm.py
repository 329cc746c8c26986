"""A deleted pod on a healthy node and on a faulty one: whether its worker may save.

The policies of termination.onSigterm are tested in tests/unit/launcher/test_sigterm.py, on real processes.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.compared import compared, fault_of
from tests.e2e.lanes import NAMESPACE
from tests.e2e.objects import read_log
from tests.e2e.plain import STEP, MakeJob, PlainJob
from tests.e2e.training import Raw
from tests.e2e.waiting import wait_until

pytestmark = pytest.mark.timeout(200)

#: A folder that exists once per node of the local cluster.
NOLOGIN = "/var/log/nologin"
FAULTY = "understudy.dev/faulty"
#: Steps until SIGTERM, and logs that it saves.
SAVES = f"""{STEP}
import signal, sys
def save(*_):
    print("saved a checkpoint", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
n = 0
while True:
    n += 1
    step(n)
    time.sleep(0.1)
"""


@pytest.fixture(autouse=True)
def no_faulty_nodes(cluster: Cluster) -> Iterator[None]:
    yield
    for node in cluster.nodes():
        cluster.kubectl("annotate", "node", node, f"{FAULTY}-")


@contextmanager
def log_of(job: PlainJob, pod: Raw, file: Path) -> Iterator[Path]:
    """The trainer's log, followed until the pod is gone: the kubelet deletes it together with the pod."""
    command = job.cluster.kubectl_command("-n", job.namespace, "logs", "-f", pod["metadata"]["name"], "-c", "trainer")
    with file.open("wb") as out, subprocess.Popen(command, stdout=out) as following:
        try:
            wait_until("the trainer's log is followed", lambda: file.stat().st_size > 0, 30)
            yield file
            following.wait(30)
        finally:
            following.kill()


def log_of_deletion(job: PlainJob, pod: Raw, file: Path) -> str:
    """Delete the pod. Returns the trainer's log of its last round: it may have saved in an earlier one too."""
    with log_of(job, pod, file) as log:
        job.cluster.kubectl("-n", NAMESPACE, "delete", "pod", pod["metadata"]["name"], "--wait=false")
    return log_of_last_round(log)


def log_of_last_round(file: Path) -> str:
    return file.read_text().rpartition(" workers started ")[2]


def mark_faulty(job: PlainJob, pod: Raw) -> None:
    """Mark the pod's node as faulty, and wait until the pod's launcher can read it."""
    job.cluster.kubectl("annotate", "node", pod["spec"]["nodeName"], f"{FAULTY}=Xid 79 on GPU 3")
    wait_until("the verdict is in the pod", lambda: "Xid 79" in verdict(job, pod), 10)


def test_a_deleted_pod_saves_unless_its_node_is_faulty(make_job: MakeJob, tmp_path: Path) -> None:
    # given a job on healthy nodes
    job = make_job("sigterm", script=SAVES)
    job.apply()
    victim = active_that_does_not_coordinate(job)
    # when a pod is deleted, then its worker saves, and a spare takes over
    with compared(job, fault_of(victim, "Pod", "SpareSwap")):
        log = log_of_deletion(job, victim, tmp_path / "healthy")
    assert "saved a checkpoint" in log, log
    assert "no checkpoint is tried" not in log, log

    # when the node of another one is faulty, and that pod is deleted
    victim = active_that_does_not_coordinate(job)
    mark_faulty(job, victim)
    # then its worker does not save, and a spare takes over
    with compared(job, fault_of(victim, "Node", "SpareSwap")):
        log = log_of_deletion(job, victim, tmp_path / "faulty")
    assert "saved a checkpoint" not in log, log
    assert "no checkpoint is tried" in log, log


def test_the_others_save_if_they_have_the_shards_of_a_pod_on_a_faulty_node(make_job: MakeJob, tmp_path: Path) -> None:
    # given one job whose two ranks have the same shards, and one whose ranks have different ones
    jobs = {"twice": make_job("sigterm-twice", script=SAVES), "once": make_job("sigterm-once", script=SAVES)}
    jobs["twice"].apply(termination={"replicaGroups": [[0, 1]]})
    jobs["once"].apply(termination={"replicaGroups": [[0], [1]]})
    for shards, job in jobs.items():
        # when a pod is deleted whose node is faulty
        victim = active_that_does_not_coordinate(job)
        (other,) = {pod["metadata"]["name"] for pod in actives(job)} - {victim["metadata"]["name"]}
        mark_faulty(job, victim)
        with compared(job, fault_of(victim, "Node", "SpareSwap")) as comparison:
            assert "no checkpoint is tried" in log_of_deletion(job, victim, tmp_path / shards)
        # then the other rank saves if it has all shards, and otherwise the cause reports that it does not
        cause = comparison.recovery["cause"]["message"]
        log = read_log(job.cluster, NAMESPACE, other, "trainer")
        assert ("saved a checkpoint" in log) == (shards == "twice"), log
        assert ("no healthy pod has the shards" in cause) == (shards == "once"), cause


def test_a_file_on_the_node_makes_it_faulty_for_as_long_as_it_exists(make_job: MakeJob, tmp_path: Path) -> None:
    # given a job that looks for a file in a folder that each node has for itself
    job, node = make_job("sigterm-nologin", script=SAVES), ""
    try:
        job.apply(faults={"nodeFile": NOLOGIN})
        victim = active_that_does_not_coordinate(job)
        node = victim["spec"]["nodeName"]
        # when the file is created, removed, and created again
        for command, expected in (("touch", "Faulty"), ("rm", "Unknown"), ("touch", "Faulty")):
            on_node(job.cluster, node, command, NOLOGIN)
            wait_until(f"the verdict is {expected}", partial(has_verdict, job, victim, expected), 10)
        assert f"{NOLOGIN} exists on the node" in verdict(job, victim)
        # then a pod that is deleted there does not save
        with compared(job, fault_of(victim, "Node", "SpareSwap")):
            log = log_of_deletion(job, victim, tmp_path / "log")
        assert "saved a checkpoint" not in log, log
        assert f"no checkpoint is tried: the node is faulty: {NOLOGIN} exists on the node" in log
    finally:
        if node:
            on_node(job.cluster, node, "rm", "-f", NOLOGIN)


def on_node(cluster: Cluster, node: str, *words: str) -> None:
    subprocess.run(cluster.node_command(node, *words), check=True)


def active_that_does_not_coordinate(job: PlainJob) -> Raw:
    job.wait_until_whole()
    coordinator = job.status()["coordinator"]["podUID"]
    return next(pod for pod in actives(job) if pod["metadata"]["uid"] != coordinator)


def actives(job: PlainJob) -> list[Raw]:
    return [
        pod
        for pod in job.pods()
        if pod["metadata"]["labels"]["understudy.dev/role"] == "active"
        and pod["status"]["phase"] == "Running"
        and "deletionTimestamp" not in pod["metadata"]
    ]


def has_verdict(job: PlainJob, pod: Raw, expected: str) -> bool:
    return expected in verdict(job, pod)


def verdict(job: PlainJob, pod: Raw) -> str:
    """The file that the launcher reads, as seen from this machine; "" while there is none."""
    pid = job.cluster.container_pids(job.namespace, pod["metadata"]["name"])["trainer"]
    try:
        return Path(f"/proc/{pid}/root/understudy/verdict.json").read_text()
    except FileNotFoundError:
        return ""
