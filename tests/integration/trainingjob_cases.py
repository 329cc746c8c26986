"""TrainingJobs as data: what is right, each way to get it wrong, and what the API server says to it."""

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


def unchanged(manifest: Manifest) -> None:
    """No change."""


# Each is one change to TRAINING_JOB, and what the API server says to it: the field, then the mend.
REFUSED: dict[str, tuple[Change, str, str]] = {
    "no replicatedJob": (
        lambda job: job["spec"]["replicatedJobs"].clear(),
        "spec.replicatedJobs",
        "replicatedJobs must have exactly one entry: several replicatedJobs "
        "are not supported by this version: keep the one whose pods form the world",
    ),
    "two replicatedJobs": (
        lambda job: job["spec"]["replicatedJobs"].append(replicated_job(job) | {"name": "driver"}),
        "spec.replicatedJobs",
        "several replicatedJobs are not supported by this version: keep the one whose pods form the world",
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
        "spec.replicatedJobs[0].replicas",
        "replicas must be at least 1: set it to the number of Jobs "
        "whose pods train, or delete the TrainingJob to stop it",
    ),
    "replicas that no pod name has room for": (
        lambda job: replicated_job(job).update(replicas=100_001),
        "spec.replicatedJobs[0].replicas",
        "replicas must be at most 100000",
    ),
    "0 pods a Job": (
        lambda job: job_spec(job).update(parallelism=0, completions=0),
        "spec.replicatedJobs[0].template.spec.parallelism",
        "parallelism must be at least 1",
    ),
    "pods that no pod name has room for": (
        lambda job: job_spec(job).update(parallelism=100_001, completions=100_001),
        "spec.replicatedJobs[0].template.spec.parallelism",
        "parallelism must be at most 100000",
    ),
    "completions other than parallelism": (
        lambda job: job_spec(job).update(completions=5),
        "spec.replicatedJobs[0].template.spec.completions",
        "completions must equal parallelism, because all pods of a training "
        "run at once: set both to the same number, or leave completions out",
    ),
    "pods without an index": (
        lambda job: job_spec(job).update(completionMode="NonIndexed"),
        "spec.replicatedJobs[0].template.spec.completionMode",
        'Unsupported value: "NonIndexed": supported values: "Indexed"',
    ),
    "pods that always restart": (
        lambda job: pod_spec(job).update(restartPolicy="Always"),
        "spec.replicatedJobs[0].template.spec.template.spec.restartPolicy",
        "restartPolicy must be Never or OnFailure, or be left out: "
        "pods always run with Never, and the launcher restarts workers",
    ),
    "pods on the host's network": (
        lambda job: pod_spec(job).update(hostNetwork=True),
        "spec.replicatedJobs[0].template.spec.template.spec.hostNetwork",
        "hostNetwork must be false or be left out: the sidecars listen on fixed ports",
    ),
    "no container": (
        lambda job: pod_spec(job)["containers"].clear(),
        "spec.replicatedJobs",
        "the trainer container needs a command",
    ),
    "an unknown policy for SIGTERM": (
        lambda job: job["spec"].update(checkpoint={"onSigterm": "Sometimes"}),
        "spec.checkpoint.onSigterm",
        "checkpoint.onSigterm must be Auto, Always or Never",
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
    "a nologinPath that is relative": (
        lambda job: job["spec"].update(checkpoint={"nologinPath": "run/nologin"}),
        "spec.checkpoint.nologinPath",
        "checkpoint.nologinPath must be an absolute path of a file in a folder, such as /run/nologin",
    ),
    "a nologinPath in the root": (
        lambda job: job["spec"].update(checkpoint={"nologinPath": "/nologin"}),
        "spec.checkpoint.nologinPath",
        "may not be the root of the node",
    ),
    "a nologinPath that leads back": (
        lambda job: job["spec"].update(checkpoint={"nologinPath": "/run/../nologin"}),
        "spec.checkpoint.nologinPath",
        "without . and ..",
    ),
    "shards of a pod that is not there": (
        lambda job: job["spec"].update(checkpoint={"replicaGroups": [[0, 7], [1, 8]]}),
        "spec.checkpoint.replicaGroups",
        "checkpoint.replicaGroups must name pods by their group rank: each is 0 or more, and below the pods of the job",
    ),
    "shards of a pod below 0": (
        lambda job: job["spec"].update(checkpoint={"replicaGroups": [[-1, 7]]}),
        "spec.checkpoint.replicaGroups",
        "checkpoint.replicaGroups must name pods by their group rank",
    ),
    "a pod twice in a group": (
        lambda job: job["spec"].update(checkpoint={"replicaGroups": [[0, 1], [2, 3, 2]]}),
        "spec.checkpoint.replicaGroups[1][2]",
        "Duplicate value: 2",
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
    "an unknown mode": (
        lambda job: job["spec"]["launcher"].update(mode="torchrun"),
        "spec.launcher.mode",
        "launcher.mode must be Wrap or Torchrun",
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
    "no launcher": (
        lambda job: job["spec"].pop("launcher"),
        "spec.launcher",
        "add launcher: {nprocPerNode: <workers per pod>}: the launcher starts",
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
    "a trainer container that is not there": (
        lambda job: job["spec"]["launcher"].update(container="trainee"),
        "spec.launcher.container",
        "launcher.container must name a container of "
        "replicatedJobs[].template.spec.template.spec.containers; leave it out to use the first",
    ),
    "a trainer container without a command": (
        lambda job: trainer(job).pop("command"),
        "spec.replicatedJobs",
        "the trainer container needs a command: the launcher starts it; an image's ENTRYPOINT cannot be wrapped.",
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
        lambda job: job["spec"].update(recovery={"backoff": {"max": "1d"}}),
        "spec.recovery.backoff.max",
        "recovery.backoff.max must be a duration in whole hours, minutes and seconds, such as 0s, 30s or 5m",
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
    "a fenceTimeout below 10 s": (
        lambda job: job["spec"].update(recovery={"fenceTimeout": "9s"}),
        "spec.recovery.fenceTimeout",
        "recovery.fenceTimeout must be Off, or a duration of at least 10s in whole hours, minutes and seconds",
    ),
    "a fenceTimeout of nothing": (
        lambda job: job["spec"].update(recovery={"fenceTimeout": ""}),
        "spec.recovery.fenceTimeout",
        "recovery.fenceTimeout must be Off, or a duration of at least 10s",
    ),
    "a fenceTimeout of a unit alone": (
        lambda job: job["spec"].update(recovery={"fenceTimeout": "s"}),
        "spec.recovery.fenceTimeout",
        "recovery.fenceTimeout must be Off, or a duration of at least 10s",
    ),
    "a fenceTimeout in milliseconds": (
        lambda job: job["spec"].update(recovery={"fenceTimeout": "15000ms"}),
        "spec.recovery.fenceTimeout",
        "recovery.fenceTimeout must be Off, or a duration of at least 10s",
    ),
    "a fenceTimeout that is off in another spelling": (
        lambda job: job["spec"].update(recovery={"fenceTimeout": "off"}),
        "spec.recovery.fenceTimeout",
        "recovery.fenceTimeout must be Off, or a duration of at least 10s",
    ),
    "an elastic job that may vanish": (
        lambda job: job["spec"].update(elastic={"minReplicas": 0}),
        "spec.elastic.minReplicas",
        "elastic.minReplicas must be at least 1: set it to the least number of pods",
    ),
    "an elastic job that needs more pods than it has": (
        lambda job: job["spec"].update(elastic={"minReplicas": 9}),
        "spec.elastic.minReplicas",
        "elastic.minReplicas must be at most the pods of the job, replicas times parallelism of replicatedJobs: "
        "lower it, or leave out elastic",
    ),
    "an elastic job that does not say how far": (
        lambda job: job["spec"].update(elastic={}),
        "spec.elastic.minReplicas",
        "Required value",
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
    "a name of 38 characters with a replicatedJob's name of 7": (
        lambda job: job["metadata"].update(name="n" * 38),
        "metadata.name",
        "metadata.name is too long: pods are named "
        "<job>-<replicatedJob>-<jobIndex>-<podIndex>-<5 characters>, in at most 63",
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

# Each is one field that the CRD does not know, at a level of ours, and its path.
UNKNOWN_FIELDS: dict[str, Change] = {
    "spec.elastic.maxReplicas": lambda job: job["spec"].update(elastic={"minReplicas": 6, "maxReplicas": 9}),
    "spec.faults.hang.timeout": lambda job: job["spec"].update(faults={"hang": {"stepTimeout": "9m", "timeout": "9m"}}),
    "spec.recovery.fencetimeout": lambda job: job["spec"].update(recovery={"fencetimeout": "30s"}),
    "spec.spares.pool": lambda job: job["spec"]["spares"].update(pool="shared"),
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
    "names that just fit": lambda job: job["metadata"].update(name="n" * 37),
    "no checkpoints at SIGTERM": lambda job: job["spec"].update(checkpoint={"onSigterm": "Never"}),
    "a file that makes a node faulty": lambda job: job["spec"].update(checkpoint={"nologinPath": "/run/nologin"}),
    "a hidden one": lambda job: job["spec"].update(checkpoint={"nologinPath": "/var/lib/.x/..nologin"}),
    "a warm-up": lambda job: job["spec"]["spares"].update(warmup={"command": ["python3", "-c", "pass"]}),
    "that a training may hang": lambda job: job["spec"].update(faults={"hang": {"stepTimeout": "1h30m"}}),
    "no faults of its own": lambda job: job["spec"].update(faults={}),
    "pods that hold the same shards": lambda job: job["spec"].update(checkpoint={"replicaGroups": [[0, 1], [2, 7]]}),
    "a torchrun": lambda job: job["spec"]["launcher"].update(mode="Torchrun"),
    "no zygote": lambda job: job["spec"]["launcher"].update(zygote=False),
    "lines as they are": lambda job: job["spec"]["launcher"].update(logPrefix=False),
    "modules of one's own": lambda job: job["spec"]["launcher"].update(preload=["torch", "my.model_2"]),
    "nothing to preload": lambda job: job["spec"]["launcher"].update(preload=[]),
    "an empty launcher": lambda job: job["spec"].update(launcher={}),
    "no spares": lambda job: job["spec"]["spares"].update(replicas=0),
    "an elastic job": lambda job: job["spec"].update(elastic={"minReplicas": 1}),
    "an elastic job that may lose nobody": lambda job: job["spec"].update(elastic={"minReplicas": 8}),
    "a job that shrinks at once": lambda job: job["spec"].update(recovery={"spareTimeout": "0s"}),
    "no backoff": lambda job: job["spec"].update(recovery={"backoff": {"max": "0s"}}),
    "the shortest fenceTimeout": lambda job: job["spec"].update(recovery={"fenceTimeout": "10s"}),
    "a fenceTimeout in minutes": lambda job: job["spec"].update(recovery={"fenceTimeout": "1h30m"}),
    "no fence": lambda job: job["spec"].update(recovery={"fenceTimeout": "Off"}),
    "spares of the same zone": lambda job: job["spec"]["spares"].update(topologyKey="topology.kubernetes.io/zone"),
    "spares of the same rack": lambda job: job["spec"]["spares"].update(topologyKey="Rack_1.a"),
    "a topology key that just fits": lambda job: job["spec"]["spares"].update(topologyKey=f"a.b/{'k' * 63}"),
    "a window of hours and minutes": lambda job: job["spec"].update(recovery={"inPlace": {"window": "1h30m"}}),
}

# Each is one change to a TrainingJob that exists.
REFUSED_LATER: dict[str, tuple[Change, str, str]] = {
    "another image": (
        lambda job: trainer(job).update(image="example.com/trainer:2"),
        "spec.replicatedJobs",
        "replicatedJobs is immutable: delete the TrainingJob and create it anew",
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
        "launcher is immutable: delete the TrainingJob and create it anew",
    ),
    "another trainer container": (
        lambda job: job["spec"]["launcher"].update(container="trainer"),
        "spec.launcher",
        "launcher is immutable",
    ),
    "torchrun in place of the launcher": (
        lambda job: job["spec"]["launcher"].update(mode="Torchrun"),
        "spec.launcher",
        "launcher is immutable",
    ),
    "that it may shrink": (
        lambda job: job["spec"].update(elastic={"minReplicas": 6}),
        "spec.elastic",
        "elastic is immutable, because pods keep the one that they were created with: delete the TrainingJob and",
    ),
    "that a training may hang": (
        lambda job: job["spec"].update(faults={"hang": {"stepTimeout": "10m"}}),
        "spec.faults",
        "faults is immutable, because pods keep the one that they were created with: delete the TrainingJob and",
    ),
    "another fenceTimeout": (
        lambda job: job["spec"].update(recovery={"fenceTimeout": "60s"}),
        "spec.recovery.fenceTimeout",
        "recovery.fenceTimeout is immutable, because pods keep the one that they were created with: delete the",
    ),
}

#: The same, for one that may shrink to 6.
REFUSED_LATER_OF_ELASTIC: dict[str, tuple[Change, str, str]] = {
    "that it may shrink further": (
        lambda job: job["spec"].update(elastic={"minReplicas": 5}),
        "spec.elastic",
        "elastic is immutable",
    ),
    "that it may shrink no more": (lambda job: job["spec"].pop("elastic"), "spec.elastic", "elastic is immutable"),
}

ALLOWED_LATER: dict[str, Change] = {
    "nothing": unchanged,
    "more spares": lambda job: job["spec"]["spares"].update(replicas=5),
    "no more spares": lambda job: job["spec"].pop("spares"),
    "more restarts in place": lambda job: job["spec"].update(recovery={"inPlace": {"maxRestarts": 50}}),
    "another spareTimeout": lambda job: job["spec"].update(recovery={"spareTimeout": "5m"}),
    "the fenceTimeout that it has": lambda job: job["spec"].update(recovery={"fenceTimeout": "30s"}),
    "spares of the same zone": lambda job: job["spec"]["spares"].update(topologyKey="topology.kubernetes.io/zone"),
    "a label": lambda job: job["metadata"].update(labels={"team": "research"}),
}


STATUS: Manifest = {
    "observedGeneration": 1,
    "phase": "Running",
    "terminalState": "",
    "startTime": "2026-01-01T00:00:00Z",
    "restarts": 3,
    "restartsCountTowardsMax": 1,
    "conditions": [
        {
            "type": "Running",
            "status": "True",
            "reason": "WorldFormed",
            "message": "8 members hold all ranks",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ],
    "replicatedJobsStatus": [{"name": "workers", "ready": 2, "succeeded": 0, "failed": 0, "active": 2, "suspended": 0}],
    "members": {"desired": 8, "active": 7, "ready": 6},
    "spares": {"desired": 2, "ready": 1, "claimed": 1},
    "round": 4,
    "term": 1,
    "coordinator": {"epoch": 0, "term": 1, "podName": "shown-workers-spare-0-abcde", "podUID": "0b5c"},
    "recoveriesByStrategy": {"inPlace": 3, "spareSwap": 1, "podRecreate": 0, "jobRestart": 0},
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
        "seconds": 0.876545,
    },
    "progress": {"step": 1200, "total": 9000, "at": "2026-01-01T00:00:01.000001Z"},
}

# Nobody is there yet to take the lost ranks.
OPEN_RECOVERY: Manifest = {
    "fault": "Node",
    "round": 5,
    "cause": {"pod": "shown-workers-0-3-abcde", "node": "n-4", "message": "silent"},
    "detectedAt": "2026-01-01T00:01:00.000001Z",
}
