"""A HotSparePool on the local cluster, and jobs that share it."""

import contextlib
import json
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from tests.cluster import Cluster
from tests.e2e.objects import listed, read
from tests.e2e.training import Raw
from tests.e2e.waiting import wait_until

LABEL_POOL = "understudy.dev/pool"
LABEL_CLAIMED_BY_UID = "understudy.dev/claimed-by-uid"
LABEL_POOL_UID = "understudy.dev/pool-uid"
ANNOTATION_CLAIMED_POD_UID = "understudy.dev/claimed-pod-uid"


@dataclass
class Claimable:
    """The uids of the spares that a job could claim now: Ready, not claimed and not being deleted."""

    uids: set[str] = field(default_factory=set)
    fewest: int | None = None  # at any moment since the first event

    def read(self, events: Iterable[bytes]) -> None:
        """events: of a watch, one per line."""
        for line in events:
            event = json.loads(line)
            assert event["type"] in ("ADDED", "MODIFIED", "DELETED"), line
            uid = event["object"]["metadata"]["uid"]
            if event["type"] != "DELETED" and is_claimable(event["object"]):
                self.uids.add(uid)
            else:
                self.uids.discard(uid)
            self.fewest = len(self.uids) if self.fewest is None else min(self.fewest, len(self.uids))


def is_claimable(pod: Raw) -> bool:
    metadata, conditions = pod["metadata"], pod["status"].get("conditions", ())
    ready = any((x["type"], x["status"]) == ("Ready", "True") for x in conditions)
    return ready and "deletionTimestamp" not in metadata and LABEL_CLAIMED_BY_UID not in metadata["labels"]


@dataclass
class SharedPool:
    """nodes: the nodes for its spares, the first one preferred; empty: any. alone: at most one spare per node."""

    cluster: Cluster
    namespace: str
    name: str = "shared"
    replicas: int = 1
    nodes: tuple[str, ...] = ()
    alone: bool = False
    ready_after_s: int = 0

    def manifest(self, note: str = "1") -> Raw:
        """note: a value in the template; another value is another template."""
        hold: Raw = {"name": "hold", "image": self.cluster.base_image, "imagePullPolicy": "IfNotPresent"}
        hold |= {"command": ["sleep", "infinity"], "env": [{"name": "NOTE", "value": note}]}
        if self.ready_after_s:
            hold["readinessProbe"] = {"exec": {"command": ["true"]}, "initialDelaySeconds": self.ready_after_s}
        spec: Raw = {"terminationGracePeriodSeconds": 5, "containers": [hold], "affinity": self._affinity()}
        return {
            "apiVersion": "understudy.dev/v1alpha1",
            "kind": "HotSparePool",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {"replicas": self.replicas, "template": {"spec": spec}},
        }

    def apply(self, note: str = "1") -> None:
        self.cluster.kubectl("apply", "-f", "-", input=json.dumps(self.manifest(note)))

    def delete(self) -> None:
        words = ("delete", "hotsparepool", self.name, "--ignore-not-found", "--wait=true")
        self.cluster.kubectl("-n", self.namespace, *words)
        wait_until("all spares of the pool are gone", lambda: not self.pods(), 60, seen=self.text)

    def discard(self) -> None:
        """Delete the pool in the background: no other test uses its name."""
        words = ("delete", "hotsparepool", self.name, "--ignore-not-found", "--wait=false")
        self.cluster.kubectl("-n", self.namespace, *words)

    def status(self) -> Raw:
        status: Raw = read(self.cluster, self.namespace, "hotsparepools", self.name).get("status", {})
        return status

    def condition(self, kind: str) -> Raw:
        return next((entry for entry in self.status().get("conditions", ()) if entry["type"] == kind), {})

    def pods(self) -> list[Raw]:
        return listed(self.cluster, self.namespace, "pods", f"{LABEL_POOL}={self.name}")

    def wait_until_full(self, limit_s: float = 60) -> None:
        def full() -> bool:
            status = self.status()
            present = [pod for pod in self.pods() if "deletionTimestamp" not in pod["metadata"]]
            return status.get("available") == self.replicas == len(present)

        wait_until(f"the pool has {self.replicas} spares", full, limit_s, seen=self.text)

    @contextlib.contextmanager
    def watched(self) -> Iterator[Claimable]:
        """The spares that a job could claim, from each event of the pool's pods, and not from the operator's status."""
        query = urlencode({"labelSelector": f"{LABEL_POOL}={self.name}", "watch": "true"})
        path = f"/api/v1/namespaces/{self.namespace}/pods?{query}"
        seen = Claimable()
        with (
            subprocess.Popen(self.cluster.kubectl_command("get", "--raw", path), stdout=subprocess.PIPE) as watch,
            ThreadPoolExecutor(1) as pool,
        ):
            assert watch.stdout is not None
            events = pool.submit(seen.read, watch.stdout)
            try:
                wait_until("the watch has begun", lambda: seen.fewest is not None or events.done(), 30)
                yield seen
                assert not events.done(), "the watch has ended early"
            finally:
                watch.terminate()
                events.result(30)

    def text(self) -> str:
        shown = self.cluster.kubectl("-n", self.namespace, "get", "hotsparepools,tj,pods", "-o", "wide")
        return shown + json.dumps(self.status(), indent=1)

    def _affinity(self) -> Raw:
        affinity: Raw = {}
        if self.nodes:
            expression = {"key": "kubernetes.io/hostname", "operator": "In"}
            among = {"matchExpressions": [{**expression, "values": list(self.nodes)}]}
            first = {"weight": 100, "preference": {"matchExpressions": [{**expression, "values": [self.nodes[0]]}]}}
            affinity["nodeAffinity"] = {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [among]},
                "preferredDuringSchedulingIgnoredDuringExecution": [first],
            }
        if self.alone:
            others = {
                "labelSelector": {"matchLabels": {LABEL_POOL: self.name}},
                "topologyKey": "kubernetes.io/hostname",
            }
            affinity["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [others]}
        return affinity


def preferring(manifest: Raw, *nodes: str) -> Raw:
    """The job's manifest, whose pods prefer these nodes."""
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}
    preferred: list[Any] = [{"weight": 100, "preference": {"matchExpressions": [expression]}}]
    pod = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    return manifest
