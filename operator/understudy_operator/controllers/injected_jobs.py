"""Creates an InjectedJob for each job whose pods the webhook has injected. A worker then reconciles it like a
TrainingJob. Pods without a launcher have no coordinator, so their node's verdict is written as an annotation.

Rules: the first observed pod triggers the creation. If a deleted Job of the same name has left an InjectedJob, the
creation waits until that is gone; a watch may not report its end.
If a Job, JobSet or PyTorchJob cannot train as one, an event reports it once. The operator tries again only after the
object was recreated, because it cannot be fixed in place. All other failures are retried with growing pauses. Writes
follow the gateway's pace (apply/pace.py). When a JobSet restarts, the InjectedJob of its previous attempt is deleted.

The author of a pod also writes its owner references. So after an owner was not found, the next request for it waits
for a pause, which grows up to LONGEST_ABSENCE_S. At most READS owners are requested at a time, and namespaces take
turns.
"""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from understudy_operator.apply.events import send_event
from understudy_operator.apply.pace import Pace
from understudy_operator.observe.read import read_pod
from understudy_operator.observe.read_node import NodeReader, read_node
from understudy_operator.observe.store import Key, Kind, Raw, Store, job_key_of, key_of
from understudy_operator.plan.facts.ownership import API_VERSION
from understudy_operator.plan.faults.annotations import plan_annotation
from understudy_operator.plan.injection.owner import PATHS, Owner, read_owner
from understudy_operator.plan.injection.settings import Objection
from understudy_operator.plan.injection.targets import manifest_of, read_nproc, read_target, spec_of
from understudy_operator.plan.intents import Event, PatchPod
from understudy_operator.plan.manifests.object_names import is_injected
from understudy_operator.runtime import decoded_fields
from understudy_operator.runtime.api import API_FAILURES, Api, ApiError
from understudy_operator.runtime.clock import Clock, jittered
from understudy_operator.runtime.fair_semaphore import FairSemaphore
from understudy_protocol import logs

FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 30.0
#: Errors raised while reading a Job, a JobSet or a PyTorchJob with a field that its own controller would not accept.
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError)
REASON_CHARACTERS = 500
FIRST_ABSENCE_S, LONGEST_ABSENCE_S = 5.0, 600.0
READS, READS_OF_A_NAMESPACE = 32, 16
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Absence:
    """An owner that was not found."""

    until: float
    pause_s: float


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
        self._api, self._store, self._on_created = api, store, on_created
        self._clock, self._pace, self._read_node = clock, pace, node_reader
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._refused: dict[Key, str] = {}  # the uid of the owner that cannot be injected
        self._absent: dict[tuple[Key, str], _Absence] = {}  # by job and uid of the owner
        self._reads = FairSemaphore(READS, READS_OF_A_NAMESPACE, sys.maxsize)

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
            exists = existing is not None and _target_uid(existing) == owner.uid
            if not exists and self._refused.get(key) != owner.uid and not self._is_absent(key, owner):
                # Pods of a deleted Job of the same name may still exist, so each owner is requested separately.
                self._start((key[0], f"{key[1]}/{owner.uid}"), lambda: self._create(key, owner, pod))

    def check_all_pods(self) -> None:
        """At the start, and when a node has changed."""
        pods = [pod for pod in self._store.all(Kind.POD) if is_injected((job_key_of(pod) or ("", ""))[1])]
        present_keys = {job_key_of(pod) for pod in pods}
        self._refused = {key: uid for key, uid in self._refused.items() if key in present_keys}
        self._absent = {of: absence for of, absence in self._absent.items() if of[0] in present_keys}
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
        retry_s = FIRST_RETRY_S
        while True:
            try:
                await attempt()
                break
            except API_FAILURES as error:
                log.warning("%s: %r; retrying in %.1f s", "/".join(key), error, retry_s)
            except Exception:
                log.exception("%s; retrying in %.1f s", "/".join(key), retry_s)
            await asyncio.sleep(jittered(retry_s))
            retry_s = min(2 * retry_s, LONGEST_RETRY_S)

    async def _create(self, key: Key, owner: Owner, pod: Raw) -> None:
        """Create the InjectedJob from its target."""
        namespace = key[0]
        async with self._reads.slot(namespace):
            target = await self._get(
                f"/apis/{PATHS[owner.kind][0]}/namespaces/{namespace}/{PATHS[owner.kind][1]}/{owner.name}"
            )
        if target is None or target["metadata"]["uid"] != owner.uid:
            self._note_absence(key, owner)  # the owner is gone, and the pod will be soon
            return
        try:
            if decoded_fields.UNREADABLE in target:
                raise Objection(str(target[decoded_fields.UNREADABLE]))
            manifest = manifest_of(namespace, owner, spec_of(read_target(owner.kind, target), owner, pod))
        except (Objection, *UNREADABLE) as objection:
            self._refused[key] = owner.uid
            reason = (
                str(objection)
                if isinstance(objection, Objection)
                else f"it cannot be read: {objection!r}"[:REASON_CHARACTERS]
            )
            await self._send_event(namespace, owner, Event("Warning", "NotInjected", reason, owner.uid))
            return
        path = f"/apis/{API_VERSION}/namespaces/{namespace}/injectedjobs"
        if owner.attempt:
            await self._delete_previous(path, namespace, owner)
        await self._pace.acquire(namespace, owner.uid)
        try:
            raw = await self._api.create(path, manifest)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            raw = await self._api.get(f"{path}/{owner.group}")
            if _target_uid(raw) != owner.uid:
                raise  # it belongs to a deleted Job of the same name, and will be gone soon
        log.info("%s/%s created: pods of %s %s are injected", namespace, owner.group, owner.kind, owner.name)
        self._store.put(Kind.INJECTED, raw)
        self._on_created(key)

    def _is_absent(self, key: Key, owner: Owner) -> bool:
        absence = self._absent.get((key, owner.uid))
        return absence is not None and self._clock.steady() < absence.until

    def _note_absence(self, key: Key, owner: Owner) -> None:
        before = self._absent.get((key, owner.uid))
        pause_s = FIRST_ABSENCE_S if before is None else min(2 * before.pause_s, LONGEST_ABSENCE_S)
        self._absent[key, owner.uid] = _Absence(self._clock.steady() + pause_s, pause_s)

    async def _delete_previous(self, path: str, namespace: str, owner: Owner) -> None:
        await self._pace.acquire(namespace, owner.uid)
        try:
            await self._api.delete(f"{path}/{replace(owner, attempt=owner.attempt - 1).group}", {})
        except ApiError as error:
            if error.status != 404:
                raise

    async def _annotate_pod(self, pod: Raw) -> None:
        """Write the node's verdict as an annotation, for a pod without a coordinator."""
        namespace, name = key_of(pod)
        patch = self._verdict(pod)
        if patch is None:
            return  # the verdict was withdrawn meanwhile
        body = {"metadata": {"annotations": dict(patch.annotations)}}
        await self._pace.acquire(namespace, pod["metadata"]["uid"])
        try:
            self._store.put(Kind.POD, await self._api.merge(f"/api/v1/namespaces/{namespace}/pods/{name}", body))
        except ApiError as error:
            if error.status != 404:
                raise

    def _verdict(self, pod: Raw) -> PatchPod | None:
        """The annotation that the pod needs. None if it has it."""
        fact = self._store.fact(Kind.POD, key_of(pod), read_pod)
        if fact is None:
            return None
        return plan_annotation(fact, self._store.fact(Kind.NODE, ("", fact.node), self._read_node), self._clock.wall())

    async def _get(self, path: str) -> Raw | None:
        try:
            return await self._api.get(path)
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    async def _send_event(self, namespace: str, owner: Owner, event: Event) -> None:
        regarding = {"apiVersion": PATHS[owner.kind][0], "kind": owner.kind, "name": owner.name, "uid": owner.uid}
        log.warning("%s/%s: %s", namespace, owner.name, event.message)
        await send_event(self._api, self._pace, {**regarding, "namespace": namespace}, event)


def _target_uid(injected: Raw) -> str:
    target = injected.get("spec", {}).get("target", {})
    return str(target.get("uid", "")) if isinstance(target, Mapping) else ""


def _lives(pod: Raw) -> bool:
    ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return not ended and "deletionTimestamp" not in pod["metadata"]
