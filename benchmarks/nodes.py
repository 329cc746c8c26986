"""`make bench-nodes`: the operator's CPU time for changes of nodes, with 500 jobs on 5,000 nodes. Five minutes.

The real operator, store, watch and reconciles run in this process; the API server and the coordinators are synthetic.
All jobs are running and idle, and 10 lines a second come from the watch of nodes (none in `idle`). A sample is the CPU
time of this process in some seconds of that, in percent of a core.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from unittest import mock

import msgspec

from benchmarks.arguments import listed, some_of
from benchmarks.goals import UNDERSTUDY, Goal
from benchmarks.records import Sample
from benchmarks.report import add_arguments, open_journal, show
from understudy_operator.controllers import job_worker as worker
from understudy_operator.observe.read import read_job
from understudy_operator.observe.store import Kind
from understudy_operator.operator import Operator
from understudy_operator.plan.facts.keyring import Keyring
from understudy_operator.plan.facts.observed import Coordination
from understudy_operator.plan.facts.ownership import API_VERSION
from understudy_operator.plan.intents import Follow
from understudy_operator.plan.manifests.pods import pod_manifest
from understudy_operator.plan.reconcile import reconcile
from understudy_operator.runtime.api import Api, ApiError, Keep, ObjectList
from understudy_operator.runtime.clock import Clock
from understudy_operator.runtime.decoding import WatchEvent
from understudy_protocol import pod as names
from understudy_protocol.enums import RoundToken, WorkersState
from understudy_protocol.observer import End, MemberView, Snapshot

JOBS, NODES, PODS, UPDATES_PER_S = 500, 5_000, 10, 10.0
CASES = ("idle", "labels", "heartbeats")
GOALS = (
    Goal("labels", NODES, "cpu_percent", at_most=20.0),
    Goal("heartbeats", NODES, "cpu_percent", at_most=20.0),
)
KEYRING = Keyring(b"the master secret of this benchmark, of 46 B.")
NAMESPACE, IMAGE, CREATED = "research", "example.com/sidecar:1", "2026-11-20T10:00:00Z"
Raw = dict[str, Any]


class Cluster(Api):
    """An API server that stores all written objects. Each job runs with a coordinator and with all of its pods."""

    def __init__(self, jobs: int, nodes: int, pods: int) -> None:
        super().__init__(None)
        self._versions = itertools.count(1000)
        self.objects: dict[str, Raw] = {}
        self.coordination: dict[str, Coordination] = {}
        self.received: asyncio.Queue[WatchEvent] = asyncio.Queue()
        for number in range(nodes):
            self.put(f"/api/v1/nodes/n{number}", a_node(number))
        for number in range(jobs):
            self._add_job(f"job-{number}", [f"n{(number * pods + pod) % nodes}" for pod in range(pods)])

    def put(self, path: str, raw: Mapping[str, Any]) -> Raw:
        kept = {**raw, "metadata": {**raw["metadata"], "resourceVersion": str(next(self._versions))}}
        kept["metadata"].setdefault("uid", f"uid-{path}")
        kept["metadata"].setdefault("creationTimestamp", CREATED)
        if kept.get("kind") == "Service":
            kept["spec"] = {**kept["spec"], "clusterIP": "10.0.0.7"}
        self.objects[path] = kept
        return kept

    def change_node(self, number: int, change: Callable[[Raw], None]) -> None:
        """Change the node, and send a line of its watch."""
        path = f"/api/v1/nodes/n{number}"
        raw = json.loads(json.dumps(self.objects[path]))
        change(raw)
        line = json.dumps(self.put(path, raw)).encode()
        self.received.put_nowait(WatchEvent("MODIFIED", msgspec.Raw(line)))

    async def list(self, path: str, selector: str = "", keep: Keep = lambda raw: raw) -> ObjectList:
        del selector
        plural = path.rpartition("/")[2]
        items = [raw for key, raw in self.objects.items() if key.split("/")[-2] == plural]
        return ObjectList(items, str(next(self._versions)))

    async def list_first(self, path: str, selector: str, fields: str, limit: int) -> Any:
        del path, selector, fields, limit
        return []

    async def watch(self, path: str, selector: str, version: str) -> AsyncGenerator[WatchEvent]:
        del selector, version
        while True:
            yield await (self.received.get() if path == "/api/v1/nodes" else asyncio.Future())

    async def get(self, path: str) -> Raw:
        if path not in self.objects:
            raise ApiError(404, "NotFound", path)
        return self.objects[path]

    async def create(self, path: str, body: Mapping[str, Any]) -> Raw:
        return self.put(f"{path}/{body['metadata']['name']}", body)

    async def dry_run(self, path: str, body: Mapping[str, Any]) -> None:
        del path, body

    async def replace(self, path: str, body: Mapping[str, Any]) -> Raw:
        path = path.removesuffix("/status")
        return self.put(path, {**self.objects[path], "status": body["status"]})

    async def merge(self, path: str, body: Mapping[str, Any]) -> Raw:
        known = self.objects[path]
        result = {field: {**known["metadata"].get(field, {}), **value} for field, value in body["metadata"].items()}
        return self.put(path, {**known, "metadata": {**known["metadata"], **result}})

    def _add_job(self, name: str, nodes: Sequence[str]) -> None:
        container = {"name": "trainer", "image": "example.com/t:1", "command": ["python", "train.py"]}
        template = {"parallelism": len(nodes) - 1, "template": {"spec": {"containers": [container]}}}
        path = f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/trainingjobs/{name}"
        raw = self.put(
            path,
            {
                "apiVersion": API_VERSION,
                "kind": "TrainingJob",
                "metadata": {"namespace": NAMESPACE, "name": name, "generation": 1},
                "spec": {
                    "replicatedJobs": [{"name": "workers", "template": {"spec": template}}],
                    "launcher": {"nprocPerNode": 1},
                    "spares": {"replicas": 1, "topologyKey": "example.com/rack"},
                },
            },
        )
        job, members = read_job(raw), []
        for index, node in enumerate(nodes):
            rank = index if index < len(nodes) - 1 else None
            pod = pod_manifest(job, index=rank, serial=f"s-{index}", facts="facts", sidecar_image=IMAGE)
            sidecar = {"name": names.SIDECAR_CONTAINER, "started": True, "state": {"running": {}}}
            pod["spec"]["nodeName"] = node
            pod["status"] = {"phase": "Running", "podIP": "10.1.0.1", "initContainerStatuses": [sidecar]}
            pod["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
            kept = self.put(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}", pod)
            uid = kept["metadata"]["uid"]
            state = WorkersState.IDLE if rank is None else WorkersState.RUNNING
            members.append(MemberView(uid, pod["metadata"]["name"], node, rank, rank, state))
        holder = members[-1]
        self.objects[path]["status"] = {
            "coordinator": {"epoch": 7, "term": 1, "podName": holder.pod_name, "podUID": holder.pod_uid},
            "round": 0,
        }
        token = RoundToken(7, 1, 0)
        result = Snapshot(token, holder.pod_uid, tuple(members), (), (), {}, None, "", None)
        self.coordination[job.membership] = Coordination(result, holder.pod_uid, time.time())


class Link:
    """Replaces CoordinatorLink: a connection without new messages."""

    has_ended = False

    def __init__(self, known: Mapping[str, Coordination], job_uid: str, *_: object) -> None:
        self.coordination = known[job_uid]

    def follow(self, follow: Follow) -> None:
        del follow

    async def end(self, end: End) -> None:
        del end

    async def close(self) -> None:
        pass


def a_node(number: int) -> Raw:
    """With the fields of a typical cloud node."""
    labels = {f"example.com/label-{index}": f"value-{index}" for index in range(20)}
    labels |= {"kubernetes.io/hostname": f"n{number}", "example.com/rack": f"rack-{number // 20}"}
    pressures = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
    times = {"lastHeartbeatTime": CREATED, "lastTransitionTime": CREATED}
    conditions = [{"type": kind, "status": "False", "reason": "Fine", "message": "fine", **times} for kind in pressures]
    conditions.append({"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready", **times})
    images = [{"names": [f"example.com/image-{index}:1"], "sizeBytes": 10**9} for index in range(50)]
    metadata = {"name": f"n{number}", "labels": labels, "annotations": {"example.com/a": "b" * 200}}
    return {"kind": "Node", "metadata": metadata, "spec": {}, "status": {"conditions": conditions, "images": images}}


def _label(at: int, raw: Raw) -> None:
    raw["metadata"]["labels"]["example.com/changes"] = str(at)


def _heartbeat(at: int, raw: Raw) -> None:
    for condition in raw["status"]["conditions"]:
        condition["lastHeartbeatTime"] = f"2026-11-21T10:{at // 60 % 60:02}:{at % 60:02}Z"


CHANGES: Mapping[str, Callable[[int, Raw], None]] = {"labels": _label, "heartbeats": _heartbeat}  # idle: none


class Counted:
    """Counts reconciles, in place of the plan's own function."""

    def __init__(self) -> None:
        self.count, self._plan = 0, reconcile
        self.operator: Operator | None = None  # once it has started

    def __call__(self, *given: Any) -> Any:
        self.count += 1
        return self._plan(*given)


@asynccontextmanager
async def idle_cluster(cluster: Cluster, idle_s: float) -> AsyncIterator[Counted]:
    """The operator, once all jobs run and no reconcile has anything to do."""
    counted = Counted()
    with (
        mock.patch.object(worker, "CoordinatorLink", partial(Link, cluster.coordination)),
        mock.patch.object(worker, "reconcile", counted),
    ):
        watches = (Kind.POD, Kind.NODE)
        operator = Operator(lambda _: cluster, KEYRING, IMAGE, None, "bench", Clock(), watches=watches)
        operator.start()
        counted.operator = operator
        try:
            # Without a cause each job is reconciled every 30 s.
            before, jobs = 0, len(cluster.coordination)
            while not operator.synced or counted.count < jobs or counted.count - before > jobs * idle_s / 20.0:
                before = counted.count
                await asyncio.sleep(idle_s)
            yield counted
        finally:
            await operator.stop()


async def change_nodes(cluster: Cluster, case: str, nodes: int, count: int, per_s: float) -> None:
    for at in range(count):
        if case in CHANGES:
            cluster.change_node(at * 37 % nodes, partial(CHANGES[case], at))
        await asyncio.sleep(1.0 / per_s)


async def measure(
    left: Sequence[tuple[str, int]], jobs: int, nodes: int, seconds: float, keep: Callable[[Sample], None]
) -> None:
    """left: pairs of a case and a run number."""
    cluster = Cluster(jobs, nodes, PODS)
    async with idle_cluster(cluster, idle_s=3.0) as counted:
        for case, run in left:
            began, cpu, reconciles = time.perf_counter(), time.process_time(), counted.count
            await change_nodes(cluster, case, nodes, int(seconds * UPDATES_PER_S), UPDATES_PER_S)
            took_s = time.perf_counter() - began
            percent = 100.0 * (time.process_time() - cpu) / took_s
            values = {"cpu_percent": percent, "reconciles": (counted.count - reconciles) / took_s}
            keep(Sample(UNDERSTUDY, case, nodes, run, values))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench-nodes ARGS=", description=__doc__)
    parser.add_argument("--cases", type=listed(CASES), default=CASES, help=some_of(CASES))
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run: each job is looked at every 30 s")
    add_arguments(parser)
    chosen = parser.parse_args(arguments)
    logging.basicConfig(level=logging.ERROR)
    journal = open_journal("nodes", chosen)
    planned = [(case, run) for case in chosen.cases for run in range(chosen.runs)]
    left = [(case, run) for case, run in planned if not journal.has(UNDERSTUDY, case, chosen.nodes, run)]
    try:
        if left:
            asyncio.run(measure(left, chosen.jobs, chosen.nodes, chosen.seconds, lambda x: journal.add([x])))
    finally:
        journal.close()
    show(journal, GOALS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
