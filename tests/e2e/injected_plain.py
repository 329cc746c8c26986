"""A Job or a JobSet with the label, without torch, for tests that need no training.

Each worker steps every tenth of a second, reports it, and writes its newest step and the times of all steps to a folder
that all nodes share, until the file `done` exists there. The hooks of the pods write to the same folder, and the file
`hold` there keeps pods from starting.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster import Cluster
from tests.e2e.objects import find, listed, read
from tests.e2e.plain import steps_in
from tests.e2e.report import Token, token_of
from tests.e2e.success import codes_of
from tests.e2e.training import LABEL_JOB, LABEL_ROLE, Raw
from tests.e2e.truth import Steps
from tests.e2e.waiting import wait_for_status, wait_until

ENDS = ("Succeeded", "Failed")
WITNESS = "/witness"
STEPS = """
import os, pathlib, time
from understudy_torch import step
folder, n = pathlib.Path("/witness"), 0
mine = folder / f"rank-{os.environ['RANK']}"
new = folder / f"new-{os.environ['RANK']}-{os.environ['POD']}"  # a former life's pods may still end
while not (folder / "done").exists():
    n += 1
    step(n)
    new.write_text(f"{os.environ['UNDERSTUDY_ROUND']} {n}")
    new.rename(mine)
    with (folder / f"steps-{os.environ['POD']}").open("a") as steps:
        steps.write(f"{os.environ['UNDERSTUDY_ROUND']} {time.time()}\\n")
    time.sleep(0.1)
"""


@dataclass
class InjectedPlain:
    """actives: pods of one worker each. spares: further pods. kind: Job or JobSet. pod_spec: more fields of the pods'
    spec.
    """

    cluster: Cluster
    folder: Path
    namespace: str
    name: str
    kind: str = "Job"
    actives: int = 2
    spares: int = 1
    pod_spec: Raw | None = None
    hooks: Raw | None = None  # the trainer's lifecycle

    @property
    def group(self) -> str:
        return f"{self.kind.lower()}.{self.name}"

    def manifest(self) -> Raw:
        pods = self.actives + self.spares
        each = pods if self.kind == "Job" else 1
        annotations = {"understudy.dev/spares": str(self.spares)}
        metadata = {"labels": {"understudy.dev/inject": "enabled"}, "annotations": annotations}
        template = {"metadata": metadata, "spec": self._pod()}
        job = {"completionMode": "Indexed", "parallelism": each, "completions": each, "backoffLimit": 0}
        job["template"] = template
        named: Raw = {"metadata": {"name": self.name, "namespace": self.namespace}}
        if self.kind == "Job":
            return {"apiVersion": "batch/v1", "kind": "Job", **named, "spec": job}
        # With the defaults of JobSet's own webhook. Each of its Jobs has one of the training pods.
        whole: Raw = {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All"},
            "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
            "replicatedJobs": [
                {"name": "workers", "groupName": "default", "replicas": pods, "template": {"spec": job}}
            ],
        }
        return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", **named, "spec": whole}

    def _pod(self) -> Raw:
        mount = {"name": "witness", "mountPath": WITNESS}
        image = {"image": self.cluster.base_image, "imagePullPolicy": "IfNotPresent", "volumeMounts": [mount]}
        itself = {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
        trainer: Raw = {"name": "trainer", **image, "env": [itself], "command": ["python3", "-u", "-c", STEPS]}
        if self.hooks is not None:
            trainer["lifecycle"] = self.hooks
        gate = {"name": "gate", **image, "command": ["sh", "-c", f"while [ -e {WITNESS}/hold ]; do sleep 0.1; done"]}
        beside = {key: value for key, value in (self.pod_spec or {}).items() if key != "initContainers"}
        more = [{**image, "env": [itself], **extra} for extra in (self.pod_spec or {}).get("initContainers", ())]
        return {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "volumes": [{"name": "witness", "hostPath": {"path": str(self.folder)}}],
            "initContainers": [*more, gate],
            "containers": [trainer],
            **beside,
        }

    # Actions ----------------------------------------------------------------------------------------------------------

    def apply(self) -> None:
        self.cluster.kubectl("apply", "-f", "-", input=json.dumps(self.manifest()))

    def begin(self) -> None:
        """Apply the job, with an empty folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.folder.chmod(0o777)  # the pods run as another user
        self.apply()

    def discard(self) -> None:
        """Delete the job in the background: no other test uses its name."""
        background = ("--ignore-not-found", "--wait=false", "--cascade=background")
        self._kubectl("delete", self.kind.lower(), self.name, *background)

    def suspend(self, *, suspended: bool) -> None:
        patch = json.dumps({"spec": {"suspend": suspended}})
        self._kubectl("patch", self.kind.lower(), self.name, "--type=merge", "-p", patch)

    def finish(self) -> None:
        """Let the workers end."""
        (self.folder / "done").touch()

    @contextmanager
    def budget_used(self) -> Iterator[None]:
        """New pods stop at their start until the file is removed."""
        hold = self.folder / "hold"
        hold.touch()
        try:
            yield
        finally:
            hold.unlink()

    # Observations -----------------------------------------------------------------------------------------------------

    def injected(self) -> Raw:
        """The InjectedJob; empty while there is none."""
        return find(self.cluster, self.namespace, "injectedjobs", self.group) or {}

    def status(self) -> Raw:
        status: Raw = self.injected().get("status", {})
        return status

    def target(self) -> Raw:
        return read(self.cluster, self.namespace, f"{self.kind.lower()}s", self.name)

    def pods(self) -> list[Raw]:
        return listed(self.cluster, self.namespace, "pods", f"{LABEL_JOB}={self.group}")

    def uids(self) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.pods()}

    def text(self) -> str:
        shown = self._kubectl("get", f"ij,{self.kind.lower()},jobs,pods", "-o", "wide", check=False)
        return shown + json.dumps(self.status(), indent=1)

    def traces(self, hook: str) -> set[str]:
        """The pods whose hook of that name has run."""
        return {file.name.removeprefix(f"{hook}-") for file in self.folder.glob(f"{hook}-*")}

    def newest(self) -> dict[str, tuple[Token, int]]:
        """The round and the step in which each rank was last."""
        result = {file.name.removeprefix("rank-"): file.read_text().split() for file in self.folder.glob("rank-*")}
        return {rank: (token_of(text), int(n)) for rank, (text, n) in result.items()}

    def reported_steps(self) -> Steps:
        """The steps of all pods that existed, by pod."""
        return {file.name: steps_in(file.read_text()) for file in self.folder.glob("steps-*")}

    def wait_for(self, description: str, condition: Any, limit_s: float = 90) -> Raw:
        """The first status that fulfills the condition."""
        return wait_for_status(description, self.status, condition, limit_s, seen=self.text)

    def wait_until_whole(self) -> Raw:
        def whole(status: Raw) -> bool:
            ready = status.get("spares", {}).get("ready", 0) >= self.spares
            return status.get("phase") == "Running" and ready and "progress" in status

        status = self.wait_for("it trains with all its spares", whole)
        # the operator writes status first, and the labels of the pods a moment later
        wait_until("the active pods have their label", self._has_labels, 30, seen=self.text)
        return status

    def _has_labels(self) -> bool:
        active = [pod for pod in self.pods() if pod["metadata"]["labels"].get(LABEL_ROLE) == "active"]
        return len(active) >= self.actives

    def wait_for_steps_after(self, token: Token) -> Token:
        """Wait until all ranks step in one newer round."""

        def stepped() -> Token | None:
            result = [round_ for round_, _ in self.newest().values()]
            newer = len(result) == self.actives and len(set(result)) == 1 and result[0] > token
            return result[0] if newer else None

        found = wait_until("all ranks step in a newer round", stepped, 90, seen=self.text)
        assert found is not None
        return found

    def token(self) -> Token:
        return max(round_ for round_, _ in self.newest().values())

    def wait_for_end(self) -> dict[str, int]:
        """Wait until the Job, or the JobSet, has completed. Returns the exit codes of all containers, by pod and
        container.
        """
        ended = "Completed" if self.kind == "JobSet" else "Complete"

        def completed() -> bool:
            conditions = self.target().get("status", {}).get("conditions", ())
            return any((x["type"], x["status"]) == (ended, "True") for x in conditions)

        wait_until(f"the {self.kind} has completed", completed, 90, seen=self.text)
        self.wait_for("its success is reported", lambda status: status.get("phase") == "Succeeded")
        return codes_of(self.pods())

    def _kubectl(self, *words: str, check: bool = True) -> str:
        return self.cluster.kubectl("-n", self.namespace, *words, check=check)
