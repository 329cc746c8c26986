"""Jobs and JobSets with the label, on the local cluster: the training of examples/ddp, unchanged.

The TrainingJob of examples/ddp is restated as users have it without Understudy: its pod template in an indexed Job, or
in a JobSet. JobSet's own controller runs on the host, with its webhooks off: the manifests contain their defaults.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from benchmarks.operator.jobset_build import ensure_jobset
from benchmarks.operator.programs import Program
from benchmarks.operator.systems import HEALTH_PORT, jobset_configuration
from tests.cluster import Cluster, CommandFailed
from tests.cluster.commands import Progress, run
from tests.cluster.host_tools import tool
from tests.e2e.lanes import NAMESPACE as LANE_NAMESPACE
from tests.e2e.lanes import create_namespace
from tests.e2e.objects import find, listed, read
from tests.e2e.training import LABEL_JOB, Raw, Training
from tests.e2e.waiting import wait_until

NAMESPACE = f"{LANE_NAMESPACE}-inject"
PODS = 4  # three that train, and a spare; or four that train
#: The Job controller creates each pod that replaces one, after a pause of up to 40 s if some have failed. The scheduler
#: may put the pod on the silent node until that is not ready.
WITHOUT_SPARE_S = 180.0


def label_namespace(cluster: Cluster, name: str = NAMESPACE) -> None:
    create_namespace(cluster, name, **{"understudy.dev/inject": "enabled"})


@contextmanager
def jobset_controller(cluster: Cluster, folder: Path) -> Iterator[None]:
    """JobSet's manager runs against the cluster during the body."""
    built = ensure_jobset(Progress(quiet=True))
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(built.crd))
    # Pods of other tests keep the machine busy: the API server may serve a new kind seconds after it was applied.
    wait_until("the API server serves JobSets", lambda: _is_served(cluster), 60)
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", folder / "tls.key")
    run([tool("openssl"), "req", "-x509", *key, "-subj", "/CN=localhost", "-days", "1", "-out", folder / "tls.crt"])
    configuration = folder / "configuration.json"
    configuration.write_text(json.dumps(jobset_configuration(folder, in_place=False, shipped=True)))
    with Program(
        "jobset-e2e", [str(built.manager), f"--config={configuration}"], {"KUBECONFIG": str(cluster.kubeconfig)}
    ):
        wait_until("JobSet's controller is ready", lambda: _answers(HEALTH_PORT), 60)
        yield


def _is_served(cluster: Cluster) -> bool:
    try:
        cluster.kubectl("get", "jobsets", "-A")
    except CommandFailed:
        return False
    return True


def _answers(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@dataclass
class InjectedTraining(Training):
    """kind: Job or JobSet. bash: the command is a torchrun inside of `bash -c`.

    label_alone: it has no annotation, so all its pods train, as in JobSet's PyTorch example: one worker each.
    """

    kind: str = "Job"
    bash: bool = False
    label_alone: bool = False

    @property
    def workers(self) -> int:
        """The workers of each pod."""
        return 1 if self.label_alone or self.bash else 2

    @property
    def members(self) -> int:
        return PODS if self.label_alone else PODS - 1

    @property
    def world_size(self) -> int:
        return self.members * self.workers

    @property
    def replacement(self) -> str:
        """The strategy after the loss of a pod."""
        return "PodRecreate" if self.label_alone else "SpareSwap"

    @property
    def group(self) -> str:
        """The InjectedJob, by the label of its pods."""
        return f"{self.kind.lower()}.{self.name}"

    def status(self) -> Raw:
        injected = find(self.cluster, self.namespace, "injectedjobs", self.group) or {}
        status: Raw = injected.get("status", {})
        return status

    def target(self) -> Raw:
        return read(self.cluster, self.namespace, f"{self.kind.lower()}s", self.name)

    def jobs(self) -> list[Raw]:
        return [
            job for job in listed(self.cluster, self.namespace, "jobs") if job["metadata"]["name"].startswith(self.name)
        ]

    def pods(self) -> list[Raw]:
        return listed(self.cluster, self.namespace, "pods", f"{LABEL_JOB}={self.group}")

    def pods_text(self) -> str:
        return self.cluster.kubectl("-n", self.namespace, "get", "ij,jobs,pods", "-o", "wide", check=False)

    def discard(self) -> None:
        """Delete the job in the background: no other test uses its name."""
        background = ("--ignore-not-found", "--wait=false", "--cascade=background")
        self.cluster.kubectl("-n", self.namespace, "delete", self.kind.lower(), self.name, *background)

    def _example(self) -> list[Raw]:
        items = super()._example()
        return [self._restated(item) if item["kind"] == "TrainingJob" else item for item in items]

    def _restated(self, job: Raw) -> Raw:
        (entry,) = job["spec"]["replicatedJobs"]
        spec = entry["template"]["spec"] | {"parallelism": PODS, "completions": PODS, "backoffLimit": 0}
        template = spec["template"]
        settings = {"nproc-per-node": self.workers, "spares": PODS - self.members, "drills": "Allowed"}
        annotations = {} if self.label_alone else {f"understudy.dev/{name}": str(x) for name, x in settings.items()}
        template["metadata"] = {"labels": {"understudy.dev/inject": "enabled"}, "annotations": annotations}
        for constraint in template["spec"].get("topologySpreadConstraints", []):
            constraint["labelSelector"] = {"matchLabels": {LABEL_JOB: self.group}}
        if self.bash:
            self._in_bash(template)
        metadata = {"name": self.name}
        if self.kind == "Job":
            return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
        template["spec"]["restartPolicy"] = "Never"
        whole: dict[str, Any] = {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All"},
            "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
            "replicatedJobs": [
                {"name": "workers", "groupName": "default", "replicas": 1, "template": {"spec": spec}},
            ],
        }
        return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": whole}

    def _in_bash(self, template: Raw) -> None:
        trainer = template["spec"]["containers"][0]
        words = " ".join(trainer["args"])
        # As in JobSet's PyTorch example: a static rendezvous, which is not used.
        result = "--master_addr=$MASTER_ADDR --master_port=$MASTER_PORT --node_rank=$RANK"
        sizes = f"--nnodes={self.members} --nproc_per_node={self.workers}"
        torchrun = f"python3 -m torch.distributed.run --rdzv_id=123 {sizes} {result} /example/train.py {words}"
        trainer |= {"command": ["bash", "-xc", torchrun], "args": []}
        trainer["env"] += _static_rendezvous(self.name)
        template["metadata"]["annotations"].pop("understudy.dev/nproc-per-node", None)


def _static_rendezvous(name: str) -> list[Raw]:
    """The arguments of torchrun in such an example: the first pod's hostname, and each pod's index."""
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    return [
        {"name": "MASTER_ADDR", "value": f"{name}-workers-0-0.{name}"},
        {"name": "MASTER_PORT", "value": "3389"},
        {"name": "RANK", "valueFrom": {"fieldRef": {"fieldPath": index}}},
    ]
