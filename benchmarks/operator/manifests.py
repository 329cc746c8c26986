"""The jobs of the benchmark: one replicatedJob with a number of pods, the same for both systems. Pure.

Rules: JobSet's manifest contains the defaults that its webhooks would set, because they are off (two calls fewer for
each of its pods, and one for each job). Without a launcher both systems do the same, and ours gets JobSet's manifest
with two changed header lines.
"""

from __future__ import annotations

from typing import Any

Raw = dict[str, Any]

JOBSET = ("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets")
TRAINING_JOB = ("understudy.dev/v1alpha1", "TrainingJob", "trainingjobs")
JOBSET_COMPATIBLE = "understudy.dev/jobset-compatible"
REPLICATED_JOB = "workers"
TRAINER = "trainer"
IMAGE = "example.com/trainer:1"
MAX_RESTARTS = 1000
NPROC_PER_NODE = 8


def jobset(name: str, pods: int, *, strategy: str = "Recreate") -> Raw:
    return _job(JOBSET, name, _jobset_spec(pods, strategy))


def without_launcher(name: str, pods: int) -> Raw:
    """JobSet's manifest under our header, with the annotation that keeps JobSet's behavior."""
    job = _job(TRAINING_JOB, name, _jobset_spec(pods, "Recreate"))
    job["metadata"]["annotations"] = {JOBSET_COMPATIBLE: "true"}
    return job


def training_job(name: str, pods: int) -> Raw:
    template = {"spec": {"parallelism": pods, "template": {"spec": {"containers": [_container()]}}}}
    spec = {
        "launcher": {"nprocPerNode": NPROC_PER_NODE},
        "failurePolicy": {"maxRestarts": MAX_RESTARTS},
        "replicatedJobs": [{"name": REPLICATED_JOB, "replicas": 1, "template": template}],
    }
    return _job(TRAINING_JOB, name, spec)


def plain_job(name: str, pods: int) -> Raw:
    """A Job of Kubernetes, which neither system manages."""
    return _job(("batch/v1", "Job", "jobs"), name, _job_spec(pods))


def _job(header: tuple[str, str, str], name: str, spec: Raw) -> Raw:
    return {"apiVersion": header[0], "kind": header[1], "metadata": {"name": name}, "spec": spec}


def _job_spec(pods: int) -> Raw:
    return {
        "parallelism": pods,
        "completions": pods,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": {"restartPolicy": "Never", "containers": [_container()]}},
    }


def _jobset_spec(pods: int, strategy: str) -> Raw:
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All"},
        "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
        "failurePolicy": {"maxRestarts": MAX_RESTARTS, "restartStrategy": strategy},
        "replicatedJobs": [
            {"name": REPLICATED_JOB, "groupName": "default", "replicas": 1, "template": {"spec": _job_spec(pods)}},
        ],
    }


def _container() -> Raw:
    return {"name": TRAINER, "image": IMAGE, "command": ["python3", "train.py"]}


def path(header: tuple[str, str, str], namespace: str) -> str:
    return f"/apis/{header[0]}/namespaces/{namespace}/{header[2]}"


def failed_status(now: str) -> Raw:
    """The status of a pod whose trainer container has exited with 1."""
    ended = {"exitCode": 1, "reason": "Error", "startedAt": now, "finishedAt": now}
    container = {
        "name": TRAINER,
        "image": IMAGE,
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": ended},
    }
    not_ready = {"type": "Ready", "status": "False", "reason": "PodFailed", "lastTransitionTime": now}
    return {"status": {"phase": "Failed", "conditions": [not_ready], "containerStatuses": [container]}}


def waiting_pod() -> Raw:
    """A pod that no scheduler handles."""
    spec = {"schedulingGates": [{"name": "example.com/waits"}], "containers": [_container()]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "waits-"}, "spec": spec}


def node(number: int) -> Raw:
    """A node that kwok simulates, with room for more pods than any case needs."""
    room = {"cpu": "1000", "memory": "4Ti", "pods": "1000"}
    name = f"node-{number}"
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
        "status": {"allocatable": room, "capacity": room},
    }
