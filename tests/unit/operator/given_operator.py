"""A whole operator, without a lease, on an API server of dictionaries; coordinators call no pod."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tests.unit.operator.fake_api import CREATED, FakeApi, Raw
from tests.unit.operator.given import IMAGE, KEYRING, TEMPLATE
from tests.unit.operator.metrics.reading import scraped
from understudy_operator.metrics.operator_metrics import OperatorMetrics
from understudy_operator.observe.resync import PATHS
from understudy_operator.observe.store import Kind
from understudy_operator.operator import Operator
from understudy_operator.plan.leadership.shard import SINGLE_SHARD, Shard
from understudy_operator.runtime.api import ApiError, Keep, ObjectList
from understudy_operator.runtime.clock import Clock
from understudy_operator.runtime.decoding import WatchEvent

LIMIT_S = 600.0  # virtual time
JOBS = "/apis/understudy.dev/v1alpha1/namespaces/research/trainingjobs"
PODS = "/api/v1/namespaces/research/pods"
NO_RULES: tuple[Mapping[str, Any], ...] = ()


class ClusterApi(FakeApi):
    """With lists and watches. Only the watch of the kind reports an object that is put with `send_event`."""

    def __init__(self) -> None:
        super().__init__()
        self._streams: dict[str, list[asyncio.Queue[WatchEvent]]] = {}

    async def get(self, path: str) -> Raw:
        if path.count("/") == 2:  # an API group
            raise ApiError(404, "NotFound", f"{path} not found")
        return await super().get(path)

    async def list(self, path: str, selector: str = "", keep: Keep = lambda raw: raw) -> ObjectList:
        group, _, plural = path.rpartition("/")
        label, _, value = selector.partition("=")  # or only a label
        present = [raw for at, raw in self.objects.items() if at.startswith(group) and at.split("/")[-2] == plural]
        labels = [raw["metadata"].get("labels", {}) for raw in present]
        chosen = [not label or (label in of_raw and of_raw[label] == (value or of_raw[label])) for of_raw in labels]
        items = [raw for raw, is_chosen in zip(present, chosen, strict=True) if is_chosen]
        kept = (keep(raw) for raw in json.loads(json.dumps(items)))
        return ObjectList([raw for raw in kept if raw is not None], "1")

    async def watch(self, path: str, selector: str, version: str) -> AsyncGenerator[WatchEvent]:
        del selector, version
        stream: asyncio.Queue[WatchEvent] = asyncio.Queue()
        self._streams.setdefault(path, []).append(stream)
        try:
            while True:
                yield await stream.get()
        finally:
            self._streams[path].remove(stream)

    def send_event(self, kind: Kind, event_type: str, raw: object) -> None:
        for stream in self._streams.get(PATHS[kind][0], ()):
            stream.put_nowait(WatchEvent(event_type, msgspec.Raw(json.dumps(raw).encode())))

    def apply_job(self, name: str = "llm", **changes: Any) -> Raw:
        replicated = {"name": "workers", "template": {"spec": {"parallelism": 2, "template": TEMPLATE}}}
        job = {
            "apiVersion": "understudy.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"namespace": "research", "name": name, "uid": f"uid-{name}", "creationTimestamp": CREATED},
            "spec": {"replicatedJobs": [replicated], "launcher": {"nprocPerNode": 1}},
        }
        return self.put(f"{JOBS}/{name}", {**job, **changes})

    def pods_of(self, name: str) -> Sequence[Raw]:
        """The pods of the job of that name."""
        uid = f"uid-{name}"
        return [raw for raw in self.of_kind("Pod") if raw["metadata"]["labels"]["understudy.dev/job-uid"] == uid]

    def events_on(self, name: str) -> Sequence[Raw]:
        return [raw for raw in self.of_kind("Event") if raw["regarding"]["name"] == name]


class Running:
    def __init__(self, api: ClusterApi, operator: Operator, metrics: OperatorMetrics) -> None:
        self.api, self.operator, self.metrics = api, operator, metrics

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():  # noqa: ASYNC110 (the fake API server has no notification)
                await asyncio.sleep(0.05)

    def logged(self) -> dict[tuple[str, ...], float]:
        """The operator's metrics."""
        return scraped(self.metrics.book.text())

    def failures(self) -> float:
        """Reconciles that have failed because of a bug, and tasks that have ended."""
        errors, ended = "understudy_reconcile_errors_total", "understudy_task_restarts_total"
        metrics = self.metrics.book.registry.restricted_registry([errors, ended]).collect()
        samples = [sample for metric in metrics for sample in metric.samples]
        return sum(x.value for x in samples if x.name == ended or (x.name == errors and x.labels["error"] == "Bug"))

    def task(self, name: str) -> asyncio.Task[Any]:
        """The long-lived task of that name."""
        (found,) = [task for task in asyncio.all_tasks() if task.get_name() == name]
        return found


@asynccontextmanager
async def running(
    api: ClusterApi,
    lease: tuple[str, str] | None = None,
    namespaces: tuple[str, ...] = (),
    shard: Shard = SINGLE_SHARD,
    wall: Callable[[], float] | None = None,
) -> AsyncIterator[Running]:
    """wall: Unix time. By default it follows the loop like the other clock: in virtual time an hour takes seconds."""
    loop, metrics = asyncio.get_running_loop(), OperatorMetrics()
    started_at, began = time.time(), loop.time()
    operator = Operator(
        lambda _: api,
        KEYRING,
        IMAGE,
        lease,
        "test",
        Clock(wall or (lambda: started_at + loop.time() - began), loop.time),
        network_rules=NO_RULES,
        watches=Kind,
        namespaces=namespaces,
        metrics=metrics,
        shard=shard,
    )
    operator.start()
    try:
        yield Running(api, operator, metrics)
    finally:
        await operator.stop()
