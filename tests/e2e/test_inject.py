"""Jobs without changes for Understudy, with a label on their pods: a plain Job, a JobSet, torchrun inside of bash; a
Job with only the label, so without a spare; and JobSet's own PyTorch example, torchrun in bash, with only the label.

Each survives a worker that is killed, a pod that is lost and a node that is powered off, with backoffLimit 0, and all
its pods exit 0, including the spare. The measured times are in build/bench/injection.json; with
`make bench-injection` in benchmarks/results.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.journal import Journal
from benchmarks.records import Sample
from benchmarks.report import run_facts
from tests.cluster import Cluster, CommandFailed
from tests.e2e import acts
from tests.e2e.acts import Act
from tests.e2e.compared import compared
from tests.e2e.injected import (
    NAMESPACE,
    PODS,
    WITHOUT_SPARE_S,
    InjectedTraining,
    label_namespace,
)
from tests.e2e.lanes import NAMESPACE as PLAIN_NAMESPACE
from tests.e2e.objects import listed, read, read_log
from tests.e2e.success import ended_badly, exit_codes, wait_for_end
from tests.e2e.training import CHECKOUT, LABEL_JOB, Raw
from tests.e2e.undisturbed import check_losses
from tests.e2e.waiting import wait_until

pytestmark = pytest.mark.timeout(600)

#: `make bench-injection` sets it, so that no other run of these tests changes a file of the repository.
RESULTS = CHECKOUT / os.environ.get("UNDERSTUDY_BENCH_RESULTS", "build/bench") / "injection.json"
SIZE = 4  # nodes
#: kind, torchrun inside of bash, only the label
KINDS = {
    "job": ("Job", False, False),
    "jobset": ("JobSet", False, False),
    "torchrun": ("Job", True, False),
    "job-label": ("Job", False, True),
    "jobset-torchrun": ("JobSet", True, True),
}
#: The kinds of each run; `make test-all` has all. In each run, test_inject_page.py tests a JobSet with only the label
#: under torchrun, which loses a pod, and test_torchrun.py a node that is powered off under torchrun.
IN_EACH_RUN = ("job",)
ALONE = """
import os, signal, sys, time
from understudy_torch import exit_on_fault
def save(*_):
    print("saved a checkpoint", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, save)
exit_on_fault()
print("ready", flush=True)
while True:
    time.sleep(1)
"""


@pytest.fixture(scope="module")
def journal() -> Iterator[Journal]:
    """Each run adds a session."""
    journal = Journal(RESULTS, run_facts("make bench-injection"), resume=True)
    yield journal
    journal.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "training" not in metafunc.fixturenames:
        return
    kinds = []
    for name in KINDS:
        kinds.append(pytest.param(name, marks=() if name in IN_EACH_RUN else pytest.mark.nightly))
    metafunc.parametrize("training", kinds, indirect=True, scope="module")


@pytest.fixture(scope="module")
def training(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[InjectedTraining]:
    kind, bash, label_alone = KINDS[request.param]
    if kind == "JobSet":
        request.getfixturevalue("jobsets")
    # Each has a namespace of its own: the example's claim is bound to one folder per namespace.
    namespace = f"{NAMESPACE}-{request.param}"
    label_namespace(cluster, namespace)
    folder = CHECKOUT / "build" / f"e2e-storage-inject-{request.param}"
    training = InjectedTraining(cluster, folder, namespace, name="ddp", kind=kind, bash=bash, label_alone=label_alone)
    training.apply()
    yield training
    training.discard()
    check_losses(training)


def note(journal: Journal, training: InjectedTraining, fault: str, act: Act) -> None:
    shape = (training.kind, training.bash, training.label_alone)
    description = next(name for name, known in KINDS.items() if known == shape)
    case = f"{description}-{fault}"
    run = journal.next_run("understudy", case, SIZE)
    journal.add([Sample("understudy", case, SIZE, run, {"first_step_s": act.resumed_s})])


def test_pods_with_the_label_train_together_and_the_last_pod_is_a_spare(
    training: InjectedTraining,
) -> None:
    acts.settle(training)
    status = training.status()
    members, spares = training.members, PODS - training.members
    assert status["members"] == {"desired": members, "active": members, "ready": members}
    assert status["spares"] == {"desired": spares, "ready": spares, "claimed": 0}
    assert acts.world_size(training) == members * training.workers
    wait_until("its Jobs leave faults to the ladder", lambda: limits(training) == {2**31 - 1}, 30)


def test_a_killed_worker_restarts_in_place(training: InjectedTraining, journal: Journal) -> None:
    act = acts.kill_worker(training)
    assert (act.fault, act.strategy) == ("Process", "InPlace")
    assert act.pods_after == act.pods_before
    note(journal, training, "worker", act)


def test_a_drill_breaks_a_worker_and_shows_what_it_costs_if_the_pods_allow_it(training: InjectedTraining) -> None:
    acts.settle(training)
    words = ("drill", training.group, "--fault", "process", "--yes", "-n", training.namespace, "-o", "json")
    command = [sys.executable, "-m", "understudy_cli", *words, "--kubeconfig", str(training.cluster.kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if training.label_alone:
        assert (done.returncode, "understudy.dev/drills: Allowed" in done.stderr) == (1, True), done.stderr
        return
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["strategy"] == "InPlace"
    assert training.status()["lastRecovery"]["reason"].startswith("a drill")
    acts.settle(training)


def test_a_killed_sidecar_causes_no_restart_that_the_job_would_count(training: InjectedTraining) -> None:
    pod = acts.running_pods(training)[0]["metadata"]["name"]
    supervisor = training.cluster.container_pids(training.namespace, pod)["understudy-sidecar"]
    (sidecar,) = acts._children(supervisor)
    with compared(training, None):
        os.kill(sidecar, signal.SIGKILL)
        wait_until("it is restarted", lambda: set(acts._children(supervisor)) not in ({sidecar}, set()), 30)
        acts.settle(training)
    assert acts.restarts(training) == 0
    assert failed_pods(training) == 0


def test_a_deleted_pod_is_replaced_by_the_spare_or_by_the_pod_that_the_operator_creates(
    training: InjectedTraining, journal: Journal
) -> None:
    acts.settle(training)
    before = acts.uids(training)
    act = acts.delete_pod(training)
    assert act.strategy == training.replacement
    note(journal, training, "pod", act)
    # and the operator creates the pod of the vacant index, because the Job controller waits for 10 s after a failure
    wait_until("all indexes have pods", lambda: len(acts.running_pods(training)) == PODS, 60, seen=training.pods_text)
    replacements = [pod for pod in training.pods() if pod["metadata"]["uid"] not in before]
    assert [pod["metadata"].get("generateName") for pod in replacements] == [None]


def test_a_powered_off_node_is_replaced(training: InjectedTraining, journal: Journal) -> None:
    act = acts.power_off_node(training, WITHOUT_SPARE_S if training.label_alone else acts.RECOVERY_LIMIT_S)
    assert (act.fault, act.strategy) == ("Node", training.replacement)
    note(journal, training, "node", act)
    wait_until("the dead node's pod is gone", lambda: act.victim.uid not in acts.uids(training), 120)
    training.cluster.restore(act.victim.node)
    acts.settle(training)


def test_all_pods_exit_0_with_the_job_including_the_spare(training: InjectedTraining) -> None:
    training.finish()
    wait_for_end(training)
    codes = exit_codes(training)
    assert len(codes) >= 8, codes
    assert not ended_badly(codes)
    kind = "Completed" if training.kind == "JobSet" else "Complete"

    def completed() -> bool:
        conditions = training.target()["status"].get("conditions", ())
        return any((x["type"], x["status"]) == (kind, "True") for x in conditions)

    wait_until(f"the {training.kind} has completed", completed, 90, seen=training.pods_text)


def test_deleting_the_job_leaves_no_objects(training: InjectedTraining) -> None:
    training.discard()
    owned = ("pods", "injectedjobs", "secrets", "services")

    def left() -> list[Raw]:
        found = (listed(training.cluster, training.namespace, kind, f"{LABEL_JOB}={training.group}") for kind in owned)
        return [item for items in found for item in items]

    wait_until("nothing of the job is left", lambda: not left(), 90, seen=left)


def limits(training: InjectedTraining) -> set[int]:
    return {job["spec"]["backoffLimit"] for job in training.jobs()}


def failed_pods(training: InjectedTraining) -> int:
    return sum(job["status"].get("failed", 0) for job in training.jobs())


# A script without the launcher ---------------------------------------------------------------------------------------


def plain_job(cluster: Cluster, name: str, script: str, **annotations: str) -> Raw:
    result = {f"understudy.dev/{key.replace('_', '-')}": text for key, text in annotations.items()}
    trainer = {"name": "trainer", "image": cluster.base_image, "imagePullPolicy": "IfNotPresent"}
    pod = {
        "terminationGracePeriodSeconds": 20,
        "restartPolicy": "Never",
        "containers": [{**trainer, "command": ["python3", "-u", "-c", script]}],
    }
    template = {"metadata": {"labels": {"understudy.dev/inject": "enabled"}, "annotations": result}, "spec": pod}
    spec = {"completionMode": "Indexed", "completions": 1, "parallelism": 1, "backoffLimit": 0, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


@pytest.fixture
def alone(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Raw]:
    """The pod of a Job without a launcher, whose script is ready."""
    label_namespace(cluster)
    name = f"alone-{request.node.callspec.id}".lower()
    manifest = plain_job(cluster, name, ALONE, launcher="None")
    cluster.kubectl("apply", "-f", "-", input=json.dumps(manifest))

    def ready() -> Raw | None:
        pods = listed(cluster, NAMESPACE, "pods", f"job-name={name}")
        is_ready = pods and "ready" in read_log(cluster, NAMESPACE, pods[0]["metadata"]["name"], "trainer")
        return pods[0] if is_ready else None

    pod = wait_until("the script is ready", ready, 90)
    assert pod is not None
    yield pod
    cluster.kubectl("annotate", "node", pod["spec"]["nodeName"], "understudy.dev/faulty-", check=False)
    cluster.kubectl("-n", NAMESPACE, "delete", "job", name, "--wait=false", "--cascade=background")


@pytest.mark.parametrize("faulty", [False, True])
def test_exit_on_fault_alone_saves_unless_its_node_is_faulty(
    cluster: Cluster, alone: Raw, faulty: bool, tmp_path: Path
) -> None:
    name, node = alone["metadata"]["name"], alone["spec"]["nodeName"]
    pid = cluster.container_pids(NAMESPACE, name)["trainer"]
    if faulty:
        cluster.kubectl("annotate", "node", node, "understudy.dev/faulty=Xid 79 on GPU 3")
        file = Path(f"/proc/{pid}/root/understudy/verdict.json")
        wait_until("the verdict is in the pod", lambda: file.exists() and "Xid 79" in file.read_text(), 60)
    # SIGTERM as the kubelet sends it; the pod's object stays, and so does the log.
    os.kill(pid, signal.SIGTERM)

    def ended() -> Raw | None:
        pod = read(cluster, NAMESPACE, "pods", name)
        (status,) = pod["status"]["containerStatuses"]
        state: Raw | None = status["state"].get("terminated")
        return state

    state = wait_until("the trainer has ended", ended, 60)
    assert state is not None
    lines = read_log(cluster, NAMESPACE, name, "trainer")
    assert state["exitCode"] == (1 if faulty else 0)
    assert ("saved a checkpoint" in lines) != faulty
    assert ("no checkpoint is tried: the node is faulty: annotation: Xid 79 on GPU 3" in lines) == faulty


# Jobs that are not injected -------------------------------------------------------------------------------------------


def test_a_job_that_cannot_train_as_one_is_refused_when_it_is_applied(cluster: Cluster) -> None:
    label_namespace(cluster)
    manifest = plain_job(cluster, "wrong", "pass", spares="1")
    with pytest.raises(CommandFailed) as refused:
        cluster.kubectl("apply", "-f", "-", input=json.dumps(manifest))
    assert "admission webhook" in str(refused.value)
    assert "annotation understudy.dev/spares is 1, but the job has 1 pods, and at least one" in str(refused.value)
    assert cluster.kubectl("-n", NAMESPACE, "get", "job", "wrong", "--ignore-not-found").strip() == ""


def test_a_namespace_without_the_label_is_left_alone(cluster: Cluster) -> None:
    manifest = plain_job(cluster, "untouched", "pass")
    manifest["metadata"]["namespace"] = PLAIN_NAMESPACE
    cluster.kubectl("apply", "-f", "-", input=json.dumps(manifest))

    (pod,) = wait_until("its pod is there", lambda: listed(cluster, PLAIN_NAMESPACE, "pods", "job-name=untouched"), 30)
    assert "initContainers" not in pod["spec"]
    cluster.kubectl("-n", PLAIN_NAMESPACE, "delete", "job", "untouched", "--wait=false")
