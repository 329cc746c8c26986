"""A JobSet runs as a TrainingJob if its two header lines are changed: JobSet's examples, restated in conformance/.

All are applied at once, and each test watches one of them. JobSet's documentation defines the expected results. One is
applied alone, in the end: its Jobs share their nodes with no other Job of any JobSet.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import Cluster
from tests.e2e.lanes import create_namespace
from tests.e2e.objects import listed, read
from tests.e2e.training import CHECKOUT, Raw
from tests.e2e.waiting import wait_for_status, wait_until

pytestmark = pytest.mark.timeout(300)

#: The same in each lane: its volumes are bound to claims in it.
NAMESPACE = "understudy-e2e-conformance"
MANIFESTS = Path(__file__).with_name("conformance")
STORAGE = CHECKOUT / "build" / "e2e-storage-conformance"
JOBSET = "jobset.sigs.k8s.io"
ALONE = "exclusive-placement"
LIMIT_S = 150


@dataclass(frozen=True)
class Applied:
    """A TrainingJob from one of the manifests."""

    cluster: Cluster
    name: str

    def status(self) -> Raw:
        status: Raw = read(self.cluster, NAMESPACE, "trainingjobs", self.name).get("status", {})
        return status

    def jobs(self) -> dict[str, Raw]:
        """Its Jobs by name."""
        items = listed(self.cluster, NAMESPACE, "jobs", f"{JOBSET}/jobset-name={self.name}")
        return {job["metadata"]["name"]: job for job in items}

    def pods(self) -> list[Raw]:
        return listed(self.cluster, NAMESPACE, "pods", f"{JOBSET}/jobset-name={self.name}")

    def kubectl(self, *words: str, **options: Any) -> str:
        return self.cluster.kubectl("-n", NAMESPACE, *words, **options)

    def text(self) -> str:
        return self.kubectl("get", "tj,jobs,pods", check=False) + json.dumps(self.status(), indent=1)

    def wait_for(self, description: str, condition: Callable[[Raw], Any]) -> Raw:
        """The first status that fulfills the condition."""
        return wait_for_status(f"{self.name}: {description}", self.status, condition, LIMIT_S, seen=self.text)

    def wait_for_end(self) -> Raw:
        return self.wait_for("it has ended", lambda status: status.get("terminalState"))

    def wait_for_jobs(self, description: str, condition: Callable[[dict[str, Raw]], bool]) -> dict[str, Raw]:
        wait_until(f"{self.name}: {description}", lambda: condition(self.jobs()), LIMIT_S, seen=self.text)
        return self.jobs()

    def fail(self, job: str) -> None:
        """Let a pod of that Job exit 1."""
        running = [
            pod["metadata"]["name"]
            for pod in self.pods()
            if pod["metadata"]["labels"]["job-name"] == job and pod["status"]["phase"] == "Running"
        ]
        # Its shell ends as soon as it sees the file, and may end this command too (status
        # 137). Each caller waits until the pod has failed.
        self.kubectl("exec", running[0], "--", "touch", "/tmp/fail", check=False)


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[Cluster]:
    create_namespace(cluster, NAMESPACE)
    forget(cluster)
    yield cluster
    forget(cluster)


@pytest.fixture(scope="module")
def apply_all(namespace: Cluster) -> Cluster:
    shutil.rmtree(STORAGE, ignore_errors=True)  # files of an earlier run: `forget` has ended the pods that write them
    STORAGE.mkdir(parents=True)
    STORAGE.chmod(0o777)  # the pods run as another user
    names = sorted({path.stem for path in MANIFESTS.glob("*.yaml")} - {ALONE})
    apply(namespace, volume(0), volume(1), users_claim(), users_job(), *(manifest(namespace, name) for name in names))
    return namespace


@pytest.fixture
def applied(apply_all: Cluster) -> Callable[[str], Applied]:
    return lambda name: Applied(apply_all, name)


@pytest.fixture
def alone(namespace: Cluster) -> Iterator[Applied]:
    """A job that keeps the pods of all other JobSets off its nodes, also those of the next tests until it is gone."""
    forget(namespace)
    apply(namespace, manifest(namespace, ALONE))
    yield Applied(namespace, ALONE)
    forget(namespace)


def apply(cluster: Cluster, *items: Raw) -> None:
    body = {"apiVersion": "v1", "kind": "List", "items": list(items)}
    cluster.kubectl("apply", "-n", NAMESPACE, "-f", "-", input=json.dumps(body))


def forget(cluster: Cluster) -> None:
    """Delete all of the namespace's jobs, pods and claims, and wait until they are gone."""
    cluster.kubectl("-n", NAMESPACE, "delete", "tj,job", "--all", "--wait=true")

    def no_pods() -> bool:
        pods = listed(cluster, NAMESPACE, "pods")
        if pods:  # most pods ignore SIGTERM until the end of their grace period
            cluster.kubectl("-n", NAMESPACE, "delete", "pod", "--all", "--grace-period=0", "--force", "--wait=false")
        return not pods

    wait_until("no pod of the namespace is left", no_pods, 60, seen=lambda: listed(cluster, NAMESPACE, "pods"))
    cluster.kubectl("-n", NAMESPACE, "delete", "pvc", "--all", "--wait=true")
    cluster.kubectl("delete", "pv", "conformance-0", "conformance-1", "--ignore-not-found", "--wait=true")


def manifest(cluster: Cluster, name: str) -> Raw:
    """Change the two header lines, the image and torch to those of the local cluster, and ask for JobSet's behavior."""
    manifest: Raw = yaml.safe_load((MANIFESTS / f"{name}.yaml").read_text())
    manifest |= {"apiVersion": "understudy.dev/v1alpha1", "kind": "TrainingJob"}
    manifest["metadata"].setdefault("annotations", {})["understudy.dev/jobset-compatible"] = "true"
    for replicated in manifest["spec"]["replicatedJobs"]:
        pod = replicated["template"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        container["image"] = cluster.base_image
        container["imagePullPolicy"] = "IfNotPresent"
        if "torch" in container["args"][0]:
            container.setdefault("env", []).append({"name": "PYTHONPATH", "value": "/torch"})
            container["volumeMounts"] = [{"name": "torch", "mountPath": "/torch", "readOnly": True}]
            pod["volumes"] = [{"name": "torch", "hostPath": {"path": str(cluster.torch_path)}}]
    return manifest


def volume(number: int) -> Raw:
    """Create a volume for a claim: the cluster has no provisioner."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"conformance-{number}"},
        "spec": {
            "capacity": {"storage": "1Mi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "conformance",
            "hostPath": {"path": str(STORAGE), "type": "Directory"},
        },
    }


def users_claim() -> Raw:
    """A job with the name of one that single-pvc shares and keeps."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "checkpoints-single-pvc"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "conformance",
            "resources": {"requests": {"storage": "1Mi"}},
        },
    }


def users_job() -> Raw:
    """A job with the name of one of ttl-after-finished; it never runs."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "IMAGE"}]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "ttl-after-finished-workers-0"},
        "spec": {"suspend": True, "template": {"spec": pod}},
    }


Apply = Callable[[str], Applied]


@pytest.mark.parametrize(
    "name", ["multiple-depends-on", "coordinator", "group", "paralleljobs", "success-policy", "pytorch"]
)
def test_the_job_completes(applied: Apply, name: str) -> None:
    status = applied(name).wait_for_end()
    assert status["terminalState"] == "Completed"
    assert status["restarts"] == 0
    assert condition(status, "Completed")["status"] == "True"


@pytest.mark.parametrize(
    ("name", "restarts", "reason"),
    [
        ("failjobset-action", 0, "FailJobSetFailurePolicyAction"),
        ("restartjobset-action", 2, "ReachedMaxRestarts"),
        ("failure-policy", 1, "ReachedMaxRestarts"),
    ],
)
def test_the_job_fails(applied: Apply, name: str, restarts: int, reason: str) -> None:
    status = applied(name).wait_for_end()
    assert status["terminalState"] == "Failed"
    assert (status["restarts"], status["restartsCountTowardsMax"]) == (restarts, restarts)
    failed = condition(status, "Failed")
    assert (failed["status"], failed["reason"]) == ("True", reason)


@pytest.mark.parametrize("name", ["rjimr-action", "onjobfailurereasons", "onjobfailurereasons-podfailurepolicy"])
def test_restarts_that_do_not_count_have_no_limit(applied: Apply, name: str) -> None:
    """maxRestarts is 1."""
    job = applied(name)
    status = job.wait_for("it has restarted twice", lambda status: status.get("restarts", 0) >= 2)
    assert status["restartsCountTowardsMax"] == 0
    assert not status.get("terminalState")
    job.kubectl("delete", "tj", name)


def test_dependent_jobs_are_created_when_their_dependencies_have_reached_the_required_state(applied: Apply) -> None:
    job = applied("depends-on")
    status = job.wait_for_end()
    assert (status["terminalState"], status["restarts"]) == ("Completed", 0)
    jobs = {name.removeprefix("depends-on-")[:-2]: made for name, made in job.jobs().items()}
    created = {name: at(made["metadata"]["creationTimestamp"]) for name, made in jobs.items()}
    assert at(jobs["initializer"]["status"]["completionTime"]) <= created["launcher"]
    (launcher,) = [pod for pod in job.pods() if "launcher" in pod["metadata"]["name"]]
    started = next(x for x in launcher["status"]["conditions"] if x["type"] == "Initialized")
    assert at(started["lastTransitionTime"]) <= created["worker"]
    # and the launcher ends only when it has found the worker


def test_startup_in_order_waits_until_all_pods_of_the_previous_job_are_ready(applied: Apply) -> None:
    job = applied("startup-driver-ready")
    status = job.wait_for_end()
    jobs = job.jobs()
    driver, workers = (jobs[f"startup-driver-ready-{name}-0"] for name in ("driver", "workers"))
    assert at(workers["metadata"]["creationTimestamp"]) > at(driver["metadata"]["creationTimestamp"])
    assert status["terminalState"] == "Completed"
    assert condition(status, "StartupPolicyCompleted")["status"] == "True"


def test_a_failed_job_is_recreated_alone_or_with_all_others_as_its_rule_states(applied: Apply) -> None:
    job = applied("restartjob-action")
    leader, worker = "restartjob-action-rj-leader-0", "restartjob-action-rj-worker-0"
    before = ready(job, leader, worker)
    # when a worker fails, only its Job is recreated
    job.fail(worker)
    after = ready(job, leader, worker, but=before[worker])
    assert after[leader] == before[leader]
    status = job.status()
    assert (status["restarts"], status["restartsCountTowardsMax"]) == (0, 0)
    assert replicated(status, "rj-worker")["jobRestarts"] == [1]
    # when the leader fails, both are
    job.fail(leader)
    last = ready(job, leader, worker, but=after[leader])
    assert last[worker] != after[worker]
    status = job.status()
    assert (status["restarts"], status["restartsCountTowardsMax"]) == (1, 1)
    assert attempts(job) == {1}
    # when a third fails, no restart is left
    job.fail(worker)
    status = job.wait_for_end()
    assert (status["terminalState"], condition(status, "Failed")["reason"]) == ("Failed", "ReachedMaxRestarts")


def test_restarts_of_one_job_that_do_not_count_have_no_limit(applied: Apply) -> None:
    """maxRestarts is 1."""
    job = applied("restartjobandignore-action")
    worker = "restartjobandignore-action-rj-worker-0"
    before = ready(job, worker)
    for number in range(2):
        job.fail(worker)
        before = ready(job, worker, but=before[worker])
        result = replicated(job.status(), "rj-worker")
        assert result["jobRestarts"] == [number + 1]
        assert result.get("jobRestartsCountTowardsMax", [0]) == [0]


def test_an_evicted_pod_causes_no_restart_that_counts(applied: Apply) -> None:
    job = applied("host-maintenance")
    leader = "host-maintenance-leader-0"
    before = ready(job, leader)
    (pod,) = [pod["metadata"]["name"] for pod in job.pods() if pod["metadata"]["labels"]["job-name"] == leader]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
    job.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(eviction))
    ready(job, leader, but=before[leader])
    status = job.status()
    assert (status["restarts"], status["restartsCountTowardsMax"]) == (1, 0)
    assert attempts(job) == {1}
    job.fail(leader)
    assert job.wait_for_end()["terminalState"] == "Failed"


def test_the_coordinators_address_is_on_every_job_and_pod(applied: Apply) -> None:
    job = applied("coordinator")
    made = job.wait_for_jobs("both Jobs are there", lambda jobs: len(jobs) == 2)
    for thing in (*made.values(), *job.pods()):
        for result in (thing["metadata"]["labels"], thing["metadata"]["annotations"]):
            assert result[f"{JOBSET}/coordinator"] == "coordinator-driver-0-0.coordinator"


def test_jobs_of_a_group_are_numbered_among_themselves(applied: Apply) -> None:
    made = applied("group").wait_for_jobs("both Jobs are there", lambda jobs: len(jobs) == 2)
    for name, group in (("group-rj-1-0", "default"), ("group-rj-2-0", "group-b")):
        labels = made[name]["metadata"]["labels"]
        assert labels[f"{JOBSET}/group-name"] == group
        assert (labels[f"{JOBSET}/group-replicas"], labels[f"{JOBSET}/job-group-index"]) == ("1", "0")
        assert labels[f"{JOBSET}/global-replicas"] == "2"


def test_pods_find_each_other_under_hostname_and_subdomain(applied: Apply) -> None:
    applied("network").wait_for("the workers have found the leader", lambda s: replicated(s, "workers")["succeeded"])


def test_a_success_ends_the_jobs_that_still_run(applied: Apply) -> None:
    job = applied("success-policy")
    job.wait_for_end()
    wait_until("no pod of it runs", lambda: not running(job), LIMIT_S, seen=job.text)


def test_a_conflicting_job_is_reported_and_after_its_deletion_the_ended_job_is_deleted_when_its_time_to_live_is_over(
    applied: Apply,
) -> None:
    job = applied("ttl-after-finished")
    in_the_way = "ttl-after-finished-workers-0 exists and does not belong to this job"
    job.wait_for("status has the condition", lambda s: any(in_the_way in x["message"] for x in s.get("conditions", ())))
    job.kubectl("delete", "job", "ttl-after-finished-workers-0")
    wait_until("it is gone", lambda: not job.kubectl("get", "tj", job.name, "--ignore-not-found"), LIMIT_S)


def test_claims_are_shared_and_kept_or_deleted_as_their_policy_states(applied: Apply) -> None:
    job = applied("single-pvc")
    assert job.wait_for_end()["terminalState"] == "Completed"
    assert {path.name for path in STORAGE.iterdir()} == {"model", "0", "1"}
    claims = job.kubectl("get", "pvc", "-o", "name")
    assert "initializer-single-pvc" in claims
    job.kubectl("delete", "tj", "single-pvc", "--wait=true")
    wait_until("one claim is gone", lambda: "initializer" not in job.kubectl("get", "pvc", "-o", "name"), LIMIT_S)
    assert "checkpoints-single-pvc" in job.kubectl("get", "pvc", "-o", "name")


def test_a_suspended_job_runs_no_pod_until_it_is_resumed_on_the_nodes_of_its_queue(applied: Apply) -> None:
    job = applied("suspend")
    status = job.wait_for(
        "status has the condition", lambda s: s.get("conditions") and condition(s, "Suspended")["status"] == "True"
    )
    assert not job.pods()
    assert replicated(status, "workers")["suspended"] == 1
    node = job.cluster.nodes()[0]
    path = "/spec/replicatedJobs/0/template/spec/template/spec/nodeSelector"
    patch = [
        {"op": "add", "path": path, "value": {"kubernetes.io/hostname": node}},
        {"op": "replace", "path": "/spec/suspend", "value": False},
    ]
    job.kubectl("patch", "tj", "suspend", "--type=json", "-p", json.dumps(patch))
    job.wait_for("it runs", lambda s: replicated(s, "workers")["ready"])
    # and again, in the middle
    job.kubectl("patch", "tj", "suspend", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    job.wait_for("it is suspended again", lambda s: replicated(s, "workers")["suspended"])
    job.kubectl("patch", "tj", "suspend", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    status = job.wait_for_end()
    assert status["terminalState"] == "Completed"
    assert condition(status, "Suspended")["status"] == "False"
    assert {pod["spec"]["nodeName"] for pod in job.pods()} == {node}


def test_each_job_has_a_topology_domain_for_itself(alone: Applied) -> None:
    alone.wait_for("all Jobs are ready", lambda s: replicated(s, "workers")["ready"] == 3)
    nodes: dict[str, set[str]] = {}
    for pod in alone.pods():
        nodes.setdefault(pod["metadata"]["labels"]["job-name"], set()).add(pod["spec"]["nodeName"])
    assert len(nodes) == 3
    assert all(len(of_job) == 1 for of_job in nodes.values()), nodes
    assert len(set.union(*nodes.values())) == 3, nodes


def condition(status: Raw, kind: str) -> Raw:
    return next((x for x in status["conditions"] if x["type"] == kind), {"status": "", "reason": ""})


def replicated(status: Raw, name: str) -> Raw:
    empty: Raw = {"ready": 0, "succeeded": 0, "suspended": 0}
    return next((x for x in status.get("replicatedJobsStatus", ()) if x["name"] == name), empty)


def ready(job: Applied, *names: str, but: str = "") -> dict[str, str]:
    """The uids of these Jobs, once their pods are ready and none of them is the given one."""

    def all_ready(jobs: dict[str, Raw]) -> bool:
        present = [jobs[name] for name in names if name in jobs]
        return len(present) == len(names) and all(
            x["status"].get("ready") and x["metadata"]["uid"] != but and "deletionTimestamp" not in x["metadata"]
            for x in present
        )

    jobs = job.wait_for_jobs(f"{', '.join(names)} are ready", all_ready)
    return {name: jobs[name]["metadata"]["uid"] for name in names}


def attempts(job: Applied) -> set[int]:
    """The number of restarts of the whole job, from the labels of its Jobs: status calls it restarts."""
    present = [made["metadata"] for made in job.jobs().values() if "deletionTimestamp" not in made["metadata"]]
    return {int(metadata["labels"][f"{JOBSET}/restart-attempt"]) for metadata in present}


def running(job: Applied) -> list[str]:
    return [pod["metadata"]["name"] for pod in job.pods() if pod["status"]["phase"] in ("Running", "Pending")]


def at(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()
