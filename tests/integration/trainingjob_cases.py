"""TrainingJobs as data: a valid one, each invalid change, and the API server's message about it."""

import copy
import json
from collections.abc import Callable
from typing import Any

import yaml

Manifest = dict[str, Any]
Change = Callable[[Manifest], object]

TRAINING_JOB: Manifest = yaml.safe_load("""
apiVersion: understudy.dev/v1alpha1
kind: TrainingJob
metadata:
  name: llm
spec:
  launcher: {nprocPerNode: 8}
  spares: {replicas: 2}
  replicatedJobs:
  - name: workers
    replicas: 2
    template:
      spec:
        parallelism: 4
        completions: 4
        template:
          spec:
            containers:
            - name: trainer
              image: example.com/trainer:1
              command: [python, train.py]
              ports: [{containerPort: 29500}]
              resources:
                limits: {nvidia.com/gpu: 8, memory: 64Gi, cpu: "1.5"}
            - name: log-shipper
              image: example.com/log-shipper:1
""")

JOB_SET = """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: pytorch
spec:
  replicatedJobs:
  - name: workers
    template:
      spec:
        parallelism: 4
        completions: 4
        template:
          metadata:
            labels: {team: research}
          spec:
            restartPolicy: OnFailure
            containers:
            - name: pytorch
              image: example.com/trainer:1
              ports:
              - containerPort: 3389
              env:
              - name: MASTER_PORT
                value: "3389"
              command: [bash, -xc, torchrun train.py]
              volumeMounts:
              - {name: shm, mountPath: /dev/shm}
            volumes:
            - name: shm
              emptyDir: {medium: Memory, sizeLimit: 1Gi}
"""


def replicated_job(manifest: Manifest) -> Manifest:
    entry: Manifest = manifest["spec"]["replicatedJobs"][0]
    return entry


def job_spec(manifest: Manifest) -> Manifest:
    spec: Manifest = replicated_job(manifest)["template"]["spec"]
    return spec


def pod_template(manifest: Manifest) -> Manifest:
    template: Manifest = job_spec(manifest)["template"]
    return template


def pod_spec(manifest: Manifest) -> Manifest:
    spec: Manifest = pod_template(manifest)["spec"]
    return spec


def trainer(manifest: Manifest) -> Manifest:
    container: Manifest = pod_spec(manifest)["containers"][0]
    return container


def changed(change: Change, **metadata: str) -> str:
    """The TrainingJob above with a change, as JSON."""
    manifest = copy.deepcopy(TRAINING_JOB)
    manifest["metadata"] |= metadata
    change(manifest)
    return json.dumps(manifest)


MAY_SHRINK: Manifest = {"minPods": 6}
CLAIM: Manifest = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}


def claim(name: str) -> Manifest:
    return {"metadata": {"name": name}, "spec": CLAIM}


def another(manifest: Manifest, name: str, **changes: Any) -> Manifest:
    """Another replicatedJob like the first."""
    return copy.deepcopy(replicated_job(manifest)) | {"name": name} | changes


def two(manifest: Manifest, **driver: Any) -> Manifest:
    """Add a driver to the workers, which train."""
    manifest["spec"]["replicatedJobs"].append(another(manifest, "driver", **driver))
    manifest["spec"]["launcher"]["targetReplicatedJobs"] = ["workers"]
    return manifest


def with_rollouts(manifest: Manifest, **changes: Any) -> Manifest:
    """A driver of two replicas whose weights the workers update."""
    two(manifest)["spec"]["failurePolicy"] = {"maxRestarts": 3}
    manifest["spec"]["rollouts"] = {"replicatedJobs": ["driver"], **changes}
    return manifest


def without_launcher(manifest: Manifest) -> Manifest:
    del manifest["spec"]["launcher"]
    manifest["spec"].pop("spares", None)
    return manifest


def long_name_without_indexes(manifest: Manifest, characters: int) -> None:
    """The names of its Jobs have 10 characters more: -workers-1."""
    without_launcher(manifest)
    manifest["metadata"]["name"] = "n" * characters
    del job_spec(manifest)["completions"]
    job_spec(manifest)["completionMode"] = "NonIndexed"


def unchanged(manifest: Manifest) -> None:
    """No change."""


# Each entry is one change to TRAINING_JOB, and the API server's message: the field, then the fix.
REFUSED: dict[str, tuple[Change, str, str]] = {
    "no replicatedJob": (
        lambda job: job["spec"]["replicatedJobs"].clear(),
        "spec.replicatedJobs",
        "replicatedJobs must have at least one entry: add the Jobs that the job consists of",
    ),
    "two replicatedJobs without targetReplicatedJobs": (
        lambda job: job["spec"]["replicatedJobs"].append(another(job, "driver")),
        "spec.launcher.targetReplicatedJobs",
        "launcher.targetReplicatedJobs must be set if there are several replicatedJobs",
    ),
    "pods that train of a replicatedJob that is not there": (
        lambda job: job["spec"]["launcher"].update(targetReplicatedJobs=["worker"]),
        "spec.launcher.targetReplicatedJobs",
        "launcher.targetReplicatedJobs must name entries of replicatedJobs: correct the name, or add the entry",
    ),
    "spares of a replicatedJob that does not train": (
        lambda job: (two(job), job["spec"]["spares"].update(replicatedJob="driver")),
        "spec.spares.replicatedJob",
        "spares.replicatedJob must be one whose pods train: set it to a name of launcher.targetReplicatedJobs",
    ),
    "replicatedJobs left out": (
        lambda job: job["spec"].pop("replicatedJobs"),
        "spec.replicatedJobs",
        "Required value",
    ),
    "a replicatedJob's name with a dot": (
        lambda job: replicated_job(job).update(name="my.workers"),
        "spec.replicatedJobs[0].name",
        "replicatedJobs[].name must be a DNS label",
    ),
    "0 replicas": (
        lambda job: replicated_job(job).update(replicas=0),
        "spec.replicatedJobs",
        "replicas must be at least 1 in a replicatedJob with a launcher: set it to the number of Jobs whose pods train",
    ),
    "replicas that no pod name has room for": (
        lambda job: (replicated_job(job).update(replicas=99_999), job["metadata"].update(name="n" * 43)),
        "metadata.name",
        "metadata.name is too long",
    ),
    "0 pods a Job": (
        lambda job: job_spec(job).update(parallelism=0, completions=0),
        "spec.replicatedJobs",
        "parallelism must be 1 to 100000 in a replicatedJob with a launcher, and replicas at most 100000",
    ),
    "pods that no pod name has room for": (
        lambda job: job_spec(job).update(parallelism=100_001, completions=100_001),
        "spec.replicatedJobs",
        "parallelism must be 1 to 100000 in a replicatedJob with a launcher, and replicas at most 100000",
    ),
    "completions other than parallelism": (
        lambda job: job_spec(job).update(completions=5),
        "spec.replicatedJobs",
        "completions must equal parallelism in a replicatedJob with a launcher, because all pods of a training "
        "run at the same time: set both to the same number, or leave completions out",
    ),
    "pods without an index": (
        lambda job: job_spec(job).update(completionMode="NonIndexed"),
        "spec.replicatedJobs",
        "completionMode must be Indexed in a replicatedJob with a launcher, because each pod of a training has its own",
    ),
    "pods that always restart": (
        lambda job: pod_spec(job).update(restartPolicy="Always"),
        "spec.replicatedJobs[0].template.spec.template.spec.restartPolicy",
        "restartPolicy must be Never, OnFailure or unset, as in every Job; "
        "pods with a launcher always run with Never, and the launcher restarts their workers",
    ),
    "no container": (
        lambda job: pod_spec(job)["containers"].clear(),
        "spec.replicatedJobs",
        "the trainer container needs a command",
    ),
    "an unknown policy for SIGTERM": (
        lambda job: job["spec"].update(termination={"onSigterm": "Sometimes"}),
        "spec.termination.onSigterm",
        "termination.onSigterm must be Auto, Always or Never",
    ),
    "a warm-up that torchrun would not run": (
        lambda job: (
            job["spec"]["launcher"].update(mode="Torchrun"),
            job["spec"]["spares"].update(warmup={"command": ["python3", "warmup.py"]}),
        ),
        "spec.spares.warmup",
        "spares.warmup has no effect with launcher.mode Torchrun",
    ),
    "a warm-up of nothing": (
        lambda job: job["spec"]["spares"].update(warmup={"command": []}),
        "spec.spares.warmup.command",
        "spares.warmup.command must be the words of a command, such as [python3, warmup.py]",
    ),
    "a nodeFile that is relative": (
        lambda job: job["spec"].update(faults={"nodeFile": "run/nologin"}),
        "spec.faults.nodeFile",
        "faults.nodeFile must be an absolute path of a file in a folder, such as /run/nologin",
    ),
    "a nodeFile in the root": (
        lambda job: job["spec"].update(faults={"nodeFile": "/nologin"}),
        "spec.faults.nodeFile",
        "may not be the root of the node",
    ),
    "a nodeFile that leads back": (
        lambda job: job["spec"].update(faults={"nodeFile": "/run/../nologin"}),
        "spec.faults.nodeFile",
        "without . and ..",
    ),
    "shards of a pod that is not there": (
        lambda job: job["spec"].update(termination={"replicaGroups": [[0, 7], [1, 8]]}),
        "spec.termination.replicaGroups",
        "termination.replicaGroups must name pods by their group rank: each is 0 or more, and below the pods of",
    ),
    "shards of a pod below 0": (
        lambda job: job["spec"].update(termination={"replicaGroups": [[-1, 7]]}),
        "spec.termination.replicaGroups",
        "termination.replicaGroups must name pods by their group rank",
    ),
    "a pod twice in a group": (
        lambda job: job["spec"].update(termination={"replicaGroups": [[0, 1], [2, 3, 2]]}),
        "spec.termination.replicaGroups[1][2]",
        "Duplicate value: 2",
    ),
    "drills that are neither allowed nor forbidden": (
        lambda job: job["spec"].update(drills="Weekly"),
        "spec.drills",
        "drills must be Allowed or Forbidden",
    ),
    "a stepTimeout of nothing": (
        lambda job: job["spec"].update(faults={"hang": {"stepTimeout": "0s"}}),
        "spec.faults.hang.stepTimeout",
        "faults.hang.stepTimeout must be a duration above zero in whole hours, minutes and seconds, such as 90s, 10m",
    ),
    "a stepTimeout in days": (
        lambda job: job["spec"].update(faults={"hang": {"stepTimeout": "1d"}}),
        "spec.faults.hang.stepTimeout",
        "faults.hang.stepTimeout must be a duration above zero",
    ),
    "snapshots without a size": (
        lambda job: job["spec"].update(snapshots={"every": 2}),
        "spec.snapshots.size",
        "snapshots.size must be set to the largest state of one worker",
    ),
    "snapshots of nothing": (
        lambda job: job["spec"].update(snapshots={"size": "0Gi"}),
        "spec.snapshots.size",
        "snapshots.size must be a whole number with Mi, Gi or Ti, such as 512Mi or 20Gi",
    ),
    "snapshots in bytes": (
        lambda job: job["spec"].update(snapshots={"size": "1000000000"}),
        "spec.snapshots.size",
        "snapshots.size must be a whole number with Mi, Gi or Ti",
    ),
    "shared memory without a size": (
        lambda job: job["spec"]["launcher"].update(sharedMemory={"medium": "Memory"}),
        "spec.launcher.sharedMemory.size",
        "launcher.sharedMemory.size must be set to the most that the trainer container may store in /dev/shm",
    ),
    "shared memory in bytes": (
        lambda job: job["spec"]["launcher"].update(sharedMemory={"size": "1000000000"}),
        "spec.launcher.sharedMemory.size",
        "launcher.sharedMemory.size must be a whole number with Mi, Gi or Ti",
    ),
    "an unknown medium of shared memory": (
        lambda job: job["spec"]["launcher"].update(sharedMemory={"size": "1Gi", "medium": "Tape"}),
        "spec.launcher.sharedMemory.medium",
        "launcher.sharedMemory.medium must be Memory or Disk",
    ),
    "no call of save that is stored": (
        lambda job: job["spec"].update(snapshots={"size": "1Gi", "every": 0}),
        "spec.snapshots.every",
        "snapshots.every must be 1 to 100000",
    ),
    "more copies of snapshots than two": (
        lambda job: job["spec"].update(snapshots={"size": "1Gi", "copies": 3}),
        "spec.snapshots.copies",
        "snapshots.copies must be 0 to 2",
    ),
    "snapshots on storage without a path": (
        lambda job: job["spec"].update(snapshots={"size": "1Gi", "storage": {"keep": 3}}),
        "spec.snapshots.storage.path",
        "snapshots.storage.path must be set to a folder on a volume that the trainer containers of all pods mount",
    ),
    "snapshots at a URL": (
        lambda job: job["spec"].update(snapshots={"size": "1Gi", "storage": {"path": "s3://bucket/snapshots"}}),
        "spec.snapshots.storage.path",
        "snapshots.storage.path must be an absolute path of a folder",
    ),
    "snapshots in the folder above": (
        lambda job: job["spec"].update(snapshots={"size": "1Gi", "storage": {"path": "/checkpoints/../other"}}),
        "spec.snapshots.storage.path",
        "without . and ..: URLs are not supported, so mount the storage as a volume",
    ),
    "no step of which a snapshot goes to storage": (
        lambda job: job["spec"].update(snapshots={"size": "1Gi", "storage": {"path": "/checkpoints", "every": 0}}),
        "spec.snapshots.storage.every",
        "snapshots.storage.every must be 1 to 100000000",
    ),
    "no snapshot that is kept on storage": (
        lambda job: job["spec"].update(snapshots={"size": "1Gi", "storage": {"path": "/checkpoints", "keep": 0}}),
        "spec.snapshots.storage.keep",
        "snapshots.storage.keep must be 1 to 1000",
    ),
    "snapshots under torchrun": (
        lambda job: job["spec"].update(
            snapshots={"size": "1Gi"}, launcher={**job["spec"]["launcher"], "mode": "Torchrun"}
        ),
        "spec.snapshots",
        "snapshots need a launcher of mode Auto or Wrap",
    ),
    "a launcherTimeout that a busy launcher would exceed": (
        lambda job: job["spec"].update(recovery={"launcherTimeout": "4s"}),
        "spec.recovery.launcherTimeout",
        "recovery.launcherTimeout must be a duration of at least 5s",
    ),
    "a startTimeout in days": (
        lambda job: job["spec"].update(faults={"hang": {"startTimeout": "1d"}}),
        "spec.faults.hang.startTimeout",
        "faults.hang.startTimeout must be a duration in whole hours, minutes and seconds, such as 0s, 10m or 1h",
    ),
    "an unknown mode": (
        lambda job: job["spec"]["launcher"].update(mode="torchrun"),
        "spec.launcher.mode",
        "launcher.mode must be Auto, Wrap, Torchrun or Off",
    ),
    "a Python that is no path": (
        lambda job: job["spec"]["launcher"].update(python="python3"),
        "spec.launcher.python",
        "launcher.python must be the path of a Python in the image",
    ),
    "a Python that torchrun would not use": (
        lambda job: job["spec"]["launcher"].update(mode="Torchrun", python="/usr/bin/python3"),
        "spec.launcher.python",
        "launcher.python has no effect with mode Torchrun",
    ),
    "modules that torchrun would not preload": (
        lambda job: job["spec"]["launcher"].update(mode="Torchrun", preload=["torch"]),
        "spec.launcher.preload",
        "launcher.preload has no effect with mode Torchrun",
    ),
    "a module that is none": (
        lambda job: job["spec"]["launcher"].update(preload=["torch", "my-model"]),
        "spec.launcher.preload",
        "launcher.preload must be names of Python modules",
    ),
    "spares without a launcher": (
        lambda job: job["spec"].update(launcher={"mode": "Off"}),
        "spec.spares",
        "spares need a launcher, which keeps them warm: set launcher.targetReplicatedJobs to the replicatedJobs that "
        "train, and mode to Auto",
    ),
    "spares of two replicatedJobs without targetReplicatedJobs": (
        lambda job: (two(job), job["spec"].pop("launcher")),
        "spec.spares",
        "spares need a launcher, which keeps them warm: set launcher.targetReplicatedJobs to the replicatedJobs that "
        "train, and mode to Auto",
    ),
    "an elastic job without a launcher": (
        lambda job: (
            job["spec"].pop("spares"),
            job["spec"].update(launcher={"mode": "Off"}, elastic=MAY_SHRINK),
        ),
        "spec.launcher",
        "elastic and faults need a launcher, which watches the workers",
    ),
    "0 workers a pod": (
        lambda job: job["spec"]["launcher"].update(nprocPerNode=0),
        "spec.launcher.nprocPerNode",
        "launcher.nprocPerNode must be 1 to 128",
    ),
    "129 workers a pod": (
        lambda job: job["spec"]["launcher"].update(nprocPerNode=129),
        "spec.launcher.nprocPerNode",
        "launcher.nprocPerNode must be 1 to 128",
    ),
    "a rank that is slow by little": (
        lambda job: job["spec"]["launcher"].update(slowRankPercent=109),
        "spec.launcher.slowRankPercent",
        "launcher.slowRankPercent must be between 110 and 1000, or 0 to look for no slow rank",
    ),
    "a rank that is never slow": (
        lambda job: job["spec"]["launcher"].update(slowRankPercent=1001),
        "spec.launcher.slowRankPercent",
        "launcher.slowRankPercent must be between 110 and 1000, or 0 to look for no slow rank",
    ),
    "a trainer container that is not there": (
        lambda job: job["spec"]["launcher"].update(container="trainee"),
        "spec.launcher.container",
        "launcher.container must name a container of "
        "replicatedJobs[].template.spec.template.spec.containers; leave it out to use the first",
    ),
    "a trainer container without a command": (
        lambda job: trainer(job).pop("command"),
        "spec.replicatedJobs",
        "the trainer container needs a command, because the launcher cannot start an image's ENTRYPOINT: set command",
    ),
    "a trainer container with an empty command": (
        lambda job: trainer(job).update(command=[]),
        "spec.replicatedJobs",
        "the trainer container needs a command",
    ),
    "a named trainer container without a command": (
        lambda job: job["spec"]["launcher"].update(container="log-shipper"),
        "spec.replicatedJobs",
        "the trainer container needs a command",
    ),
    "a launcher that the kubelet restarts by a rule": (
        lambda job: trainer(job).update(
            restartPolicyRules=[{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]
        ),
        "spec.replicatedJobs",
        "restartPolicy and restartPolicyRules cannot be set on the container of the launcher",
    ),
    "a named launcher that the kubelet restarts": (
        lambda job: (
            job["spec"]["launcher"].update(container="log-shipper"),
            pod_spec(job)["containers"][1].update(command=["x"], restartPolicy="Always"),
        ),
        "spec.replicatedJobs",
        "restartPolicy and restartPolicyRules cannot be set on the container of the launcher",
    ),
    "spares of a priority class that no object can be named by": (
        lambda job: job["spec"]["spares"].update(priorityClassName="Low Priority"),
        "spec.spares.priorityClassName",
        "spares.priorityClassName must be the name of a PriorityClass: use lower-case letters",
    ),
    "-1 spares": (
        lambda job: job["spec"]["spares"].update(replicas=-1),
        "spec.spares.replicas",
        "spares.replicas must be 0 or more, and at most 1000: the number of warm "
        "pods that wait to take a lost pod's ranks",
    ),
    "1001 spares": (
        lambda job: job["spec"]["spares"].update(replicas=1001),
        "spec.spares.replicas",
        "spares.replicas must be 0 or more, and at most 1000",
    ),
    "a negative number of kept recoveries": (
        lambda job: job["spec"].update(recovery={"historyLimit": -1}),
        "spec.recovery.historyLimit",
        "recovery.historyLimit must be 0 to 1000",
    ),
    "more than 1000 kept recoveries": (
        lambda job: job["spec"].update(recovery={"historyLimit": 1001}),
        "spec.recovery.historyLimit",
        "recovery.historyLimit must be 0 to 1000",
    ),
    "-1 restarts in place": (
        lambda job: job["spec"].update(recovery={"inPlace": {"maxRestarts": -1}}),
        "spec.recovery.inPlace.maxRestarts",
        "recovery.inPlace.maxRestarts must be 0 or more",
    ),
    "-1 restarts for a pod": (
        lambda job: job["spec"].update(recovery={"inPlace": {"maxRestartsPerPod": -1}}),
        "spec.recovery.inPlace.maxRestartsPerPod",
        "recovery.inPlace.maxRestartsPerPod must be 0 or more",
    ),
    "a window in days": (
        lambda job: job["spec"].update(recovery={"inPlace": {"window": "1d"}}),
        "spec.recovery.inPlace.window",
        "recovery.inPlace.window must be a duration above zero",
    ),
    "a window of nothing": (
        lambda job: job["spec"].update(recovery={"inPlace": {"window": "0s"}}),
        "spec.recovery.inPlace.window",
        "recovery.inPlace.window must be a duration above zero",
    ),
    "a backoff in days": (
        lambda job: job["spec"].update(recovery={"backoff": {"maxDelay": "1d"}}),
        "spec.recovery.backoff.maxDelay",
        "recovery.backoff.maxDelay must be a duration in whole hours, minutes and seconds, such as 0s, 30s or 5m",
    ),
    "a workerGracePeriod in milliseconds": (
        lambda job: job["spec"].update(recovery={"workerGracePeriod": "500ms"}),
        "spec.recovery.workerGracePeriod",
        "recovery.workerGracePeriod must be a duration of at most 1h in whole hours, minutes and seconds",
    ),
    "a workerGracePeriod of hours": (
        lambda job: job["spec"].update(recovery={"workerGracePeriod": "1h1s"}),
        "spec.recovery.workerGracePeriod",
        "recovery.workerGracePeriod must be a duration of at most 1h",
    ),
    "a spareTimeout in days": (
        lambda job: job["spec"].update(recovery={"spareTimeout": "1d"}),
        "spec.recovery.spareTimeout",
        "recovery.spareTimeout must be a duration in whole hours, minutes and seconds, such as 0s, 30s or 1h30m",
    ),
    "a spareTimeout of nothing": (
        lambda job: job["spec"].update(recovery={"spareTimeout": ""}),
        "spec.recovery.spareTimeout",
        "recovery.spareTimeout must be a duration",
    ),
    "a spareTimeout that is off": (
        lambda job: job["spec"].update(recovery={"spareTimeout": "Off"}),
        "spec.recovery.spareTimeout",
        "recovery.spareTimeout must be a duration",
    ),
    "the previous name of onSigterm": (
        lambda job: job["spec"].update(checkpoint={"onSigterm": "Never"}),
        "spec.checkpoint.onSigterm",
        "checkpoint.onSigterm is now named termination.onSigterm",
    ),
    "the previous name of replicaGroups": (
        lambda job: job["spec"].update(checkpoint={"replicaGroups": [[0, 1]]}),
        "spec.checkpoint.replicaGroups",
        "checkpoint.replicaGroups is now named termination.replicaGroups",
    ),
    "the previous name of nodeFile": (
        lambda job: job["spec"].update(checkpoint={"nologinPath": "/run/nologin"}),
        "spec.checkpoint.nologinPath",
        "checkpoint.nologinPath is now named faults.nodeFile",
    ),
    "the previous name of minPods": (
        lambda job: job["spec"].update(elastic={"minReplicas": 6}),
        "spec.elastic.minReplicas",
        "elastic.minReplicas is now named elastic.minPods",
    ),
    "the previous name of forkServer": (
        lambda job: job["spec"]["launcher"].update(zygote=False),
        "spec.launcher.zygote",
        "launcher.zygote is now named launcher.forkServer",
    ),
    "the previous name of proactiveReplacement": (
        lambda job: job["spec"].update(faults={"proactive": "Now"}),
        "spec.faults.proactive",
        "faults.proactive is now named faults.proactiveReplacement",
    ),
    "the previous name of maxDelay": (
        lambda job: job["spec"].update(recovery={"backoff": {"max": "30s"}}),
        "spec.recovery.backoff.max",
        "recovery.backoff.max is now named recovery.backoff.maxDelay",
    ),
    "the previous name of workerGracePeriod": (
        lambda job: job["spec"].update(recovery={"workerGrace": "5s"}),
        "spec.recovery.workerGrace",
        "recovery.workerGrace is now named recovery.workerGracePeriod",
    ),
    "the previous name of inFlightRequests": (
        lambda job: with_rollouts(job, gateway={"enginePort": 30000, "inFlight": "Await"}),
        "spec.rollouts.gateway.inFlight",
        "rollouts.gateway.inFlight is now named rollouts.gateway.inFlightRequests",
    ),
    "the previous name of coordinatorLossTimeout": (
        lambda job: job["spec"].update(recovery={"fenceTimeout": "30s"}),
        "spec.recovery.fenceTimeout",
        "recovery.fenceTimeout is now named recovery.coordinatorLossTimeout",
    ),
    "a coordinatorLossTimeout below 10 s": (
        lambda job: job["spec"].update(recovery={"coordinatorLossTimeout": "9s"}),
        "spec.recovery.coordinatorLossTimeout",
        "recovery.coordinatorLossTimeout must be Off, or a duration of at least 10s in whole hours, minutes",
    ),
    "a coordinatorLossTimeout of nothing": (
        lambda job: job["spec"].update(recovery={"coordinatorLossTimeout": ""}),
        "spec.recovery.coordinatorLossTimeout",
        "recovery.coordinatorLossTimeout must be Off, or a duration of at least 10s",
    ),
    "a coordinatorLossTimeout of a unit alone": (
        lambda job: job["spec"].update(recovery={"coordinatorLossTimeout": "s"}),
        "spec.recovery.coordinatorLossTimeout",
        "recovery.coordinatorLossTimeout must be Off, or a duration of at least 10s",
    ),
    "a coordinatorLossTimeout in milliseconds": (
        lambda job: job["spec"].update(recovery={"coordinatorLossTimeout": "15000ms"}),
        "spec.recovery.coordinatorLossTimeout",
        "recovery.coordinatorLossTimeout must be Off, or a duration of at least 10s",
    ),
    "a coordinatorLossTimeout that is off in another spelling": (
        lambda job: job["spec"].update(recovery={"coordinatorLossTimeout": "off"}),
        "spec.recovery.coordinatorLossTimeout",
        "recovery.coordinatorLossTimeout must be Off, or a duration of at least 10s",
    ),
    "an elastic job that may vanish": (
        lambda job: job["spec"].update(elastic={"minPods": 0}),
        "spec.elastic.minPods",
        "elastic.minPods must be at least 1: set it to the smallest number of pods",
    ),
    "an elastic job that needs more pods than it has": (
        lambda job: job["spec"].update(elastic={"minPods": 9}),
        "spec.elastic.minPods",
        "elastic.minPods must be at most the pods of the job, replicas times parallelism of replicatedJobs: "
        "lower it, or leave out elastic",
    ),
    "an elastic job without minPods": (
        lambda job: job["spec"].update(elastic={}),
        "spec.elastic.minPods",
        "elastic.minPods must be set to the smallest number of pods that the training can continue with",
    ),
    "rollouts without a launcher": (
        lambda job: without_launcher(with_rollouts(job)),
        "spec.rollouts",
        "rollouts need a launcher, whose workers report their weight updates: add launcher: {targetReplicatedJobs:",
    ),
    "rollouts without a failurePolicy": (
        lambda job: with_rollouts(job)["spec"].pop("failurePolicy"),
        "spec.rollouts",
        "rollouts need a failurePolicy, which limits how often the job may restart for a failed update: add failure",
    ),
    "rollouts that are no replicatedJob": (
        lambda job: with_rollouts(job, replicatedJobs=["servers"]),
        "spec.rollouts.replicatedJobs",
        "rollouts.replicatedJobs must name entries of replicatedJobs that launcher.targetReplicatedJobs does not name",
    ),
    "rollouts that train": (
        lambda job: with_rollouts(job, replicatedJobs=["driver", "workers"]),
        "spec.rollouts.replicatedJobs",
        "rollouts.replicatedJobs must name entries of replicatedJobs that launcher.targetReplicatedJobs does not name",
    ),
    "no rollouts at all": (
        lambda job: with_rollouts(job, replicatedJobs=[]),
        "spec.rollouts.replicatedJobs",
        "should have at least 1 items",
    ),
    "more rollouts than status counts": (
        lambda job: with_rollouts(job)["spec"]["replicatedJobs"][1].update(replicas=1025),
        "spec.rollouts.replicatedJobs",
        "rollouts.replicatedJobs must have at most 1024 replicas each",
    ),
    "rollouts that restart something else": (
        lambda job: with_rollouts(job, onFailedUpdate="RestartPods"),
        "spec.rollouts.onFailedUpdate",
        "rollouts.onFailedUpdate must be RestartJob or RestartRollouts",
    ),
    "retries for ever": (
        lambda job: with_rollouts(job, maxRetries=-1),
        "spec.rollouts.maxRetries",
        "rollouts.maxRetries must be 0 to 1000",
    ),
    "a gateway without a server": (
        lambda job: with_rollouts(job, gateway={}),
        "spec.rollouts.gateway.enginePort",
        "Required value",
    ),
    "a gateway on its server's port": (
        lambda job: with_rollouts(job, gateway={"enginePort": 8080}),
        "spec.rollouts.gateway.port",
        "rollouts.gateway.port must be another port than enginePort",
    ),
    "a gateway without hostnames": (
        lambda job: with_rollouts(job, gateway={"enginePort": 30000})["spec"].update(
            network={"enableDNSHostnames": False}
        ),
        "spec.rollouts.gateway",
        "rollouts.gateway needs hostnames, by which workers find the servers",
    ),
    "a gateway that drops requests": (
        lambda job: with_rollouts(job, gateway={"enginePort": 30000, "inFlightRequests": "Drop"}),
        "spec.rollouts.gateway.inFlightRequests",
        "rollouts.gateway.inFlightRequests must be Abort or Wait",
    ),
    "a topology key that is no label's name": (
        lambda job: job["spec"]["spares"].update(topologyKey="the rack"),
        "spec.spares.topologyKey",
        "spares.topologyKey must be the name of a node label, such as topology.kubernetes.io/zone",
    ),
    "a topology key with a value": (
        lambda job: job["spec"]["spares"].update(topologyKey="rack=r1"),
        "spec.spares.topologyKey",
        "spares.topologyKey must be the name of a node label",
    ),
    "a topology key that is too long": (
        lambda job: job["spec"]["spares"].update(topologyKey=f"example.com/{'k' * 64}"),
        "spec.spares.topologyKey",
        "spares.topologyKey must be the name of a node label",
    ),
    "a name of 44 characters with a replicatedJob's name of 7": (
        lambda job: job["metadata"].update(name="n" * 44),
        "metadata.name",
        "metadata.name is too long: spares are named <job>-<replicatedJob>-spare-<5 characters>-<5 characters>, in at",
    ),
    "a name that is too long with its indexes": (
        lambda job: (without_launcher(job), job["metadata"].update(name="n" * 46)),
        "metadata.name",
        "metadata.name is too long: pods are named "
        "<job>-<replicatedJob>-<jobIndex>-<podIndex>-<5 characters>, in at most 63",
    ),
    "a name that is too long with the index of a Job": (
        lambda job: long_name_without_indexes(job, 54),
        "metadata.name",
        "metadata.name is too long: pods are named ",
    ),
    "a name with a dot": (
        lambda job: job["metadata"].update(name="llm.v2"),
        "metadata.name",
        "metadata.name must be a DNS label",
    ),
    "a name that starts with a digit": (
        lambda job: job["metadata"].update(name="7b"),
        "metadata.name",
        "metadata.name must be a DNS label",
    ),
}

# The fields of a JobSet.
REFUSED |= {
    "a group with a dot": (
        lambda job: replicated_job(job).update(groupName="a.b"),
        "spec.replicatedJobs[0].groupName",
        "replicatedJobs[].groupName must be a DNS label",
    ),
    "a replicatedJob that depends on itself": (
        lambda job: two(job, dependsOn=[{"name": "driver", "status": "Ready"}]),
        "spec.replicatedJobs",
        "dependsOn must name another entry of replicatedJobs: correct the name, or add the entry",
    ),
    "a replicatedJob that depends on an unknown one": (
        lambda job: two(job, dependsOn=[{"name": "data", "status": "Ready"}]),
        "spec.replicatedJobs",
        "dependsOn must name another entry of replicatedJobs",
    ),
    "a dependency on what no replicatedJob can be": (
        lambda job: two(job, dependsOn=[{"name": "workers", "status": "Started"}]),
        "spec.replicatedJobs[1].dependsOn[0].status",
        "dependsOn[].status must be Ready or Complete",
    ),
    "pods that train, and wait for others that train with them": (
        lambda job: (
            two(job, dependsOn=[{"name": "workers", "status": "Ready"}]),
            job["spec"]["launcher"].update(targetReplicatedJobs=["workers", "driver"]),
        ),
        "spec.replicatedJobs",
        "dependsOn cannot name another replicatedJob of launcher.targetReplicatedJobs, because their pods start as one",
    ),
    "two orders": (
        lambda job: (
            two(job, dependsOn=[{"name": "workers", "status": "Ready"}]),
            job["spec"].update(startupPolicy={"startupPolicyOrder": "InOrder"}),
        ),
        "spec.startupPolicy",
        "startupPolicy InOrder and dependsOn exclude each other: define the whole order in dependsOn",
    ),
    "an unknown order": (
        lambda job: job["spec"].update(startupPolicy={"startupPolicyOrder": "Sorted"}),
        "spec.startupPolicy.startupPolicyOrder",
        "startupPolicy.startupPolicyOrder must be AnyOrder or InOrder",
    ),
    "a success of most": (
        lambda job: job["spec"].update(successPolicy={"operator": "Most"}),
        "spec.successPolicy.operator",
        "successPolicy.operator must be All or Any",
    ),
    "a success of a replicatedJob that is not there": (
        lambda job: job["spec"].update(successPolicy={"operator": "All", "targetReplicatedJobs": ["driver"]}),
        "spec.successPolicy.targetReplicatedJobs",
        "successPolicy.targetReplicatedJobs must name entries of replicatedJobs",
    ),
    "-1 restarts": (
        lambda job: job["spec"].update(failurePolicy={"maxRestarts": -1}),
        "spec.failurePolicy.maxRestarts",
        "failurePolicy.maxRestarts must be 0 or more",
    ),
    "an unknown way to restart": (
        lambda job: job["spec"].update(failurePolicy={"restartStrategy": "Quick"}),
        "spec.failurePolicy.restartStrategy",
        "failurePolicy.restartStrategy must be Recreate, BlockingRecreate or InPlaceRestart",
    ),
    "a restart in place without a launcher": (
        lambda job: without_launcher(job)["spec"].update(
            launcher={"mode": "Off"}, failurePolicy={"restartStrategy": "InPlaceRestart"}
        ),
        "spec.failurePolicy.restartStrategy",
        "failurePolicy.restartStrategy InPlaceRestart needs a launcher, which restarts the workers in place",
    ),
    "an unknown action": (
        lambda job: job["spec"].update(failurePolicy={"rules": [{"action": "RestartPod"}]}),
        "spec.failurePolicy.rules[0].action",
        "failurePolicy.rules[].action must be FailJobSet, RestartJobSet, RestartJobSetAndIgnoreMaxRestarts, RestartJob",
    ),
    "a reason that no Job fails for": (
        lambda job: job["spec"].update(
            failurePolicy={"rules": [{"action": "FailJobSet", "onJobFailureReasons": ["Bored"]}]}
        ),
        "spec.failurePolicy.rules[0].onJobFailureReasons",
        "failurePolicy.rules[].onJobFailureReasons must be BackoffLimitExceeded, DeadlineExceeded, FailedIndexes",
    ),
    "a rule's name that is none": (
        lambda job: job["spec"].update(failurePolicy={"rules": [{"name": "1st", "action": "FailJobSet"}]}),
        "spec.failurePolicy.rules[0].name",
        "failurePolicy.rules[].name must start with a letter",
    ),
    "two rules of a name": (
        lambda job: job["spec"].update(failurePolicy={"rules": [{"name": "a", "action": "FailJobSet"}] * 2}),
        "spec.failurePolicy.rules",
        "failurePolicy.rules[].name must be unique: rename one of the rules, or leave out the name",
    ),
    "a rule called as one with an empty name is by default": (
        lambda job: job["spec"].update(
            failurePolicy={
                "rules": [{"name": "failurePolicyRule1", "action": "FailJobSet"}, {"name": "", "action": "FailJobSet"}]
            }
        ),
        "spec.failurePolicy.rules",
        "failurePolicy.rules[].name cannot be the name that another rule has by default",
    ),
    "a rule called as another one is by default": (
        lambda job: job["spec"].update(
            failurePolicy={"rules": [{"name": "failurePolicyRule1", "action": "FailJobSet"}, {"action": "FailJobSet"}]}
        ),
        "spec.failurePolicy.rules",
        "failurePolicy.rules[].name cannot be the name that another rule has by default",
    ),
    "a rule about a replicatedJob that is not there": (
        lambda job: job["spec"].update(
            failurePolicy={"rules": [{"action": "FailJobSet", "targetReplicatedJobs": ["driver"]}]}
        ),
        "spec.failurePolicy.rules",
        "failurePolicy.rules[].targetReplicatedJobs must name entries of replicatedJobs",
    ),
    "more Jobs than can restart alone": (
        lambda job: (
            replicated_job(job).update(replicas=1025),
            job["spec"].update(failurePolicy={"rules": [{"action": "RestartJob"}]}),
        ),
        "spec.failurePolicy.rules",
        "failurePolicy.rules[].action RestartJob needs replicatedJobs of at most 1024 replicas",
    ),
    "a subdomain with a dot": (
        lambda job: job["spec"].update(network={"subdomain": "a.b"}),
        "spec.network.subdomain",
        "network.subdomain must be a DNS label",
    ),
    "a coordinator that is not there": (
        lambda job: job["spec"].update(coordinator={"replicatedJob": "workers", "jobIndex": 2}),
        "spec.coordinator",
        "coordinator must name a pod: replicatedJob an entry of replicatedJobs with completionMode Indexed, jobIndex",
    ),
    "a coordinator whose label is too long": (
        lambda job: (
            job["metadata"].update(name="l" * 25),
            job["spec"].update(coordinator={"replicatedJob": "workers", "jobIndex": 1, "podIndex": 3}),
            job["spec"].update(network={"subdomain": "s" * 26}),
        ),
        "spec.coordinator",
        "coordinator: the label jobset.sigs.k8s.io/coordinator, <job>-<replicatedJob>-<jobIndex>",
    ),
    "more pods than can be counted": (
        lambda job: (without_launcher(job), replicated_job(job).update(replicas=536870912)),
        "spec.replicatedJobs",
        "replicas times parallelism must be at most 2147483647",
    ),
    "a manager without a domain": (
        lambda job: job["spec"].update(managedBy="kueue"),
        "spec.managedBy",
        "managedBy must be a domain and a path, such as kueue.x-k8s.io/multikueue",
    ),
    "a life of -1 s after the end": (
        lambda job: job["spec"].update(ttlSecondsAfterFinished=-1),
        "spec.ttlSecondsAfterFinished",
        "ttlSecondsAfterFinished must be 0 or more",
    ),
    "a volume claim without a name": (
        lambda job: job["spec"].update(volumeClaimPolicies=[{"templates": [{"spec": CLAIM}]}]),
        "spec.volumeClaimPolicies[0].templates",
        "volumeClaimPolicies[].templates[].metadata.name must be set",
    ),
    "a volume claim of another namespace": (
        lambda job: job["spec"].update(
            volumeClaimPolicies=[{"templates": [{"metadata": {"name": "data", "namespace": "else"}, "spec": CLAIM}]}]
        ),
        "spec.volumeClaimPolicies[0].templates",
        "volumeClaimPolicies[].templates[].metadata.namespace cannot be set",
    ),
    "two volume claims of a name": (
        lambda job: job["spec"].update(volumeClaimPolicies=[{"templates": [claim("data"), claim("data")]}]),
        "spec.volumeClaimPolicies[0].templates",
        "volumeClaimPolicies[].templates[].metadata.name must be unique: rename one of the templates",
    ),
    "two volume claims of a name, of which one is kept": (
        lambda job: job["spec"].update(
            volumeClaimPolicies=[
                {"templates": [claim("data")]},
                {"templates": [claim("logs"), claim("data")], "retentionPolicy": {"whenDeleted": "Retain"}},
            ]
        ),
        "spec.volumeClaimPolicies",
        "volumeClaimPolicies[].templates[].metadata.name must be unique, because it names the claim",
    ),
    "volume claims that go some day": (
        lambda job: job["spec"].update(volumeClaimPolicies=[{"retentionPolicy": {"whenDeleted": "Later"}}]),
        "spec.volumeClaimPolicies[0].retentionPolicy.whenDeleted",
        "volumeClaimPolicies[].retentionPolicy.whenDeleted must be Delete or Retain",
    ),
}

# Each entry is one field that the CRD does not know, at a level of our own fields, with its path.
UNKNOWN_FIELDS: dict[str, Change] = {
    "spec.elastic.maxReplicas": lambda job: job["spec"].update(elastic={"minPods": 6, "maxReplicas": 9}),
    "spec.rollouts.gateway.token": lambda job: with_rollouts(job, gateway={"enginePort": 30000, "token": "x"}),
    "spec.faults.hang.timeout": lambda job: job["spec"].update(faults={"hang": {"stepTimeout": "9m", "timeout": "9m"}}),
    "spec.recovery.workergrace": lambda job: job["spec"].update(recovery={"workergrace": "30s"}),
    "spec.spares.hotSparePool": lambda job: job["spec"]["spares"].update(hotSparePool="shared"),
    "spec.recovery.inPlace.maxRestart": lambda job: job["spec"].update(recovery={"inPlace": {"maxRestart": 3}}),
    "spec.launcher.nproc_per_node": lambda job: job["spec"]["launcher"].update(nproc_per_node=8),
    "spec.replicatedJobs[0].replica": lambda job: replicated_job(job).update(replica=3),
    "spec.replicatedJobs[0].template.parallelism": lambda job: replicated_job(job)["template"].update(parallelism=3),
    "spec.replicatedJobs[0].template.spec.paralelism": lambda job: job_spec(job).update(paralelism=3),
    "spec.replicatedJobs[0].template.spec.template.containers": lambda job: pod_template(job).update(containers=[]),
}

ACCEPTED: dict[str, Change] = {
    "as it is": unchanged,
    "OnFailure, as JobSet's manifests have it": lambda job: pod_spec(job).update(restartPolicy="OnFailure"),
    "Never": lambda job: pod_spec(job).update(restartPolicy="Never"),
    "a named trainer container": lambda job: job["spec"]["launcher"].update(container="trainer"),
    "names that just fit": lambda job: job["metadata"].update(name="n" * 43),
    "names that just fit without spares": lambda job: (without_launcher(job), job["metadata"].update(name="n" * 45)),
    "no launcher": without_launcher,
    "spares with the default launcher": lambda job: job["spec"].pop("launcher"),
    "no launcher, and a template that a launcher would reject": lambda job: (
        without_launcher(job)["spec"].update(launcher={"mode": "Off"}),
        job_spec(job).update(completions=8, completionMode="NonIndexed"),
        trainer(job).pop("command"),
    ),
    "a driver beside the pods that train": two,
    "a driver that waits for them": lambda job: two(job, dependsOn=[{"name": "workers", "status": "Ready"}]),
    "workers that wait for a driver behind them": lambda job: (
        two(job),
        replicated_job(job).update(dependsOn=[{"name": "driver", "status": "Ready"}]),
    ),
    "pods on the host's network": lambda job: pod_spec(job).update(hostNetwork=True),
    "a driver on the host's network": lambda job: (
        two(job),
        job["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"].update(hostNetwork=True),
    ),
    "a driver without indexes, of none": lambda job: (
        two(job, replicas=0),
        job["spec"]["replicatedJobs"][1]["template"]["spec"].update(completionMode="NonIndexed", parallelism=0),
    ),
    "a long name without indexes of pods": lambda job: long_name_without_indexes(job, 53),
    "rules with empty names, as Go programs write them": lambda job: job["spec"].update(
        failurePolicy={"rules": [{"name": "", "action": "FailJobSet"}, {"name": "", "action": "RestartJobSet"}]}
    ),
    "pods that train of two kinds": lambda job: (
        two(job),
        job["spec"]["launcher"].update(targetReplicatedJobs=["driver", "workers"]),
        job["spec"]["spares"].update(replicatedJob="driver"),
    ),
    "all fields of a Job": lambda job: (
        without_launcher(job),
        job_spec(job).update(
            backoffLimit=3,
            activeDeadlineSeconds=60,
            suspend=True,
            podReplacementPolicy="Failed",
            backoffLimitPerIndex=1,
            maxFailedIndexes=2,
            successPolicy={"rules": [{"succeededIndexes": "0"}]},
            podFailurePolicy={"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]},
        ),
        replicated_job(job)["template"].update(metadata={"name": "x", "labels": {"a": "b"}, "annotations": {"c": "d"}}),
    ),
    "all fields of a JobSet": lambda job: job["spec"].update(
        network={"enableDNSHostnames": False, "subdomain": "net", "publishNotReadyAddresses": False},
        successPolicy={"operator": "Any", "targetReplicatedJobs": ["workers"]},
        failurePolicy={
            "maxRestarts": 3,
            "restartStrategy": "BlockingRecreate",
            "rules": [
                {
                    "name": "oom",
                    "action": "RestartJobAndIgnoreMaxRestarts",
                    "onJobFailureReasons": ["PodFailurePolicy"],
                    "onJobFailureMessagePatterns": [".*exit code 137.*"],
                    "targetReplicatedJobs": ["workers"],
                },
                {"action": "FailJobSet"},
            ],
        },
        startupPolicy={"startupPolicyOrder": "InOrder"},
        suspend=True,
        coordinator={"replicatedJob": "workers", "jobIndex": 1, "podIndex": 3},
        managedBy="kueue.x-k8s.io/multikueue",
        ttlSecondsAfterFinished=0,
        volumeClaimPolicies=[
            {"templates": [claim("data")], "retentionPolicy": {"whenDeleted": "Retain"}},
            {"templates": [claim("logs"), claim("cache")]},
            {},
        ],
    ),
    "a container beside the launcher that the kubelet restarts": lambda job: pod_spec(job)["containers"][1].update(
        restartPolicy="Always"
    ),
    "a launcher that the kubelet never restarts": lambda job: trainer(job).update(restartPolicy="Never"),
    "a restart in place": lambda job: job["spec"].update(failurePolicy={"restartStrategy": "InPlaceRestart"}),
    "no checkpoints at SIGTERM": lambda job: job["spec"].update(termination={"onSigterm": "Never"}),
    "a file that makes a node faulty": lambda job: job["spec"].update(faults={"nodeFile": "/run/nologin"}),
    "a hidden one": lambda job: job["spec"].update(faults={"nodeFile": "/var/lib/.x/..nologin"}),
    "a warm-up": lambda job: job["spec"]["spares"].update(warmup={"command": ["python3", "-c", "pass"]}),
    "that a round may hang before its first step": lambda job: job["spec"].update(
        faults={"hang": {"startTimeout": "30m"}}
    ),
    "that it may not": lambda job: job["spec"].update(faults={"hang": {"stepTimeout": "5m", "startTimeout": "0s"}}),
    "that a training may hang": lambda job: job["spec"].update(faults={"hang": {"stepTimeout": "1h30m"}}),
    "no faults of its own": lambda job: job["spec"].update(faults={}),
    "pods that hold the same shards": lambda job: job["spec"].update(termination={"replicaGroups": [[0, 1], [2, 7]]}),
    "a torchrun": lambda job: job["spec"]["launcher"].update(mode="Torchrun"),
    "no fork server": lambda job: job["spec"]["launcher"].update(forkServer=False),
    "lines as they are": lambda job: job["spec"]["launcher"].update(logPrefix=False),
    "no slow ranks": lambda job: job["spec"]["launcher"].update(slowRankPercent=0),
    "ranks that are slow by a factor of 10": lambda job: job["spec"]["launcher"].update(slowRankPercent=1000),
    "shared memory": lambda job: job["spec"]["launcher"].update(sharedMemory={"size": "16Gi"}),
    "shared memory on a disk": lambda job: job["spec"]["launcher"].update(
        sharedMemory={"size": "1Ti", "medium": "Disk"}
    ),
    "modules of one's own": lambda job: job["spec"]["launcher"].update(preload=["torch", "my.model_2"]),
    "a Python for the launcher": lambda job: job["spec"]["launcher"].update(python="/opt/conda/envs/py3.11/bin/python"),
    "nothing to preload": lambda job: job["spec"]["launcher"].update(preload=[]),
    "an empty launcher": lambda job: job["spec"].update(launcher={}),
    "no spares": lambda job: job["spec"]["spares"].update(replicas=0),
    "snapshots": lambda job: job["spec"].update(snapshots={"size": "512Mi", "every": 10, "copies": 0}),
    "an elastic job": lambda job: job["spec"].update(elastic={"minPods": 1}),
    "an elastic job that may lose no pod": lambda job: job["spec"].update(elastic={"minPods": 8}),
    "rollouts": with_rollouts,
    "rollouts that restart alone": lambda job: with_rollouts(job, onFailedUpdate="RestartRollouts", maxRetries=2),
    "rollouts with gateways": lambda job: with_rollouts(
        job, gateway={"enginePort": 30000, "port": 9000, "inFlightRequests": "Wait", "initialVersion": "base"}
    ),
    "a job that shrinks at once": lambda job: job["spec"].update(recovery={"spareTimeout": "0s"}),
    "a workerGracePeriod": lambda job: job["spec"].update(recovery={"workerGracePeriod": "1m30s"}),
    "no workerGracePeriod": lambda job: job["spec"].update(recovery={"workerGracePeriod": "0s"}),
    "no backoff": lambda job: job["spec"].update(recovery={"backoff": {"maxDelay": "0s"}}),
    "the shortest coordinatorLossTimeout": lambda job: job["spec"].update(recovery={"coordinatorLossTimeout": "10s"}),
    "a coordinatorLossTimeout in minutes": lambda job: job["spec"].update(recovery={"coordinatorLossTimeout": "1h30m"}),
    "no fence": lambda job: job["spec"].update(recovery={"coordinatorLossTimeout": "Off"}),
    "spares of the same zone": lambda job: job["spec"]["spares"].update(topologyKey="topology.kubernetes.io/zone"),
    "spares of the same rack": lambda job: job["spec"]["spares"].update(topologyKey="Rack_1.a"),
    "a topology key that just fits": lambda job: job["spec"]["spares"].update(topologyKey=f"a.b/{'k' * 63}"),
    "a window of hours and minutes": lambda job: job["spec"].update(recovery={"inPlace": {"window": "1h30m"}}),
}

# Each entry is one change to an existing TrainingJob.
REFUSED_LATER: dict[str, tuple[Change, str, str]] = {
    "another image": (
        lambda job: trainer(job).update(image="example.com/trainer:2"),
        "spec.replicatedJobs",
        "replicatedJobs is immutable while the job runs: set suspend to true to change it, or delete the",
    ),
    "another order of the containers": (
        lambda job: pod_spec(job)["containers"].reverse(),
        "spec.replicatedJobs",
        "replicatedJobs is immutable while the job runs",
    ),
    "more replicas": (
        lambda job: replicated_job(job).update(replicas=3),
        "spec.replicatedJobs",
        "replicatedJobs is immutable",
    ),
    "another field that the CRD does not know": (
        lambda job: trainer(job).update(fieldOfTomorrow=2),
        "spec.replicatedJobs",
        "replicatedJobs is immutable",
    ),
    "more workers a pod": (
        lambda job: job["spec"]["launcher"].update(nprocPerNode=4),
        "spec.launcher",
        "launcher cannot be changed while the job runs, because pods keep the value that they were created with: set",
    ),
    "another trainer container": (
        lambda job: job["spec"]["launcher"].update(container="trainer"),
        "spec.launcher",
        "launcher cannot be changed while the job runs",
    ),
    "torchrun in place of the launcher": (
        lambda job: job["spec"]["launcher"].update(mode="Torchrun"),
        "spec.launcher",
        "launcher cannot be changed while the job runs",
    ),
    "that it may shrink": (
        lambda job: job["spec"].update(elastic={"minPods": 6}),
        "spec.elastic",
        "elastic cannot be changed while the job runs",
    ),
    "rollouts": (
        lambda job: job["spec"].update(rollouts={"replicatedJobs": ["workers"]}),
        "spec.rollouts",
        "rollouts is immutable, because pods keep the one that they were created with: delete the TrainingJob and",
    ),
    "snapshots": (
        lambda job: job["spec"].update(snapshots={"size": "1Gi"}),
        "spec.snapshots",
        "snapshots cannot be changed while the job runs",
    ),
    "that a training may hang": (
        lambda job: job["spec"].update(faults={"hang": {"stepTimeout": "10m"}}),
        "spec.faults",
        "faults cannot be changed while the job runs",
    ),
    "no launcher any more": (without_launcher, "spec.launcher", "launcher cannot be changed while the job runs"),
    "another reaction to SIGTERM": (
        lambda job: job["spec"].update(termination={"onSigterm": "Never"}),
        "spec.termination",
        "termination cannot be changed while the job runs",
    ),
    "a failurePolicy": (
        lambda job: job["spec"].update(failurePolicy={"maxRestarts": 1}),
        "spec.failurePolicy",
        "failurePolicy is immutable: delete the TrainingJob and recreate it",
    ),
    "another successPolicy": (
        lambda job: job["spec"].update(successPolicy={"operator": "Any"}),
        "spec.successPolicy",
        "successPolicy is immutable",
    ),
    "another startupPolicy": (
        lambda job: job["spec"].update(startupPolicy={"startupPolicyOrder": "InOrder"}),
        "spec.startupPolicy",
        "startupPolicy is immutable",
    ),
    "another network": (
        lambda job: job["spec"].update(network={"subdomain": "net"}),
        "spec.network",
        "network is immutable",
    ),
    "a coordinator": (
        lambda job: job["spec"].update(coordinator={"replicatedJob": "workers"}),
        "spec.coordinator",
        "coordinator is immutable",
    ),
    "a manager": (
        lambda job: job["spec"].update(managedBy="kueue.x-k8s.io/multikueue"),
        "spec.managedBy",
        "managedBy is immutable",
    ),
    "a volume claim": (
        lambda job: job["spec"].update(volumeClaimPolicies=[{"templates": []}]),
        "spec.volumeClaimPolicies",
        "volumeClaimPolicies is immutable",
    ),
    "another coordinatorLossTimeout": (
        lambda job: job["spec"].update(recovery={"coordinatorLossTimeout": "60s"}),
        "spec.recovery.coordinatorLossTimeout",
        "recovery.coordinatorLossTimeout cannot be changed while the job runs",
    ),
    "another launcherTimeout": (
        lambda job: job["spec"].update(recovery={"launcherTimeout": "60s"}),
        "spec.recovery.launcherTimeout",
        "recovery.launcherTimeout cannot be changed while the job runs",
    ),
}

#: The cases of REFUSED_LATER that are accepted while the job is suspended.
ALLOWED_WHILE_SUSPENDED = (
    "another image",
    "more replicas",
    "more workers a pod",
    "another trainer container",
    "torchrun in place of the launcher",
    "that it may shrink",
    "snapshots",
    "that a training may hang",
    "no launcher any more",
    "another reaction to SIGTERM",
    "another coordinatorLossTimeout",
    "another launcherTimeout",
)

#: The same, for one that may shrink to 6.
REFUSED_LATER_OF_ELASTIC: dict[str, tuple[Change, str, str]] = {
    "that it may shrink further": (
        lambda job: job["spec"].update(elastic={"minPods": 5}),
        "spec.elastic",
        "elastic cannot be changed while the job runs",
    ),
    "that it may shrink no more": (
        lambda job: job["spec"].pop("elastic"),
        "spec.elastic",
        "elastic cannot be changed while the job runs",
    ),
}

ALLOWED_LATER: dict[str, Change] = {
    "nothing": unchanged,
    "more spares": lambda job: job["spec"]["spares"].update(replicas=5),
    "no more spares": lambda job: job["spec"].pop("spares"),
    "more restarts in place": lambda job: job["spec"].update(recovery={"inPlace": {"maxRestarts": 50}}),
    "another spareTimeout": lambda job: job["spec"].update(recovery={"spareTimeout": "5m"}),
    "the same coordinatorLossTimeout": lambda job: job["spec"].update(recovery={"coordinatorLossTimeout": "30s"}),
    "spares of the same zone": lambda job: job["spec"]["spares"].update(topologyKey="topology.kubernetes.io/zone"),
    "a label": lambda job: job["metadata"].update(labels={"team": "research"}),
    "that it rests": lambda job: job["spec"].update(suspend=True),
    "that it rests, and has another image": lambda job: (
        job["spec"].update(suspend=True),
        trainer(job).update(image="example.com/trainer:2"),
    ),
    "that it goes after its end": lambda job: job["spec"].update(ttlSecondsAfterFinished=60),
}


STATUS: Manifest = {
    "observedGeneration": 1,
    "phase": "Running",
    "terminalState": "",
    "startTime": "2026-01-01T00:00:00Z",
    "attemptStartTime": "2026-01-01T00:00:00Z",
    "restarts": 3,
    "restartsCountTowardsMax": 1,
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "WorldFormed",
            "message": "8 members hold all ranks",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ],
    "replicatedJobsStatus": [{"name": "workers", "ready": 2, "succeeded": 0, "failed": 0, "active": 2, "suspended": 0}],
    "ready": "6/8",
    "members": {"desired": 8, "active": 7, "ready": 6},
    "spares": {"desired": 2, "ready": 1, "claimed": 1},
    "promotedSpares": [{"pod": "shown-workers-spare-0-fghij", "groupRank": 3}],
    "round": 4,
    "coordinator": {"epoch": 0, "term": 1, "podName": "shown-workers-spare-0-abcde", "podUID": "0b5c"},
    "recoveriesByStrategy": {"inPlace": 3, "spareSwap": 1, "podRecreate": 0, "jobRestart": 0},
    "recoveryCount": 4,
    "lastRecovery": {
        "fault": "Process",
        "strategy": "InPlace",
        "round": 4,
        "cause": {
            "rank": 17,
            "pod": "shown-workers-0-2-abcde",
            "node": "n-3",
            "signal": "SIGKILL",
            "message": "Killed",
        },
        "detectedAt": "2026-01-01T00:00:00.123456Z",
        "resumedAt": "2026-01-01T00:00:01.000001Z",
        "pauseSeconds": 0.876545,
    },
    "progress": {"step": 1200, "total": 9000, "at": "2026-01-01T00:00:01.000001Z"},
    "rollouts": {
        "fresh": 0,
        "updating": 1,
        "uncertain": 2,
        "version": "step-6",
        "failure": {
            "update": "5f0c",
            "version": "step-7",
            "message": "EngineUnreachable: rollout-1 is gone",
            "consecutiveFailures": 2,
            "at": "2026-01-01T00:00:01.000001Z",
        },
        "restartedForUpdate": "5f0b",
    },
}

# No pod can take the lost ranks yet.
OPEN_RECOVERY: Manifest = {
    "fault": "Node",
    "round": 5,
    "cause": {"pod": "shown-workers-0-3-abcde", "node": "n-4", "message": "silent"},
    "detectedAt": "2026-01-01T00:01:00.000001Z",
}
