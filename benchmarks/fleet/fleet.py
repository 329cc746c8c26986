"""One fleet: its cluster, its operators, its jobs, and the cases.

Rules: each node renews its Lease every 10 s and writes its status every five minutes, in all cases. Each job reports a
step every STEP_S, in all cases but `empty`. A case has a sample for each process of the operator.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp

from benchmarks.fleet.plan import Case, Fleet, Strike, strikes
from benchmarks.machine import Usage
from benchmarks.nodes import a_node
from benchmarks.operator import audit, cluster, settings
from benchmarks.operator.cluster import Cluster, in_parallel, until
from benchmarks.operator.exposition import histogram
from benchmarks.operator.following import Following
from benchmarks.operator.manifests import TRAINING_JOB, Raw, node, path, training_job
from benchmarks.operator.meter import Meter
from benchmarks.operator.programs import Program
from benchmarks.operator.settings import Files, User
from benchmarks.operator.sidecars import PlayedJob, Sidecars
from benchmarks.operator.systems import HEALTH_PORT, start_operator
from benchmarks.operator.watches import Watches
from tests.cluster.commands import Progress
from tests.soak.invariants import percentiles
from understudy_protocol.pod import ANNOTATION_FAULTY

STEP_S = 10.0
#: A node changes a label this often: a device plugin or a health checker reports something.
LABEL_S = 600.0
#: A node that has got a verdict keeps it for so long.
VERDICT_S = 10.0
SETTLE_S = 10.0
LIMIT_S = 300.0
#: As a kubelet, which renews its Lease four times in its duration.
LEASE_S = 40
ETCD_BYTES = 4 << 30
METRICS_PORT = 8091
LEASE = "default/understudy-operator"
JOBS = path(TRAINING_JOB, "").replace("/namespaces/", "")
QUEUE, RECONCILE = "understudy_queue_seconds", "understudy_reconcile_seconds"


@dataclass(frozen=True)
class Operator:
    """One process of the operator."""

    program: Program
    port: int  # of its metrics

    async def metrics(self) -> str:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.port}/metrics") as response:
            return await response.text()

    async def leads(self) -> bool:
        try:
            return re.search(r"^understudy_leader{.*} 1.0$", await self.metrics(), re.MULTILINE) is not None
        except aiohttp.ClientError:
            return False


@dataclass
class Life:
    """A fleet that runs."""

    fleet: Fleet
    cluster: Cluster
    watches: Watches
    sidecars: Sidecars
    operators: Sequence[Operator] = ()
    jobs: list[PlayedJob] = field(default_factory=list)
    recovering: dict[str, asyncio.Lock] = field(default_factory=dict)  # by job

    @property
    def programs(self) -> tuple[Program, ...]:
        return (*self.cluster.programs, *(x.program for x in self.operators))

    @asynccontextmanager
    async def operated(self, shards: int) -> AsyncIterator[None]:
        """While the body runs, so many shards of the operator lead and follow all jobs."""
        for job in self.jobs:
            job.seen.clear()
        async with AsyncExitStack() as stack:
            operators = []
            for index in range(shards):
                env = {"UNDERSTUDY_METRICS_PORT": str(METRICS_PORT + index)}
                if shards > 1:
                    env |= {"UNDERSTUDY_LEASE": LEASE, "UNDERSTUDY_SHARD": f"{index}/{shards}"}
                    env |= {"UNDERSTUDY_SHARD_NAMESPACES": self.fleet.listed_shards}
                program = start_operator(self.cluster.files, f"understudy-{index}", HEALTH_PORT + index, env)
                operators.append(Operator(stack.enter_context(program), METRICS_PORT + index))
            self.operators = operators
            for operator in operators:
                await until(f"{operator.program.name} leads", operator.leads, self.programs)
            await self.watches.until("all jobs followed", lambda: all(x.seen.is_set() for x in self.jobs), LIMIT_S)
            yield
        self.operators = ()

    async def start_jobs(self) -> None:
        """Some at a time."""
        sizes = self.fleet.job_sizes

        async def start(number: int) -> None:
            name, namespace = f"job-{number}", self.fleet.namespace_of(number)
            raw = await self.cluster.kube.call("POST", path(TRAINING_JOB, namespace), training_job(name, sizes[number]))
            job = self.sidecars.play(raw["metadata"]["uid"], name, sizes[number], namespace)
            self.jobs.append(job)
            self.recovering[name] = asyncio.Lock()
            await self.watches.until(f"{name} runs", partial(self._runs, job), LIMIT_S)

        await in_parallel(start, range(self.fleet.jobs))
        self.jobs.sort(key=lambda job: int(job.name.removeprefix("job-")))

    def _runs(self, job: PlayedJob) -> bool:
        status = self.watches.jobs.present.get(job.name, {}).get("status", {})
        return job.round >= 0 and status.get("phase") == "Running"

    # The cases --------------------------------------------------------------------------------------------------------

    async def measure(self, case: Case, faults_per_s: float, seconds: float) -> list[dict[str, float]]:
        """The values of each process of the operator."""
        await asyncio.sleep(min(SETTLE_S, seconds))
        struck = strikes(self.fleet, faults_per_s, seconds)
        cases: dict[Case, Callable[[], Awaitable[dict[str, float]]]] = {
            Case.FAULTS: lambda: self._faults(struck),
            Case.VERDICTS: lambda: self._verdicts(struck),
        }
        meters = [Meter(self.cluster, x.program, User.UNDERSTUDY) for x in self.operators]
        before = [await x.metrics() for x in self.operators]
        for meter in meters:
            await meter.begin()
        start = time.monotonic()
        loads = [self._steps()] + ([self._labels()] if case not in (Case.EMPTY, Case.IDLE) else [])
        async with _while(loads):
            found, _ = await asyncio.gather(cases.get(case, _nothing)(), asyncio.sleep(seconds))
        took_s = time.monotonic() - start
        ends = [await meter.end() for meter in meters]
        after = [await x.metrics() for x in self.operators]
        used_mb = sum(program.usage.rss_mb for program in self.programs) + Usage.of(os.getpid()).rss_mb
        values = []
        for operator, meter, spent, first, last in zip(self.operators, meters, ends, before, after, strict=True):
            waited = histogram(last, QUEUE) - histogram(first, QUEUE)
            reconciled = histogram(last, RECONCILE) - histogram(first, RECONCILE)
            requests = [audit.total(meter.last, (User.UNDERSTUDY,), verbs) for verbs in (audit.READS, audit.WRITES)]
            values.append(
                {
                    "cpu_percent": 100 * spent["cpu_s"] / took_s,
                    "cpu_s": spent["cpu_s"],
                    "rss_mb": operator.program.usage.rss_mb,
                    "reconciles": reconciled.count / took_s,
                    "queue_p50_ms": 1000 * waited.quantile(0.5),
                    "queue_p99_ms": 1000 * waited.quantile(0.99),
                    # The audit log has one user for all shards.
                    "reads_per_s": requests[0] / took_s,
                    "writes_per_s": requests[1] / took_s,
                    "api_server_cpu_percent": 100 * spent["api_server_cpu_s"] / took_s,
                    "all_programs_mb": used_mb,
                    "measured_s": took_s,
                    "nodes": self.fleet.nodes,
                    "jobs": len(self.jobs),
                }
                | found
            )
        return values

    async def _faults(self, struck: Sequence[Strike]) -> dict[str, float]:
        """From the report of each fault to the status with it."""

        async def strike(fault: Strike) -> float:
            job = self.jobs[fault.job]
            following = Following({job.uid: job}, self.watches)
            async with self.recovering[job.name]:
                if fault.loses_pod and job.pods > 1:
                    return await following.lose_pod(self.sidecars, LIMIT_S)
                return await following.recover_in_place(LIMIT_S)

        delays = [1000 * delay for delay in await _at_their_times(struck, strike)]
        p50, p99, most = percentiles(delays, (0.5, 0.99, 1.0))
        return {"faults": len(delays), "p50_ms": p50, "p99_ms": p99, "max_ms": most}

    async def _verdicts(self, struck: Sequence[Strike]) -> dict[str, float]:
        """A node of the struck job has a verdict about its hardware for a while."""

        async def strike(fault: Strike) -> float:
            snapshot = self.jobs[fault.job].snapshot
            assert snapshot is not None
            name = f"/api/v1/nodes/{snapshot.members[0].node}"
            for value in ("the benchmark", None):
                body = {"metadata": {"annotations": {ANNOTATION_FAULTY: value}}}
                await self.cluster.kube.call("PATCH", name, body)
                await asyncio.sleep(VERDICT_S)
            return VERDICT_S

        return {"faults": len(await _at_their_times(struck, strike))}

    # What happens meanwhile -------------------------------------------------------------------------------------------

    async def _steps(self) -> None:
        number = 0
        while True:
            number += 1
            if not self.jobs:
                await asyncio.sleep(STEP_S)
            for job in list(self.jobs):
                if not self.recovering[job.name].locked():
                    await job.step(number)
                await asyncio.sleep(STEP_S / len(self.jobs))

    async def _labels(self) -> None:
        number = 0
        while True:
            number += 1
            body = {"metadata": {"labels": {"example.com/changes": str(number)}}}
            await self.cluster.kube.call("PATCH", f"/api/v1/nodes/n{number * 37 % self.fleet.nodes}", body)
            await asyncio.sleep(LABEL_S / self.fleet.nodes)


def fleet_node(number: int, pods: int) -> Raw:
    """A typical cloud node, with room for that many pods."""
    typical, room = a_node(number), {**node(number)["status"]["allocatable"], "pods": str(pods)}
    return {**typical, "apiVersion": "v1", "status": {**typical["status"], "allocatable": room, "capacity": room}}


@asynccontextmanager
async def running(binaries: Path, fleet: Fleet) -> AsyncIterator[Life]:
    """The fleet without its jobs and its operator."""
    stages = Path(__file__).parent / "heartbeats.yaml"

    def kwok(files: Files) -> list[str]:
        return settings.kwok(files, LEASE_S, stages)

    make_node = partial(fleet_node, pods=fleet.pods_of_a_node)
    started = cluster.running(
        binaries, None, fleet.nodes, Progress(), shipped=False, etcd_bytes=ETCD_BYTES, kwok=kwok, make_node=make_node
    )
    async with started as present:
        await in_parallel(present.namespace, sorted({fleet.namespace_of(job) for job in range(fleet.jobs)}))
        life: Life
        watches = Watches(lambda: life.programs)
        life = Life(fleet, present, watches, Sidecars(present.kube, "", watches))
        await life.sidecars.start()
        try:
            async with watches.of(present.kube, "/api/v1/pods", JOBS):
                yield life
        finally:
            await life.sidecars.stop()


async def _at_their_times(struck: Sequence[Strike], do: Callable[[Strike], Awaitable[float]]) -> list[float]:
    async def one(fault: Strike) -> float:
        await asyncio.sleep(fault.at_s)
        return await do(fault)

    return await asyncio.gather(*(one(fault) for fault in struck))


@asynccontextmanager
async def _while(loads: Sequence[Awaitable[None]]) -> AsyncIterator[None]:
    """The loads run while the body runs. Raises the error of a load."""
    tasks = [asyncio.ensure_future(load) for load in loads]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _nothing() -> dict[str, float]:
    return {}
