"""The RL example's TrainingJob on the local cluster: the objects of `kubectl apply -k examples/rl`, with local changes.

The changes are the image (Debian's Python), torch and aiohttp (mounted from the host), and the pace. Clients on this
machine call the gateways at their pods' addresses all the time, and check every answer: it is a function of the
weights' version. A client's error fails the test.
"""

import asyncio
import contextlib
import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.cluster import Cluster
from tests.cluster.commands import Progress
from tests.cluster.locks import locked
from tests.cluster.torch_install import torch_python
from tests.e2e.objects import listed, read
from tests.e2e.training import CHECKOUT, LABEL_JOB, TORCH, Raw
from tests.e2e.truth import Step, Steps
from tests.e2e.waiting import wait_for_status

EXAMPLE = CHECKOUT / "examples" / "rl"
LIBRARIES = "/libraries"
GATEWAY_PORT = 8080
AIOHTTP = "aiohttp>=3.14,<4"
INSTALL_LIMIT_S = 120
#: curl's exit codes if there is no connection: refused or no route, and timed out.
NO_CONNECTION = (7, 28)


class Judgement(StrEnum):
    """The result for an answer with status 200. Only WHOLE is right."""

    WHOLE = "whole"
    MIXED = "MIXED"  # tokens of several versions, or of another one than the header names
    UNKNOWN = "UNKNOWN"  # no tokens, or one that no version produces: torn weights
    UNLABELED = "UNLABELED"  # no header that names a version


def judged(tokens: Sequence[object], header: str | None, versions: Mapping[float, int]) -> Judgement:
    """versions: by the token that the weights of the version produce."""
    found = {versions.get(token) if isinstance(token, int | float) else None for token in tokens}
    if not found or None in found:
        return Judgement.UNKNOWN
    if header is None or not header.isdecimal():
        return Judgement.UNLABELED
    return Judgement.WHOLE if found == {int(header)} else Judgement.MIXED


class Answers(Counter[str]):
    """Answers by kind. For each address: when the last request was sent that got status 200 (time.monotonic()).

    Not when its answer arrived: on a busy machine a client notices an answer milliseconds later.
    """

    def __init__(self) -> None:
        super().__init__()
        self.request_times: dict[str, float] = {}


def ensure_libraries(cluster: Cluster) -> Path:
    """A folder with aiohttp for the pods' Python, beside torch; it appears when it is complete."""
    target = cluster.torch_path.parent / "rl-libraries"
    with locked(target.with_name(f"{target.name}.lock"), Progress(quiet=True)):  # the tests of both lanes need it
        if not target.exists():
            unfinished = target.with_name(f"{target.name}.unfinished")
            install = [torch_python(), "-m", "pip", "install", "--no-input", "--upgrade"]
            command = [*install, "--target", str(unfinished), AIOHTTP]
            subprocess.run(command, check=True, timeout=INSTALL_LIMIT_S, capture_output=True)
            unfinished.rename(target)
    return target


def token(version: int) -> float:
    """The token of a server with the weights of this version: every parameter of its model is the version.

    Two layers, of 4 to 8 to 1, each with a bias, on an input of ones.
    """
    hidden = 4 * version + version
    return float(8 * version * hidden + version)


def updates_in(log: str) -> list[tuple[float, int, str]]:
    """The time at which the trainer has logged each update (Unix seconds), its number, and whether it succeeded.

    log: with the time before each line, as the kubelet stores it.
    """
    found = []
    for line in log.splitlines():
        at, _, text = line.partition(" ")
        words = text.partition("update ")[2].split()
        if len(words) > 1 and words[0].isdigit() and words[1].rstrip(":") in ("whole", "failed"):
            found.append((datetime.fromisoformat(at).timestamp(), int(words[0]), words[1].rstrip(":")))
    return found


def steps_of(updates: Iterable[tuple[float, int, str]]) -> list[Step]:
    """The trainer steps once per update. Each of its starts, one per round of this job, begins at update 1."""
    steps: list[Step] = []
    number = -1
    for at, update, _ in updates:
        number += update == 1
        steps.append(Step((0, 0, max(number, 0)), at))
    return steps


@dataclass
class RlJob:
    """updates: their number, each with a pause after it and after each tensor (float32 represents the answers of 640
    exactly).
    """

    cluster: Cluster
    namespace: str
    name: str
    updates: int = 500
    pause_s: float = 1.5
    pause_in_transfer_s: float = 0.5
    transfer_timeout_s: float = 30.0
    versions: dict[float, int] = field(init=False)

    def __post_init__(self) -> None:
        self.versions = {token(version): version for version in range(self.updates + 1)}

    def apply(self, **rollouts: Any) -> None:
        """rollouts: changes to spec.rollouts."""
        text = self.cluster.kubectl("kustomize", str(EXAMPLE))
        items = [item for item in yaml.safe_load_all(text) if item]
        for item in items:
            if item["kind"] == "TrainingJob":
                self._localize(item)
                item["spec"]["rollouts"] |= rollouts
        body = {"apiVersion": "v1", "kind": "List", "items": items}
        self.cluster.kubectl("apply", "-n", self.namespace, "-f", "-", input=json.dumps(body))

    def _localize(self, job: Raw) -> None:
        job["metadata"]["name"] = self.name
        mounts = {TORCH: self.cluster.torch_path, LIBRARIES: ensure_libraries(self.cluster)}
        for group in job["spec"]["replicatedJobs"]:
            pod = group["template"]["spec"]["template"]["spec"]
            del pod["initContainers"]
            pod["terminationGracePeriodSeconds"] = 5
            pod["volumes"] = [volume for volume in pod["volumes"] if volume["name"] != "libraries"]
            (container,) = pod["containers"]
            container["image"], container["imagePullPolicy"] = self.cluster.base_image, "IfNotPresent"
            container["resources"] = {"requests": {"cpu": "50m", "memory": "256Mi"}}
            container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] != "libraries"]
            for path, folder in mounts.items():
                name = path.strip("/")
                pod["volumes"].append({"name": name, "hostPath": {"path": str(folder)}})
                container["volumeMounts"].append({"name": name, "mountPath": path, "readOnly": True})
            paths = {"name": "PYTHONPATH", "value": f"{TORCH}:{LIBRARIES}"}
            container["env"] = [paths, *(x for x in container["env"] if x["name"] != "PYTHONPATH")]
            pod["affinity"] = self._affinity()
            if group["name"] == "trainer":
                container["args"] = [
                    f"--updates={self.updates}",
                    f"--pause={self.pause_s}",
                    f"--pause-in-transfer={self.pause_in_transfer_s}",
                    f"--transfer-timeout={self.transfer_timeout_s}",
                ]

    def _affinity(self) -> Raw:
        """Put each pod on a node of its own, so that a fault of a node stops one pod."""
        mates = {"labelSelector": {"matchLabels": {LABEL_JOB: self.name}}, "topologyKey": "kubernetes.io/hostname"}
        return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [mates]}}

    def discard(self) -> None:
        """Delete the job in the background: no other test uses its name."""
        self.cluster.kubectl("-n", self.namespace, "delete", "tj", self.name, "--ignore-not-found", "--wait=false")

    def status(self) -> Raw:
        status: Raw = read(self.cluster, self.namespace, "trainingjobs", self.name).get("status", {})
        return status

    def pods(self, group: str = "") -> list[Raw]:
        """The running pods of one replicatedJob or of all."""
        label = f"{LABEL_JOB}={self.name}" + (f",understudy.dev/replicated-job={group}" if group else "")
        pods = listed(self.cluster, self.namespace, "pods", label)
        return [pod for pod in pods if not group or (running(pod) and "deletionTimestamp" not in pod["metadata"])]

    def logged_updates(self) -> list[tuple[float, int, str]]:
        """All log lines of the running trainer's pod: see updates_in."""
        (trainer,) = self.pods("trainer")
        container = ("-c", "trainer", "--timestamps")
        return updates_in(self.cluster.kubectl("-n", self.namespace, "logs", trainer["metadata"]["name"], *container))

    def reported_steps(self) -> Steps:
        return {"trainer": steps_of(self.logged_updates())}

    def text(self) -> str:
        shown = self.cluster.kubectl("-n", self.namespace, "get", "tj,jobs,pods", "-o", "wide")
        return shown + json.dumps(self.status(), indent=1)

    def wait_for(self, description: str, condition: Any, limit_s: float = 120) -> Raw:
        """The first status that fulfills the condition."""
        return wait_for_status(description, self.status, condition, limit_s, seen=self.text)

    def wait_for_whole_updates(self, number: int = 1) -> Raw:
        """Wait until both replicas are Fresh, and so many updates have succeeded from now on."""
        updates = WholeUpdates(version_of(self.status()), number)
        return self.wait_for("both replicas are Fresh", updates.are_made, 200)

    def wait_for_transfer(self) -> None:
        self.wait_for("an update is under way", lambda s: s.get("rollouts", {}).get("updating") == 2)

    def weights(self, pod: Raw) -> Raw | None:
        """The state of a gateway; None if no process listens at its address."""
        command = ["curl", "-s", "-f", "-m", "5", gateway_url(pod, "/understudy/v1/weights")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return read_weights(done.returncode, done.stdout)

    @contextlib.contextmanager
    def send_from_node(self, pod: Raw) -> Iterator[Counter[str]]:
        """Call the pod's gateway from its own node, again and again. Returns the HTTP statuses of its answers.

        None of them may be 200, and at least one has to be 503: otherwise the gateway was not reached.
        """
        ask = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-m", "5", "--json", '{"tokens": 5}']
        command = self.cluster.node_command(pod["spec"]["nodeName"], *ask, gateway_url(pod, "/generate"))
        statuses: Counter[str] = Counter()
        is_done = threading.Event()

        def ask_again() -> None:
            while not is_done.wait(0.1):
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                statuses[done.stdout if done.returncode == 0 else f"curl: {done.returncode}"] += 1

        with ThreadPoolExecutor(1) as pool:
            requests = pool.submit(ask_again)
            try:
                yield statuses
            finally:
                is_done.set()
                requests.result(30)
        assert statuses["200"] == 0, f"the gateway admitted requests: {statuses}"
        assert statuses["503"] > 0, f"the gateway was not asked: {statuses}"


def gateway_url(pod: Raw, path: str) -> str:
    return f"http://{pod['status']['podIP']}:{GATEWAY_PORT}{path}"


def read_weights(exit_code: int, body: str) -> Raw | None:
    """exit_code: of curl. Any but 0 and "no connection" is an error of the test, and never "gone"."""
    if exit_code in NO_CONNECTION:
        return None
    assert exit_code == 0, f"curl exited {exit_code}"
    weights: Raw = json.loads(body)
    return weights


def running(pod: Raw) -> bool:
    return bool(pod["status"].get("phase") == "Running" and pod["status"].get("podIP"))


@dataclass
class WholeUpdates:
    """Whether so many updates have succeeded since version `oldest`, and both replicas are Fresh.

    After a restart of the job the versions begin with 1 again, because the example saves no checkpoint.
    """

    oldest: int
    number: int

    def are_made(self, status: Raw) -> bool:
        version = version_of(status)
        if 0 < version < self.oldest:
            self.oldest = version
        return status.get("rollouts", {}).get("fresh") == 2 and version >= self.oldest + self.number


def version_of(status: Raw) -> int:
    return int(status.get("rollouts", {}).get("version") or 0)


@contextlib.contextmanager
def clients(job: RlJob) -> Iterator[Answers]:
    """Clients that call all gateways again and again, with the results. An error of a client is raised here."""
    seen = Answers()
    is_done = threading.Event()
    pool = ThreadPoolExecutor(1)
    requests = pool.submit(lambda: asyncio.run(_ask_all(job, seen, is_done)))
    try:
        yield seen
    finally:
        is_done.set()
        pool.shutdown(wait=False)
        requests.result(30)
    wrong = {kind: seen[kind] for kind in Judgement if kind is not Judgement.WHOLE and seen[kind]}
    assert not wrong, f"wrong answers: {seen}"
    assert seen[Judgement.WHOLE] > 0, f"no client has got an answer: {seen}"


async def _ask_all(job: RlJob, seen: Answers, is_done: threading.Event) -> None:
    asking: dict[str, asyncio.Task[None]] = {}
    limits = aiohttp.ClientTimeout(total=10)
    async with aiohttp.ClientSession(timeout=limits) as session, asyncio.TaskGroup() as group:
        while not is_done.is_set():
            pods = await asyncio.to_thread(job.pods, "rollout")
            for address in {pod["status"]["podIP"] for pod in pods} - asking.keys():
                asking[address] = group.create_task(_ask(session, address, job.versions, seen))
            await asyncio.sleep(1)
        for task in asking.values():
            task.cancel()


async def _ask(session: aiohttp.ClientSession, address: str, versions: Mapping[float, int], seen: Answers) -> None:
    while True:
        sent_at = time.monotonic()
        try:
            async with session.post(f"http://{address}:{GATEWAY_PORT}/generate", json={"tokens": 5}) as response:
                body = await response.text()
        except (aiohttp.ClientError, TimeoutError):
            seen["broken off"] += 1
            await asyncio.sleep(0.1)
            continue
        if response.status != 200:
            seen[f"status {response.status}"] += 1
            await asyncio.sleep(0.05)
            continue
        seen.request_times[address] = sent_at
        seen[judged(json.loads(body)["tokens"], response.headers.get("Understudy-Weight-Version"), versions)] += 1
