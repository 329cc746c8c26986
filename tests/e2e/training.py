"""The example's TrainingJob on the local cluster: the objects of `kubectl apply -k examples/ddp`, with local changes.

The changes are the image (Debian's Python), torch (mounted from the host), the storage (a folder of the host, which all
nodes share, behind the same PersistentVolumeClaim), and the length of the run.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import Cluster
from tests.e2e.objects import listed, read
from tests.e2e.report import ALL_RANKS, NAME, Entry, newest_step, read_report
from tests.e2e.truth import Steps, steps_by_pod
from tests.e2e.waiting import wait_for_status, wait_until

CHECKOUT = Path(__file__).parents[2]
EXAMPLE = CHECKOUT / "examples" / "ddp"
LABEL_JOB = "understudy.dev/job-name"
LABEL_ROLE = "understudy.dev/role"
GROUP_RANK = "understudy.dev/group-rank"  # an annotation
TORCH = "/torch"
FINISH = "finish"
CHECKPOINT_EVERY = 4  # steps: with fewer, a fault can lose steps sooner

Raw = dict[str, Any]


@dataclass
class Training:
    """folder: the run's storage on the host. pace_s: the least time of a step, in seconds.

    torchrun: the trainer's command is a stock torchrun that runs the same script, with one worker per pod, because each
    imports torch at every start. fence_timeout: spec.recovery's, like "15s"; the default if empty.
    """

    cluster: Cluster
    folder: Path
    namespace: str
    name: str = "ddp"
    steps: int = 800
    pace_s: float = 0.5
    torchrun: bool = False
    fence_timeout: str = ""

    def apply(self) -> None:
        """Apply the example with empty storage."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.folder.chmod(0o777)  # the pods run as another user
        self._forget_storage_of_another_checkout()
        self.apply_items([self._volume(), *self._example()])

    def _forget_storage_of_another_checkout(self) -> None:
        """Delete the volume of another checkout: neither its path nor its claim can be changed."""
        result = "jsonpath={.spec.hostPath.path} {.spec.claimRef.name}"
        known = self.cluster.kubectl("get", "pv", self._volume_name, "-o", result, "--ignore-not-found").split()
        if known and known != [str(self.folder), self._claim_name]:
            gone = ("--ignore-not-found", "--wait=true")
            for claim in known[1:]:
                self.cluster.kubectl("-n", self.namespace, "delete", "pvc", claim, *gone)
            self.cluster.kubectl("delete", "pv", self._volume_name, *gone)

    def apply_items(self, items: list[Raw]) -> str:
        body = {"apiVersion": "v1", "kind": "List", "items": items}
        return self.cluster.kubectl("apply", "-n", self.namespace, "-f", "-", input=json.dumps(body))

    def discard(self) -> None:
        """Delete the job in the background: no other test uses its name."""
        self.cluster.kubectl("-n", self.namespace, "delete", "tj", self.name, "--ignore-not-found", "--wait=false")

    def delete(self) -> None:
        """Delete the job, and wait until none of its objects is left."""
        self.cluster.kubectl("-n", self.namespace, "delete", "tj", self.name, "--ignore-not-found", "--wait=true")
        wait_until("all pods of the job are gone", lambda: not self.pods(), 60, seen=self.pods_text)

    # Observations -----------------------------------------------------------------------------------------------------

    def status(self) -> Raw:
        status: Raw = read(self.cluster, self.namespace, "trainingjobs", self.name).get("status", {})
        return status

    def pods(self) -> list[Raw]:
        return listed(self.cluster, self.namespace, "pods", f"{LABEL_JOB}={self.name}")

    def pods_text(self) -> str:
        return self.cluster.kubectl("-n", self.namespace, "get", "tj,pods", "-o", "wide", "-L", LABEL_ROLE, check=False)

    def pods_by_rank(self) -> dict[int, Raw]:
        """The pods that have a group rank now, by rank, from their labels."""
        ranked = {}
        for pod in self.pods():
            rank = pod["metadata"].get("annotations", {}).get(GROUP_RANK)
            alive = "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] == "Running"
            if rank is not None and alive and pod["metadata"]["labels"][LABEL_ROLE] == "active":
                ranked[int(rank)] = pod
        return ranked

    def report(self) -> list[Entry]:
        return read_report(self.folder)

    @property
    def workers(self) -> int:
        """The names of its pods."""
        return 1 if self.torchrun else 2

    @property
    def world_size(self) -> int:
        """Ranks of the job; a fault does not change it."""
        return 3 * self.workers

    @property
    def replacement(self) -> str:
        """The strategy after the loss of a pod."""
        return "SpareSwap"

    def reported_steps(self) -> Steps:
        return steps_by_pod(read_report(self.folder, ALL_RANKS))

    def wait_for_step(self, step: int, limit_s: float = 120) -> None:
        wait_until(f"step {step} is done", lambda: newest_step(self.report()) >= step, limit_s, seen=self.pods_text)

    def finish(self) -> None:
        """Make the next step the last one."""
        (self.folder / FINISH).touch()

    def wait_for_status(self, description: str, condition: Any, limit_s: float) -> Raw:
        """The first status that fulfills the condition."""

        def seen() -> str:
            return json.dumps(self.status(), indent=1) + self.pods_text()

        return wait_for_status(description, self.status, condition, limit_s, seen=seen)

    # Local changes ----------------------------------------------------------------------------------------------------

    def _example(self) -> list[Raw]:
        text = self.cluster.kubectl("kustomize", str(EXAMPLE))
        items = [item for item in yaml.safe_load_all(text) if item]
        for item in items:
            if item["kind"] == "TrainingJob":
                self._localize(item)
            if item["kind"] == "PersistentVolumeClaim":
                item["metadata"]["name"] = self._claim_name
                item["spec"] |= {"storageClassName": "", "volumeName": self._volume_name}
        return items

    def _localize(self, job: Raw) -> None:
        job["metadata"]["name"] = self.name
        template = job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        for constraint in template["spec"].get("topologySpreadConstraints", []):
            constraint["labelSelector"] = {"matchLabels": {LABEL_JOB: self.name}}
        trainer = template["spec"]["containers"][0]
        trainer["image"] = self.cluster.base_image
        trainer["imagePullPolicy"] = "IfNotPresent"
        trainer["args"] = self._arguments(trainer["args"])
        if self.fence_timeout:
            job["spec"]["recovery"] = {"coordinatorLossTimeout": self.fence_timeout}
        if self.torchrun:
            job["spec"]["launcher"] |= {"mode": "Torchrun", "nprocPerNode": 1}
            del job["spec"]["snapshots"]  # they need the launcher
            *python, script = trainer["command"]
            trainer["command"] = [*python, "-m", "torch.distributed.run", script]
        trainer.setdefault("env", []).append({"name": "PYTHONPATH", "value": TORCH})
        trainer["volumeMounts"].append({"name": "torch", "mountPath": TORCH, "readOnly": True})
        for volume in template["spec"]["volumes"]:
            if "persistentVolumeClaim" in volume:
                volume["persistentVolumeClaim"]["claimName"] = self._claim_name
        template["spec"]["volumes"].append({"name": "torch", "hostPath": {"path": str(self.cluster.torch_path)}})

    def _arguments(self, given: list[str]) -> list[str]:
        """argparse uses the last of a repeated option."""
        return [
            *given,
            f"--steps={self.steps}",
            f"--min-step-seconds={self.pace_s}",
            f"--checkpoint-every={CHECKPOINT_EVERY}",
            f"--report=/checkpoints/{NAME}.jsonl",
            f"--finish=/checkpoints/{FINISH}",
            "--float64",
        ]

    @property
    def _claim_name(self) -> str:
        """The example's volume for the example's own name; another job's storage is another volume."""
        return f"{self.name}-checkpoints"

    @property
    def _volume_name(self) -> str:
        return f"{self.namespace}-{self.name}"

    def _volume(self) -> Raw:
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": self._volume_name},
            "spec": {
                "capacity": {"storage": "10Gi"},
                "accessModes": ["ReadWriteMany"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "",
                "hostPath": {"path": str(self.folder)},
            },
        }
