"""A pod that is deleted, on a node that is well and on one that is known to be faulty: whether its worker may save."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.conftest import NAMESPACE
from tests.e2e.plain import PlainJob
from tests.e2e.training import Raw
from tests.e2e.waiting import wait_until

pytestmark = pytest.mark.timeout(200)

#: In a folder that each node of the local cluster has for itself.
NOLOGIN = "/var/log/nologin"
#: Steps until SIGTERM, and says that it saves then.
SAVES = """
import signal, sys, time
from understudy_torch import step
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


@pytest.fixture
def job(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[PlainJob]:
    made = PlainJob(cluster, NAMESPACE, f"sigterm-{request.node.callspec.id.lower()}", script=SAVES)
    made.delete()
    try:
        yield made
    finally:
        for node in cluster.nodes():
            cluster.kubectl("annotate", "node", node, "understudy.dev/faulty-")
        made.delete()


@contextmanager
def log_of(job: PlainJob, pod: Raw, file: Path) -> Iterator[Path]:
    """What its trainer writes until the pod is gone: kubectl cannot be asked for it later."""
    command = job.cluster.kubectl_command("-n", job.namespace, "logs", "-f", pod["metadata"]["name"], "-c", "trainer")
    with file.open("wb") as out, subprocess.Popen(command, stdout=out) as following:
        try:
            yield file
            following.wait(30)
        finally:
            following.kill()


@pytest.mark.parametrize(
    ("faulty", "policy", "saves"),
    [(False, "Auto", True), (True, "Auto", False), (True, "Always", True), (False, "Never", False)],
    ids=["well-auto", "faulty-auto", "faulty-always", "well-never"],
)
def test_a_deleted_pod_saves_unless_its_node_is_faulty(
    job: PlainJob, tmp_path: Path, faulty: bool, policy: str, saves: bool
) -> None:
    job.apply(checkpoint={"onSigterm": policy})
    victim = active_that_does_not_coordinate(job)
    name, node = victim["metadata"]["name"], victim["spec"]["nodeName"]
    if faulty:
        job.cluster.kubectl("annotate", "node", node, "understudy.dev/faulty=Xid 79 on GPU 3")
        wait_until("the verdict is in the pod", lambda: "Xid 79" in verdict(job, name), 10)
    with log_of(job, victim, tmp_path / "log") as log:
        job.cluster.kubectl("-n", NAMESPACE, "delete", "pod", name, "--wait=false")
    said = log.read_text()
    assert ("saved a checkpoint" in said) == saves, said
    assert ("no checkpoint is tried" in said) == (not saves), said
    status = job.wait_for("the job has recovered", lambda s: s.get("lastRecovery", {}).get("resumedAt"))
    assert status["lastRecovery"]["strategy"] == "SpareSwap"
    assert status["lastRecovery"]["fault"] == ("Node" if faulty and not saves else "Pod")


@pytest.mark.parametrize(
    ("groups", "saves"), [([[0, 1]], True), ([[0], [1]], False)], ids=["shards-held-twice", "shards-held-once"]
)
def test_the_others_save_where_they_hold_the_shards_of_who_leaves_a_faulty_node(
    job: PlainJob, tmp_path: Path, groups: list[list[int]], saves: bool
) -> None:
    job.apply(checkpoint={"replicaGroups": groups})
    victim = active_that_does_not_coordinate(job)
    name, node = victim["metadata"]["name"], victim["spec"]["nodeName"]
    (other,) = {pod["metadata"]["name"] for pod in actives(job)} - {name}
    job.cluster.kubectl("annotate", "node", node, "understudy.dev/faulty=Xid 79 on GPU 3")
    wait_until("the verdict is in the pod", lambda: "Xid 79" in verdict(job, name), 10)
    with log_of(job, victim, tmp_path / "log") as log:
        job.cluster.kubectl("-n", NAMESPACE, "delete", "pod", name, "--wait=false")
    assert "no checkpoint is tried" in log.read_text()
    # then the other active has saved, if it could, and the cause says if it could not
    status = job.wait_for("the job has recovered", lambda s: s.get("lastRecovery", {}).get("resumedAt"))
    cause = status["lastRecovery"]["cause"]["message"]
    said = job.cluster.kubectl("-n", NAMESPACE, "logs", other, "-c", "trainer")
    assert ("saved a checkpoint" in said) == saves, said
    assert ("are held by nobody healthy" in cause) == (not saves), cause


def test_a_file_on_the_node_makes_it_faulty_for_as_long_as_it_exists(cluster: Cluster, tmp_path: Path) -> None:
    # given a job that looks for a file in a folder that each node has for itself
    job = PlainJob(cluster, NAMESPACE, "sigterm-nologin", script=SAVES)
    job.delete()
    node = ""
    try:
        job.apply(checkpoint={"nologinPath": NOLOGIN})
        victim = active_that_does_not_coordinate(job)
        name, node = victim["metadata"]["name"], victim["spec"]["nodeName"]
        # when the file comes, goes, and comes again
        for what, told in (("touch", "Faulty"), ("rm", "Unknown"), ("touch", "Faulty")):
            on_node(cluster, node, what, NOLOGIN)
            wait_until(f"the verdict is {told}", partial(is_told, job, name, told), 10)
        assert f"{NOLOGIN} exists on the node" in verdict(job, name)
        # then a pod that is deleted there saves nothing
        with log_of(job, victim, tmp_path / "log") as log:
            cluster.kubectl("-n", NAMESPACE, "delete", "pod", name, "--wait=false")
        said = log.read_text()
        assert "saved a checkpoint" not in said, said
        assert f"no checkpoint is tried: the node is faulty: {NOLOGIN} exists on the node" in said
        status = job.wait_for("the job has recovered", lambda s: s.get("lastRecovery", {}).get("resumedAt"))
        assert (status["lastRecovery"]["strategy"], status["lastRecovery"]["fault"]) == ("SpareSwap", "Node")
    finally:
        if node:
            on_node(cluster, node, "rm", "-f", NOLOGIN)
        job.delete()


def is_told(job: PlainJob, pod: str, told: str) -> bool:
    return told in verdict(job, pod)


def on_node(cluster: Cluster, node: str, *words: str) -> None:
    subprocess.run(cluster.node_command(node, *words), check=True)


def active_that_does_not_coordinate(job: PlainJob) -> Raw:
    job.wait_until_whole()
    coordinator = job.status()["coordinator"]["podUID"]
    return next(pod for pod in actives(job) if pod["metadata"]["uid"] != coordinator)


def actives(job: PlainJob) -> list[Raw]:
    return [pod for pod in job.pods() if pod["metadata"]["labels"]["understudy.dev/role"] == "active"]


def verdict(job: PlainJob, pod: str) -> str:
    """The file that the launcher reads."""
    read = ("exec", pod, "-c", "trainer", "--", "cat", "/understudy/verdict.json")
    return job.cluster.kubectl("-n", job.namespace, *read, check=False)
