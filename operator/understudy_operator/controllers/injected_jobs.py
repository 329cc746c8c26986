"""Creates an InjectedJob for each job whose pods the webhook has injected. A worker then reconciles it like a
TrainingJob. Pods without a launcher have no coordinator, so their node's verdict is written as an annotation.

Rules: the first observed pod triggers the creation. If a deleted Job of the same name has left an InjectedJob, the
creation waits until that is gone; a watch may not report its end.
If a Job, JobSet or PyTorchJob cannot train as one, an event reports it once. The operator tries again only after the
object was recreated, because it cannot be fixed in place. All other failures are retried with growing pauses. Writes
follow the executor's pace (apply/pace.py).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from understudy_operator.apply.injected_jobs import InjectedJobExecutor, target_uid
from understudy_operator.apply.pace import Pace
from understudy_operator.observe.owners import Owners
from understudy_operator.observe.read import read_pod
from understudy_operator.observe.read_node import NodeReader, read_node
from understudy_operator.observe.store import Key, Kind, Raw, Store, job_key_of, key_of
from understudy_operator.plan.faults.annotations import plan_annotation
from understudy_operator.plan.injection.owner import Owner, read_owner
from understudy_operator.plan.injection.settings import Objection
from understudy_operator.plan.injection.targets import plan_injected_job, read_nproc
from understudy_operator.plan.intents import Event, PatchPod
from understudy_operator.plan.manifests.object_names import is_injected
from understudy_operator.runtime.api import API_FAILURES, Api
from understudy_operator.runtime.clock import Backoffs, Clock
from understudy_operator.runtime.decoding import UNREADABLE
from understudy_protocol import logs

FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 30.0
log = logging.getLogger(__name__)


class InjectedJobCreator:
    """on_created(key): called when the InjectedJob exists."""

    def __init__(
        self,
        api: Api,
        store: Store,
        on_created: Callable[[Key], None],
        clock: Clock,
        pace: Pace,
        node_reader: NodeReader = read_node,
    ) -> None:
        self._store, self._on_created = store, on_created
        self._executor, self._owners = InjectedJobExecutor(api, store, pace), Owners(api, clock.steady)
        self._clock, self._read_node = clock, node_reader
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._refused: dict[Key, str] = {}  # the uid of the owner that cannot be injected

    def on_pod(self, pod: Raw) -> None:
        """Handle the current state of a pod of any job."""
        key = job_key_of(pod)
        if key is None or not is_injected(key[1]) or not _lives(pod):
            return
        try:
            self._handle_pod(key, pod)
        except Objection as objection:
            self._store.report_malformed(Kind.POD, pod, str(objection))

    def _handle_pod(self, key: Key, pod: Raw) -> None:
        """Raises Objection."""
        if not read_nproc(pod):
            if self._verdict(pod) is not None:
                self._start(key_of(pod), lambda: self._annotate_pod(pod))
        else:
            owner, existing = read_owner(pod), self._store.get(Kind.INJECTED, key)
            exists = existing is not None and target_uid(existing) == owner.uid
            if not exists and self._refused.get(key) != owner.uid and self._owners.may_exist(key, owner):
                # Pods of a deleted Job of the same name may still exist, so each owner is requested separately.
                self._start((key[0], f"{key[1]}/{owner.uid}"), lambda: self._create(key, owner, pod))

    def check_all_pods(self) -> None:
        """At the start, and when a node has changed."""
        pods = [pod for pod in self._store.all(Kind.POD) if is_injected((job_key_of(pod) or ("", ""))[1])]
        present_keys = {job_key_of(pod) for pod in pods}
        self._refused = {key: uid for key, uid in self._refused.items() if key in present_keys}
        self._owners.keep(present_keys)
        for pod in pods:
            with self._store.contain_errors(Kind.POD, pod):
                self.on_pod(pod)

    def check_pods_of_job(self, key: Key) -> None:
        """When its InjectedJob is gone: a Job of the same name may have waited for that."""
        for name in [name for name in self._tasks if (name[0], name[1].partition("/")[0]) == key]:
            self._tasks.pop(name).cancel()  # it would retry only after its pause
        for pod in self._store.all(Kind.POD):
            with self._store.contain_errors(Kind.POD, pod):
                if job_key_of(pod) == key:
                    self.on_pod(pod)

    async def stop(self) -> None:
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, key: Key, attempt: Callable[[], Awaitable[None]]) -> None:
        if key not in self._tasks:
            task = asyncio.create_task(self._until_done(key, attempt), name=f"injected {'/'.join(key)}")
            self._tasks[key] = task
            task.add_done_callback(lambda _: self._ended(key, task))

    def _ended(self, key: Key, task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]

    async def _until_done(self, key: Key, attempt: Callable[[], Awaitable[None]]) -> None:
        logs.about(namespace=key[0], job=key[1].partition("/")[0])
        for pause_s in Backoffs(FIRST_RETRY_S, LONGEST_RETRY_S):
            try:
                await attempt()
                break
            except API_FAILURES as error:
                log.warning("%s: %r; retrying in %.1f s", "/".join(key), error, pause_s)
            except Exception:
                log.exception("%s; retrying in %.1f s", "/".join(key), pause_s)
            await asyncio.sleep(pause_s)

    async def _create(self, key: Key, owner: Owner, pod: Raw) -> None:
        """Create the InjectedJob from its target."""
        target = await self._owners.get(key, owner)
        if target is None:
            return  # the pod will be gone soon, too
        planned = plan_injected_job(key[0], owner, pod, target, str(target.get(UNREADABLE, "")))
        if isinstance(planned, Event):
            self._refused[key] = owner.uid
            await self._executor.report(key[0], owner, planned)
            return
        await self._executor.create(key[0], owner, planned)
        self._on_created(key)

    async def _annotate_pod(self, pod: Raw) -> None:
        """Write the node's verdict as an annotation, for a pod without a coordinator."""
        patch = self._verdict(pod)
        if patch is not None:  # else the verdict was withdrawn meanwhile
            await self._executor.annotate(key_of(pod)[0], pod["metadata"]["uid"], patch)

    def _verdict(self, pod: Raw) -> PatchPod | None:
        """The annotation that the pod needs. None if it has it."""
        fact = self._store.fact(Kind.POD, key_of(pod), read_pod)
        if fact is None:
            return None
        return plan_annotation(fact, self._store.fact(Kind.NODE, ("", fact.node), self._read_node), self._clock.wall())


def _lives(pod: Raw) -> bool:
    ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return not ended and "deletionTimestamp" not in pod["metadata"]
