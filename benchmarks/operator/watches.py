"""The objects of a namespace, from the API server's watches: pods, and jobs' statuses. Times are time.monotonic().

One watch for pods and one for jobs, the same for each system. The API server closes watches of clients that are slow
for a moment, so a watch that ended continues from its last version. Under load it also refuses watches for some
seconds (429), and then has forgotten the versions before (410): then everything is listed again. A wait ends when its
condition holds, with Unfinished, or with the failure of a program that it depends on.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from benchmarks.child import ChildFailed, Unfinished
from benchmarks.operator.kube import Kube, Refused
from benchmarks.operator.programs import Program
from understudy_protocol.pod import LABEL_JOB_UID

CHECK_S = 1.0
PAUSE_S = 0.05
#: The pause after an answer 429.
BUSY_S = 1.0


class Metadata(msgspec.Struct, rename="camel"):
    name: str
    uid: str
    resource_version: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    deletion_timestamp: str = ""


class Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class Status(msgspec.Struct, rename={"ip": "podIP"}):
    phase: str = ""
    ip: str = ""


class Pod(msgspec.Struct):
    metadata: Metadata
    spec: Spec
    status: Status = msgspec.field(default_factory=Status)

    @property
    def runs(self) -> bool:
        return self.status.phase == "Running" and not self.metadata.deletion_timestamp


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Error(msgspec.Struct):
    code: int
    message: str = ""


_EVENT = msgspec.json.Decoder(_Event)
_ERROR = msgspec.json.Decoder(_Error)
_POD = msgspec.json.Decoder(Pod)


class Pods:
    """The current pods, and when new ones were first seen, and first seen running."""

    def __init__(self) -> None:
        self.present: dict[str, Pod] = {}  # by uid
        self.of_job: dict[str, dict[str, Pod]] = defaultdict(dict)  # of ours, by the job's uid
        self.created: dict[str, float] = {}
        self.running: dict[str, float] = {}
        self._old: frozenset[str] = frozenset()

    def begin(self) -> None:
        """The current pods are old: count only those that come after this."""
        self._old = frozenset(self.present)
        self.created, self.running = {}, {}

    def on_event(self, kind: str, raw: msgspec.Raw, now: float) -> str:
        """Returns the object's resourceVersion."""
        pod = _POD.decode(raw)
        uid = pod.metadata.uid
        if kind == "DELETED":
            self._forget(uid)
        else:
            self.present[uid] = self.of_job[_job(pod)][uid] = pod
            if uid not in self._old:
                self._count(uid, pod, now)
        return pod.metadata.resource_version

    def keep(self, objects: Sequence[dict[str, Any]]) -> None:
        """Forget all others."""
        for uid in self.present.keys() - {raw["metadata"]["uid"] for raw in objects}:
            self._forget(uid)

    def _forget(self, uid: str) -> None:
        if pod := self.present.pop(uid, None):
            self.of_job[_job(pod)].pop(uid, None)
        self.running.pop(uid, None)

    def _count(self, uid: str, pod: Pod, now: float) -> None:
        self.created.setdefault(uid, now)
        if pod.runs:
            self.running.setdefault(uid, now)
        else:
            self.running.pop(uid, None)


def _job(pod: Pod) -> str:
    return pod.metadata.labels.get(LABEL_JOB_UID, "")


class Jobs:
    """The jobs' newest states, by name."""

    def __init__(self) -> None:
        self.present: dict[str, dict[str, Any]] = {}

    def on_event(self, kind: str, raw: msgspec.Raw, now: float) -> str:
        """Returns the object's resourceVersion."""
        job = json.loads(bytes(raw))
        if kind == "DELETED":
            self.present.pop(job["metadata"]["name"], None)
        else:
            self.present[job["metadata"]["name"]] = job
        return str(job["metadata"]["resourceVersion"])

    def keep(self, objects: Sequence[dict[str, Any]]) -> None:
        """Forget all others."""
        for name in self.present.keys() - {raw["metadata"]["name"] for raw in objects}:
            del self.present[name]

    def statuses(self) -> list[dict[str, Any]]:
        return [job.get("status", {}) for job in self.present.values()]


class Watches:
    def __init__(self, programs: Callable[[], Sequence[Program]]) -> None:
        """programs: those without which no events come."""
        self.pods, self.jobs = Pods(), Jobs()
        self._programs = programs
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()

    async def until(self, description: str, condition: Callable[[], bool], limit_s: float) -> float:
        """Wait until the condition holds. Returns the time. Raises Unfinished, ChildFailed."""
        start = time.monotonic()
        while not condition():
            now = time.monotonic()
            if now - start >= limit_s:
                raise Unfinished(f"{description}: not within {limit_s:.0f} s", limit_s)
            self._check()
            self._changed.clear()
            try:
                async with asyncio.timeout(min(CHECK_S, limit_s)):
                    await self._changed.wait()
            except TimeoutError:
                continue
        return time.monotonic()

    def _check(self) -> None:
        for program in self._programs():
            program.check()
        for task in self._tasks:
            if task.done():
                raise ChildFailed(f"the {task.get_name()} failed: {task.exception()}")

    async def _follow(self, kube: Kube, path: str, known: Pods | Jobs) -> None:
        version = ""
        while True:
            try:
                async for line in kube.watch(path, version):
                    event = _EVENT.decode(line)
                    if event.type == "ERROR":
                        error = _ERROR.decode(event.object)
                        raise Refused(error.code, error.message)
                    version = known.on_event(event.type, event.object, time.monotonic())
                    self._changed.set()
                await asyncio.sleep(PAUSE_S)
            except Refused as error:
                if error.status == 410:
                    version = await self._list(kube, path, known)
                elif error.status == 429:
                    await asyncio.sleep(BUSY_S)
                else:
                    raise

    async def _list(self, kube: Kube, path: str, known: Pods | Jobs) -> str:
        """Returns the resourceVersion of the list."""
        answer = await kube.call("GET", path)
        known.keep(answer["items"])
        for raw in answer["items"]:
            known.on_event("MODIFIED", msgspec.Raw(msgspec.json.encode(raw)), time.monotonic())
        self._changed.set()
        return str(answer["metadata"]["resourceVersion"])

    @asynccontextmanager
    async def of(self, kube: Kube, pods: str, jobs: str) -> AsyncIterator[Watches]:
        """Watch these paths while the body runs."""
        followed: tuple[tuple[str, Pods | Jobs], ...] = ((pods, self.pods), (jobs, self.jobs))
        for path, known in followed:
            self._tasks.append(asyncio.create_task(self._follow(kube, path, known), name=f"watch of {path}"))
        try:
            yield self
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
