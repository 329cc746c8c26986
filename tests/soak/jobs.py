"""The soak's jobs on the local cluster: examples/ddp by launcher, by torchrun and injected, and examples/rl.

The storage of a training is in a small tmpfs of its own, so that a full volume affects no other job. Its workers run
tests/soak/worker.py, and the clock of its trainer containers can be shifted (clock.c).
"""

import json
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import Cluster
from tests.cluster.commands import run
from tests.e2e.injected import InjectedTraining
from tests.e2e.lanes import NODE_SELECTOR, SYSTEM_NODE
from tests.e2e.leftovers import PREFIX
from tests.e2e.report import newest_step
from tests.e2e.rl import RlJob, version_of
from tests.e2e.training import GROUP_RANK, LABEL_ROLE, Raw, Training
from tests.e2e.truth import Step, Steps
from tests.e2e.waiting import wait_until
from tests.soak.draw import Pod
from tests.soak.invariants import Start

HERE = Path(__file__).parent
LABEL = "e2e.understudy.dev/soak"
SHARED, SCRIPT = "/checkpoints", "/example/train.py"
VOLUME_MB = 64
MEMORY_LIMIT = "2Gi"
#: Restarts in place of one life: more than a life's faults can cost.
BUDGET = 40
STEPS = 2000
#: A training with fewer remaining steps ends before the next fault: while another job recovers, it makes a step a
#: second.
STEPS_LEFT = 400
END_S, GONE_S = 180.0, 180.0


def read_starts(text: str) -> list[Start]:
    """The whole records. If a fault fills the volume, a write may store only the first part of a record, and the next
    record follows in the same line.
    """
    return [Start(**json.loads(record)) for record in re.findall(r"\{[^{}]*\}", text)]


@dataclass
class SoakTraining(Training):
    """A job whose life lasts from apply() to end(); then apply() begins the next one."""

    pace_s: float = 1.0
    steps: int = STEPS

    @property
    def volume(self) -> Path:
        """The tmpfs."""
        return self.folder.parent

    def apply_items(self, items: list[Raw]) -> str:
        shutil.copy(HERE / "worker.py", self.folder)
        if clock := clock_library(self.volume.parent):
            shutil.copy(clock, self.folder)
        return super().apply_items(items)

    def end(self) -> None:
        """Let it train to its end."""
        self.finish()
        wait_until("the training is done", self._is_done, END_S, seen=self.pods_text)

    def forget(self) -> None:
        """Delete it, and wait until none of its pods is left."""
        self.discard()
        wait_until("all pods of the job are gone", lambda: not self.pods(), GONE_S, seen=self.pods_text)

    def reported_steps(self) -> Steps:
        """Those of rank 0: the soak shifts the clock of a pod, so the times of two pods cannot be compared."""
        return {"rank 0": [Step(x.token, x.time, x.step) for x in self.report() if x.event == "step"]}

    def is_near_its_end(self) -> bool:
        return newest_step(self.report()) > self.steps - STEPS_LEFT

    def starts(self) -> list[Start]:
        file = self.folder / "starts.jsonl"
        return read_starts(file.read_text()) if file.exists() else []

    def _is_done(self) -> bool:
        return any(entry.event == "done" for entry in self.report())

    def _localize(self, job: Raw) -> None:
        super()._localize(job)
        job["spec"].setdefault("recovery", {})["inPlace"] = {"maxRestarts": BUDGET}
        template = job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        trainer = template["spec"]["containers"][0]
        trainer["command"] = [f"{SHARED}/worker.py" if word == SCRIPT else word for word in trainer["command"]]
        trainer["resources"]["limits"] = {"memory": MEMORY_LIMIT}
        if clock_library(self.volume.parent):
            trainer["env"].append({"name": "LD_PRELOAD", "value": f"{SHARED}/clock.so"})


@dataclass
class SoakInjected(SoakTraining, InjectedTraining):
    """The same as a Job with the label."""

    def _restated(self, job: Raw) -> Raw:
        restated = super()._restated(job)
        annotations = restated["spec"]["template"]["metadata"]["annotations"]
        annotations["understudy.dev/max-restarts"] = str(BUDGET)
        return restated


@dataclass
class SoakRl(RlJob):
    updates: int = 600  # of 640 at most
    pause_s: float = 6.0

    def forget(self) -> None:
        self.discard()
        wait_until("all pods of the job are gone", lambda: not self.pods(), GONE_S, seen=self.text)

    def is_near_its_end(self) -> bool:
        return version_of(self.status()) > self.updates - 50

    def _localize(self, job: Raw) -> None:
        super()._localize(job)
        job["spec"]["failurePolicy"] = {"maxRestarts": 1000}


def create_namespaces(cluster: Cluster, jobs: Mapping[str, SoakTraining | SoakRl]) -> None:
    """Namespaces whose pods run on all nodes except the operator's. Their prefix makes delete_leftovers() find them."""
    nodes = [node for node in cluster.nodes() if node != SYSTEM_NODE]
    cluster.kubectl("label", "node", *nodes, "--overwrite", f"{LABEL}=true")
    for job in jobs.values():
        metadata = {
            "name": job.namespace,
            "labels": {"understudy.dev/inject": "enabled"} if isinstance(job, SoakInjected) else {},
            "annotations": {NODE_SELECTOR: f"{LABEL}=true"},
        }
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=json.dumps(manifest))


def ensure_volumes(cluster: Cluster, trainings: Iterable[SoakTraining]) -> None:
    """Mount the volumes, unless they are mounted, while no node runs: a node has the mounts of the host at its boot."""
    missing = [training.volume for training in trainings if not training.volume.is_mount()]
    if missing:
        cluster.down()
    for volume in missing:
        volume.mkdir(parents=True, exist_ok=True)
        run(["mount", "-t", "tmpfs", "-o", f"size={VOLUME_MB}m,mode=0777", f"soak-{volume.name}", volume])


def make_trainings(cluster: Cluster, cache: Path) -> dict[str, SoakTraining]:
    """The jobs by name. Each has a namespace of its own, because the example's claim is bound to one folder per
    namespace.
    """
    kinds: dict[str, tuple[type[SoakTraining], bool]] = {
        "launcher": (SoakTraining, False),
        "torchrun": (SoakTraining, True),
        "injected": (SoakInjected, False),
    }
    return {
        name: kind(cluster, cache / f"volume-{name}" / "checkpoints", f"{PREFIX}soak-{name}", name, torchrun=torchrun)
        for name, (kind, torchrun) in kinds.items()
    }


def make_rl(cluster: Cluster) -> SoakRl:
    return SoakRl(cluster, f"{PREFIX}soak-rl", "rl")


def pods_of(name: str, job: SoakTraining | SoakRl) -> Iterator[Pod]:
    """The pods that run."""
    coordinator = job.status().get("coordinator", {}).get("podUID")
    for pod in job.pods():
        metadata = pod["metadata"]
        if pod["status"].get("phase") != "Running" or "deletionTimestamp" in metadata:
            continue
        is_active = metadata.get("labels", {}).get(LABEL_ROLE) == "active"
        rank = int(metadata.get("annotations", {}).get(GROUP_RANK, -1)) if is_active else -1
        coordinates = metadata["uid"] == coordinator
        node, instrumented = pod["spec"]["nodeName"], isinstance(job, SoakTraining)
        yield Pod(name, rank, metadata["name"], node, coordinates, instrumented)


def host_name(pids: dict[str, int]) -> str:
    """Of a pod, by its containers' processes."""
    return Path(f"/proc/{pids['trainer']}/root/etc/hostname").read_text().strip()


def fill(file: Path) -> None:
    """Until there is no space left on its device."""
    # Without a buffer: its rest would be written again when the file is closed, which raises the error once more.
    with file.open("wb", buffering=0) as filling, suppress(OSError):
        while True:
            filling.write(b"0" * 65536)


def shift_clock(training: SoakTraining, host: str, seconds: int) -> None:
    """Raises FileNotFoundError if no process of the pod has mapped the file."""
    with (training.folder / f"clock-{host}").open("r+b") as file:
        file.write(struct.pack("=q", seconds))


def clock_library(cache: Path) -> Path | None:
    """clock.c, compiled; None without a C compiler."""
    library = cache / "clock.so"
    source = HERE / "clock.c"
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    if not library.exists() or library.stat().st_mtime < source.stat().st_mtime:
        unfinished = cache / f"clock.{os.getpid()}.so"
        cache.mkdir(parents=True, exist_ok=True)
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-Wall", "-o", unfinished, source], check=True)
        unfinished.rename(library)
    return library
