"""A TrainingJob without torch, for tests that need pods, kubelets and faults but no training: it recovers in a moment.

Each worker steps every tenth of a second. It reports each step to Understudy, and to the tests in a file of its pod.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.cluster import Cluster
from tests.e2e.objects import listed, read, read_log
from tests.e2e.report import token_of
from tests.e2e.training import LABEL_JOB, Raw
from tests.e2e.truth import Step, Steps
from tests.e2e.waiting import wait_for_status, wait_until

ATTEMPTS = 3
#: A coordinator reports to the operator at least so often, in seconds, when its voters have changed.
REPORTED_S = 1.0
STEP_FILE = "/tmp/steps"
#: The start of a script: step() for Understudy, and for steps_in().
STEP = f"""
import os, time, understudy_torch
def step(n):
    understudy_torch.step(n)
    with open("{STEP_FILE}", "a") as report:
        report.write(os.environ["UNDERSTUDY_ROUND"] + " " + str(time.time()) + "\\n")
"""
STEPS = f"""{STEP}
n = 0
while True:
    n += 1
    step(n)
    time.sleep(0.1)
"""

#: Rank 1 fails in each round, once the test has created this file in its pod.
FAIL_FILE = "/tmp/fail"
FAILING = f"""{STEP}
import sys
n = 0
while n < 3 or os.environ["RANK"] != "1" or not os.path.exists("{FAIL_FILE}"):
    n += 1
    step(n)
    time.sleep(0.1)
sys.exit(7)
"""


@dataclass
class PlainJob:
    """actives: pods of one worker each. spares: further pods. script: the worker's program.

    apart: spread the pods over the nodes evenly; otherwise the scheduler only prefers that. host_network: the pods
    share the network of their node.
    """

    cluster: Cluster
    namespace: str
    name: str
    script: str = STEPS
    actives: int = 2
    spares: int = 1
    apart: bool = False
    host_network: bool = False
    container: str = "trainer"  # the container whose workers write the steps

    def manifest(self, **changes: Any) -> Raw:
        trainer = {
            "name": "trainer",
            "image": self.cluster.base_image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["python3", "-u", "-c", self.script],
        }
        spread = {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule" if self.apart else "ScheduleAnyway",
            "labelSelector": {"matchLabels": {LABEL_JOB: self.name}},
        }
        pod: Raw = {"topologySpreadConstraints": [spread], "terminationGracePeriodSeconds": 5, "containers": [trainer]}
        if self.host_network:
            pod["hostNetwork"] = True
        template = {"spec": {"parallelism": self.actives, "template": {"spec": pod}}}
        spec = {
            "launcher": {"nprocPerNode": 1},
            "spares": {"replicas": self.spares},
            "replicatedJobs": [{"name": "w", "template": template}],
        }
        return {
            "apiVersion": "understudy.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {**spec, **changes},
        }

    def trainer_template(self) -> Raw:
        """The names of its pods."""
        template: Raw = self.manifest()["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        return template

    def launcher(self) -> Raw:
        launcher: Raw = self.manifest()["spec"]["launcher"]
        return launcher

    def apply(self, **changes: Any) -> None:
        self.cluster.kubectl("apply", "-f", "-", input=json.dumps(self.manifest(**changes)))

    def delete(self) -> None:
        """Delete the job, and wait until it has no pods."""
        self.cluster.kubectl("-n", self.namespace, "delete", "tj", self.name, "--ignore-not-found", "--wait=true")
        wait_until("all pods of the job are gone", lambda: not self.pods(), 60, seen=self.text)

    def discard(self) -> None:
        """Delete the job in the background: no other test uses its name."""
        self.cluster.kubectl("-n", self.namespace, "delete", "tj", self.name, "--ignore-not-found", "--wait=false")

    def status(self) -> Raw:
        status: Raw = read(self.cluster, self.namespace, "trainingjobs", self.name).get("status", {})
        return status

    def pods(self) -> list[Raw]:
        return listed(self.cluster, self.namespace, "pods", f"{LABEL_JOB}={self.name}")

    def reported_steps(self) -> Steps:
        """The steps of the pods that run."""
        found = {}
        for pod in self.pods():
            name = pod["metadata"]["name"]
            pid = self.cluster.container_pids(self.namespace, name).get(self.container, 0)
            with suppress(OSError):  # it has ended, or its workers have made no step
                found[name] = steps_in(Path(f"/proc/{pid}/root{STEP_FILE}").read_text())
        return found

    def pod(self, uid: str) -> Raw:
        return next(pod for pod in self.pods() if pod["metadata"]["uid"] == uid)

    def text(self) -> str:
        shown = self.cluster.kubectl("-n", self.namespace, "get", "tj,pods", "-o", "wide")
        return shown + json.dumps(self.status(), indent=1)

    def wait_for(self, description: str, condition: Any, limit_s: float = 60) -> Raw:
        """The first status that fulfills the condition."""
        return wait_for_status(description, self.status, condition, limit_s, seen=self.text)

    def wait_until_whole(self) -> Raw:
        """Wait until all ranks step and all spares are ready."""

        def whole(status: Raw) -> bool:
            ready = status.get("spares", {}).get("ready", 0) >= self.spares
            return status.get("phase") == "Running" and ready and "progress" in status

        status = self.wait_for("the job runs with all its spares", whole)
        if STEP in self.script:  # status shows when the first rank has stepped
            wait_until("each active has reported a step", self._all_have_stepped, 30, seen=self.reported_steps)
        return status

    def _all_have_stepped(self) -> bool:
        return len(self.reported_steps()) >= self.actives

    def apply_until_a_spare_coordinates(self) -> None:
        """Apply the job under another name if an active pod coordinates: on a busy machine spares start late."""
        name = self.name
        for attempt in range(ATTEMPTS):
            self.apply()
            self.wait_until_whole()
            if self.pod(self.status()["coordinator"]["podUID"])["metadata"]["labels"]["understudy.dev/role"] == "spare":
                return
            self.discard()
            self.name = f"{name}-{attempt + 2}"
        raise AssertionError(f"an active pod was the first coordinator of {ATTEMPTS} jobs")

    def sidecar_log(self, pod: Raw) -> str:
        return read_log(self.cluster, self.namespace, pod["metadata"]["name"], "understudy-sidecar")

    def wait_for_voters(self) -> None:
        """Wait until all pods vote about the next coordinator, and the operator knows it. Before that none can be
        elected, or the operator appoints one, because too few of the voters that it knows are left.
        """

        def voters() -> int:
            lines = self.sidecar_log(self.pod(self.status()["coordinator"]["podUID"]))
            result = [line for line in lines.splitlines() if " is in effect: " in line and _age_s(line) > REPORTED_S]
            return int(result[-1].split(" is in effect: ")[1].split()[0]) if result else 0

        wait_until("the voter configuration counts", lambda: voters() == self.actives + self.spares, 30, seen=self.text)


def _age_s(line: str) -> float:
    """Of a line of a sidecar's log, in seconds."""
    at = datetime.fromisoformat(line.split()[0]).replace(tzinfo=UTC)
    return (datetime.now(UTC) - at).total_seconds()


def alive(job: PlainJob) -> list[Raw]:
    """The job's pods that have not ended and are not being deleted."""
    return [
        pod
        for pod in job.pods()
        if pod["status"]["phase"] not in ("Succeeded", "Failed") and "deletionTimestamp" not in pod["metadata"]
    ]


def steps_in(text: str) -> list[Step]:
    """The steps in a worker's file."""
    return [Step(token_of(token), float(at)) for token, at in map(str.split, text.splitlines())]


#: The fixture `make_job`: describes a job with a name, and deletes it after the test.
MakeJob = Callable[..., PlainJob]
