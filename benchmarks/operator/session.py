"""One session: starts a system, creates jobs, and runs the cases, with a sample for each.

Rules: the system and its namespace are ready before the clock starts, and gone before the next session. Preparations of
a case (pods that run) are not timed. After a case that did not finish, the session ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from benchmarks.child import Unfinished
from benchmarks.operator import audit, manifests, pod_parts
from benchmarks.operator.agents import Agents
from benchmarks.operator.cluster import Cluster, answers, in_parallel, until
from benchmarks.operator.following import CHANGES, PAUSE_S, Following
from benchmarks.operator.jobset_build import Built
from benchmarks.operator.kube import Kube, Refused
from benchmarks.operator.meter import Meter
from benchmarks.operator.plan import IDLE_S, LIMIT_S, Case, Session
from benchmarks.operator.programs import Program
from benchmarks.operator.settings import User
from benchmarks.operator.sidecars import PlayedJob, Sidecars
from benchmarks.operator.systems import Setup, restarted
from benchmarks.operator.watches import Watches
from benchmarks.records import Sample
from understudy_protocol.enums import WorkersState

SETTLE_S = 3.0
#: Late writes, such as events, belong to the case as well.
AFTERMATH_S = 5.0

METRICS = {
    Case.CREATE: ("created_s", "running_s", "reported_s"),
    Case.JOBS_CREATE: ("created_s", "running_s", "reported_s"),
    Case.SHIPPED_CREATE: ("created_s", "running_s", "reported_s"),
    Case.MANY_CREATE: ("created_s", "running_s", "reported_s"),
    Case.RECREATE: ("running_s", "reported_s"),
    Case.JOBS_RECREATE: ("running_s", "reported_s"),
    Case.SHIPPED_RECREATE: ("running_s", "reported_s"),
    Case.MANY_RECREATE: ("running_s", "reported_s"),
    Case.REST: ("cpu_percent", "rss_mb"),
    Case.POD: ("pod_bytes",),
    Case.START: ("ready_s",),
    Case.BESIDE: ("alone_s", "others_s", "seconds", "wait_s"),
}


class Skipped(Exception):
    """The system cannot run this session's cases. The message has the reason."""


@dataclass
class Life:
    """The objects that a session's cases use."""

    setup: Setup
    cluster: Cluster
    namespace: str
    program: Program
    watches: Watches
    sidecars: Sidecars

    @property
    def session(self) -> Session:
        return self.setup.session

    @property
    def kube(self) -> Kube:
        return self.cluster.kube

    def meter(self) -> Meter:
        return Meter(self.cluster, self.program, self.setup.user)

    # The cases ------------------------------------------------------------------------------------------------------

    async def create(self) -> dict[str, float]:
        """Raises Skipped if the API server rejects the job, because the system's version does not support it."""
        size, meter, watches = self.session.pods, self.meter(), self.watches
        await meter.begin()
        start = time.monotonic()
        try:
            await in_parallel(self._post, range(self.session.jobs))
        except Refused as refused:
            raise Skipped(f"the API server refuses its job: {refused.message}") from refused
        await watches.until("all pods created", lambda: len(watches.pods.created) >= size, LIMIT_S)
        created = max(watches.pods.created.values())
        running, result = await self._until_well(lambda: self.setup.all_well(watches.jobs.statuses()))
        took = {"created_s": created - start, "running_s": running - start, "reported_s": result - start}
        return took | await meter.end()

    async def recreate(self) -> dict[str, float]:
        """A pod of each job fails, or its coordinator closes it as failed. Then all pods are recreated."""
        meter, watches, launcher = self.meter(), self.watches, self.setup.launcher
        first = [next(iter(pods)) for pods in self._pods_by_job().values()]
        watches.pods.begin()
        await meter.begin()
        start = time.monotonic()
        if launcher:
            await in_parallel(PlayedJob.fail, list(self.sidecars.jobs.values()))
        else:
            await in_parallel(self._fail, first)
        running, result = await self._until_well(lambda: restarted(watches.jobs.statuses(), launcher=launcher))
        return {"running_s": running - start, "reported_s": result - start} | await meter.end()

    async def wait_idle(self) -> dict[str, float]:
        """Nothing happens, except that a training reports steps."""
        await asyncio.sleep(SETTLE_S)
        meter = self.meter()
        await meter.begin()
        before = self.program.usage
        async with self._training():
            await asyncio.sleep(IDLE_S)
        after, took = self.program.usage, await meter.end()
        share = {"cpu_percent": 100 * (after.cpu_s - before.cpu_s) / IDLE_S, "rss_mb": after.rss_mb}
        return share | {name: took[name] for name in ("api_writes", "api_reads", "api_mb")}

    async def start_again(self) -> dict[str, float]:
        """Kill the operator with SIGKILL, and start a new one. Measures until its status follows the coordinator."""
        following = Following(self.sidecars.jobs, self.watches)
        following.forget_callers()
        self.program.kill()
        self.program = self.setup.start()
        ready = await following.until_followed(LIMIT_S)
        return {"ready_s": ready - self.program.started_at, "peak_rss_mb": self.program.usage.peak_rss_mb}

    async def status(self) -> dict[str, float]:
        following = Following(self.sidecars.jobs, self.watches)
        return {"seconds": await following.longest_delay(LIMIT_S)}

    async def in_place(self) -> dict[str, float]:
        meter = self.meter()
        if self.setup.is_understudy:
            await asyncio.sleep(AFTERMATH_S)
            await meter.begin()
            await Following(self.sidecars.jobs, self.watches).recover_in_place(LIMIT_S)
            took = {}
        else:
            async with Kube(self.cluster.files, User.AGENTS) as kube:
                agents = Agents(kube, self.namespace, self.watches)
                await agents.start(LIMIT_S)
                await asyncio.sleep(AFTERMATH_S)
                await meter.begin()
                took = {"seconds": await agents.restart(LIMIT_S)}
        await asyncio.sleep(AFTERMATH_S)
        spent = await meter.end()
        return took | {name: spent[name] for name in ("api_writes", "api_reads", "api_mb")}

    async def beside(self) -> dict[str, float]:
        """A small job reports rounds: alone, while the Job controller creates as many pods, and while the operator
        itself does for another job. Measures the longest time until the operator's write arrives at the API server,
        whose own time does not count. The second shows what the busy machine costs, without the operator's own work.
        """
        (small,) = self.sidecars.jobs.values()
        alone, present = await self._longest_until_written(small), self.watches.pods.present
        before = len(present)
        jobs = f"/apis/batch/v1/namespaces/{self.namespace}/jobs"
        plain = manifests.plain_job("plain", self.session.size)
        others = await self._longest_while_created(small, self.kube.call("POST", jobs, plain))
        await self.kube.call("DELETE", f"{jobs}/plain", propagationPolicy="Background")
        await self.watches.until("the plain Job's pods gone", lambda: len(present) == before, LIMIT_S)
        own = await self._longest_while_created(small, self._post(1, self.session.size))
        return {"alone_s": alone, "others_s": others, "seconds": own, "wait_s": max(0.0, own - others)}

    async def _longest_while_created(self, small: PlayedJob, post: Awaitable[object]) -> float:
        """post: the request that makes somebody create the session's number of pods."""
        pods, size = self.watches.pods, self.session.size
        pods.begin()
        await post
        await self.watches.until("a tenth of the pods created", lambda: len(pods.created) >= size // 10, LIMIT_S)
        longest = await self._longest_until_written(small)
        if len(pods.created) >= size:
            raise Unfinished("all pods were created before the small job had reported", LIMIT_S)
        await self.watches.until("all pods created", lambda: len(pods.created) >= size, LIMIT_S)
        return longest

    async def _longest_until_written(self, job: PlayedJob) -> float:
        log, took = self.cluster.files.audit_log, list[float]()
        for _ in range(CHANGES):
            start, at = log.stat().st_size, time.time()
            assert job.snapshot is not None
            await job.report(job.next_round(WorkersState.RUNNING, job.snapshot.recoveries))
            status = f"status has round {job.round}"
            await self.watches.until(status, lambda: self._round_of(job) >= job.round, LIMIT_S)
            await asyncio.sleep(PAUSE_S)  # the log has a write a moment after its watch event
            lines = await asyncio.to_thread(audit.lines_of, log, start, log.stat().st_size)
            took.append(audit.arrivals(lines, self.setup.user, "trainingjobs/status", job.name)[0] - at)
        return max(took)

    def _round_of(self, job: PlayedJob) -> int:
        return int(self.watches.jobs.present[job.name].get("status", {}).get("round", -1))

    async def delete(self) -> dict[str, float]:
        meter, watches = self.meter(), self.watches
        await meter.begin()
        start = time.monotonic()
        path, names = self.setup.jobs_path(self.namespace), list(watches.jobs.present)
        await in_parallel(
            lambda name: self.kube.call("DELETE", f"{path}/{name}", propagationPolicy="Background"), names
        )
        gone = await watches.until("all pods gone", lambda: not watches.pods.present, LIMIT_S)
        return {"seconds": gone - start} | await meter.end()

    async def pod_bytes(self) -> dict[str, float]:
        """The size of a pod at its creation, and of the parts of ours that a JobSet's pod does not have. Nothing is
        created for it: the API server answers with the object that it would store.
        """
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        (item,) = (await self.kube.call("GET", path))["items"]
        pod = pod_parts.new_pod(item)

        async def stored(manifest: manifests.Raw) -> manifests.Raw:
            return await self.kube.call("POST", path, manifest, dryRun="All")

        whole = await stored(pod)
        left = pod_parts.size(whole)
        values: dict[str, float] = {"pod_bytes": left, "managed_bytes": pod_parts.managed_size(whole)}
        for metric, smaller in pod_parts.smaller_pods(pod) if self.setup.launcher else ():
            before, left = left, pod_parts.size(await stored(smaller))
            values[metric] = before - left
        return values

    # Parts of the cases -----------------------------------------------------------------------------------------------

    async def _post(self, number: int, pods: int = 0) -> None:
        """pods: only for a job that is not among those created first."""
        manifest = self.setup.manifest(number, pods)
        raw = await self.kube.call("POST", self.setup.jobs_path(self.namespace), manifest, fieldValidation="Strict")
        if self.setup.launcher:
            self.sidecars.play(raw["metadata"]["uid"], raw["metadata"]["name"], pods or self.session.pods_of_a_job)

    async def _until_well(self, result: Callable[[], bool]) -> tuple[float, float]:
        """When the last new pod ran, and when the last status reported that all is well."""
        pods, size = self.watches.pods, self.session.pods
        await self.watches.until("all pods running", lambda: len(pods.running) >= size, LIMIT_S)
        running = max(pods.running.values())
        at = await self.watches.until("all statuses report it", result, LIMIT_S)
        return running, at

    def _pods_by_job(self) -> dict[str, list[str]]:
        """Pods' names by job. A pod's name begins with its job's name and a dash."""
        found: dict[str, list[str]] = {}
        for pod in self.watches.pods.present.values():
            name = pod.metadata.name
            found.setdefault("-".join(name.split("-")[:2]), []).append(name)
        return found

    async def _fail(self, pod: str) -> None:
        status = manifests.failed_status(datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        await self.kube.call("PATCH", f"/api/v1/namespaces/{self.namespace}/pods/{pod}/status", status)

    @asynccontextmanager
    async def _training(self) -> AsyncIterator[None]:
        """Each coordinator, if there are any, reports a step twice a second, as in a fast training."""

        async def step() -> None:
            number = 0
            while True:
                number += 1
                for job in self.sidecars.jobs.values():
                    await job.step(number)
                await asyncio.sleep(0.5)

        task = asyncio.create_task(step(), name="the training steps")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def _begun(cluster: Cluster, setup: Setup, namespace: str) -> AsyncIterator[Life]:
    """The system is ready, and its namespace exists and is empty. Afterwards both are gone, with all their objects."""
    await cluster.namespace(namespace)
    with setup.start() as first:
        life: Life

        def programs() -> tuple[Program, ...]:
            return (*cluster.programs, life.program)

        watches = Watches(programs)
        life = Life(setup, cluster, namespace, first, watches, Sidecars(cluster.kube, namespace, watches))
        await until(f"{setup.session.system} is ready", lambda: answers(setup.health), (first,))
        pods = f"/api/v1/namespaces/{namespace}/pods"
        await life.sidecars.start()
        try:
            async with watches.of(cluster.kube, pods, setup.jobs_path(namespace)):
                await asyncio.sleep(SETTLE_S)
                yield life
            # While the system runs, because its objects may wait for its finalizers. After a failure the whole cluster
            # is deleted.
            await cluster.remove_namespace(namespace)
        finally:
            await life.sidecars.stop()
            life.program.kill()


async def measure(cluster: Cluster, session: Session, jobset: Built, namespace: str) -> AsyncGenerator[Sample, None]:
    """A sample for each case of the session. Raises Skipped, ChildFailed."""
    setup = Setup(session, cluster.files, jobset)
    async with _begun(cluster, setup, namespace) as life:
        doings: dict[Case, Callable[[], Awaitable[dict[str, float]]]] = {
            Case.STATUS: life.status,
            Case.IN_PLACE: life.in_place,
            Case.BESIDE: life.beside,
            Case.POD: life.pod_bytes,
            Case.REST: life.wait_idle,
            Case.START: life.start_again,
            Case.DELETE: life.delete,
            Case.MANY_DELETE: life.delete,
            Case.RECREATE: life.recreate,
            Case.JOBS_RECREATE: life.recreate,
            Case.SHIPPED_RECREATE: life.recreate,
            Case.MANY_RECREATE: life.recreate,
        }
        create = session.creates
        for case in dict.fromkeys((create, *session.cases)):
            doing = life.create if case is create else doings[case]
            try:
                values = await doing()
            except Unfinished as error:
                result = case if case in session.cases else session.cases[0]
                yield _sample(session, result, unfinished=str(error), after_s=error.after_s)
                return
            if case in session.cases:
                yield _sample(session, case, values)


def _sample(
    session: Session, case: Case, values: dict[str, float] | None = None, *, unfinished: str = "", after_s: float = 0.0
) -> Sample:
    metrics = METRICS.get(case, ("seconds",))
    return Sample(
        session.system.value, case.value, session.size, session.run, values or {}, unfinished, metrics, after_s
    )
