"""Executes a plan against the API server, and puts the answers into the store at once.

Otherwise the next reconcile could create a pod twice, because the watch may be a moment behind. For the same reason, a
creation without an answer is sent again under its own name before anything else is decided (`resolve_unanswered`): the
pod is created exactly once. Pod creations run in parallel, and more and more at once (parallel.py). So a mistake in a
template costs a few rejected requests, and not thousands. All jobs share one rate of writes (pace.py).

Labels and annotations are merge patches: the operator owns two keys of a pod that it created with an ordinary create.
Server-side apply would add a second entry of managedFields to each pod, and could remove a key only by sending all
others.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from understudy_operator.apply.child_jobs import JobExecutor
from understudy_operator.apply.events import Outbox
from understudy_operator.apply.pace import Pace
from understudy_operator.apply.parallel import in_parallel, slow_start
from understudy_operator.apply.pools import PoolExecutor
from understudy_operator.apply.recovery_objects import RecoveryWriter
from understudy_operator.apply.subject import ReconciledObject, Subjects, create_controlled, refusals_of
from understudy_operator.observe.store import Key, Kind, Raw, Store
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.ownership import object_path_of, object_uid
from understudy_operator.plan.facts.pods import Pods
from understudy_operator.plan.facts.refusals import Refusal, RefusalKind, read_refusal
from understudy_operator.plan.intents import (
    Create,
    CreatePod,
    DeletePod,
    DeleteSecret,
    PatchPod,
    PodIntent,
    ReleasePod,
    Remove,
    intent_key,
)
from understudy_operator.runtime.api import Api, ApiError, NotLeading
from understudy_operator.runtime.clock import Clock
from understudy_protocol import pod as names

_PLURALS = {
    "Service": ("services", Kind.SERVICE),
    "PersistentVolumeClaim": ("persistentvolumeclaims", Kind.CLAIM),
}
log = logging.getLogger(__name__)

PodIntents = Sequence[PodIntent]
T = TypeVar("T")


class Executor:
    def __init__(self, api: Api, store: Store, clock: Clock) -> None:
        self._api, self._store, self._steady = api, store, clock.steady
        self.pace = Pace(clock.steady)  # for all writes of a leader, and not only of this executor
        self._unanswered: dict[str, dict[str, _PendingCreation]] = {}  # by job uid and pod name
        self.followed: set[Key] = set()  # the running jobs, with which each job shares the writes of progress
        self.jobs = JobExecutor(api, store, self.pace)
        self.subjects = Subjects(api, store, self.pace)
        self.pools = PoolExecutor(api, store, self.pace)

    async def remove(self, job: Job, reason: str) -> list[Refusal]:
        """Delete the TrainingJob, after all objects that belong to it."""
        body: Raw = {"preconditions": {"uid": object_uid(job)}, "propagationPolicy": "Foreground"}
        try:
            async with self.pace.turn(job.namespace, job.uid):
                await self._api.delete(object_path_of(job), body)
        except ApiError as error:
            return refusals_of(error, Remove())
        log.info("job %s/%s deleted: %s", job.namespace, job.name, reason)
        return []

    async def create(self, intent: Create) -> Refusal | None:
        """Create the object. Returns the rejection; None once it exists."""
        if intent.manifest["kind"] == "Secret":
            return await self._create_secret(intent)
        metadata, (plural, kind) = intent.manifest["metadata"], _PLURALS[intent.manifest["kind"]]
        path = f"/api/v1/namespaces/{metadata['namespace']}/{plural}"
        async with self.pace.turn(metadata["namespace"], metadata["labels"][names.LABEL_JOB_UID]):
            return await create_controlled(self._api, self._store, kind, path, intent.manifest, intent_key(intent))

    async def _create_secret(self, intent: Create) -> Refusal | None:
        """An existing Secret counts as created: its name contains the uid of its owner, so it is that owner's."""
        metadata = intent.manifest["metadata"]
        try:
            async with self.pace.turn(metadata["namespace"], metadata["labels"][names.LABEL_JOB_UID]):
                await self._api.create(f"/api/v1/namespaces/{metadata['namespace']}/secrets", intent.manifest)
        except ApiError as error:
            if refusal := read_refusal(error.status, str(error), key=intent_key(intent)):
                return refusal
            if error.reason != "AlreadyExists":
                raise
        return None

    async def delete_secret(self, owner: ReconciledObject, intent: DeleteSecret) -> Refusal | None:
        """Returns the rejection; None once the Secret does not exist."""
        path = f"/api/v1/namespaces/{owner.namespace}/secrets/{intent.name}"
        try:
            async with self.pace.turn(owner.namespace, owner.uid):
                # With any other policy the API server would answer with the Secret's content.
                await self._api.delete(path, {"propagationPolicy": "Background"})
        except ApiError as error:
            return next(iter(refusals_of(error, intent)), None)
        return None

    async def read_unknown_nodes(self, pods: Pods) -> None:
        """Read the nodes of pods that no watch has reported: they are gone, or the watch of pods was faster."""
        nodes = pods.unended.by_node.keys() - {""}
        unknown = sorted(name for name in nodes if self._store.get(Kind.NODE, ("", name)) is None)
        await in_parallel([self._read_node(name) for name in unknown])

    async def resolve_unanswered(self, owner: ReconciledObject, refused_too: bool = True) -> None:
        """Find out the result of creations and claims without an answer. Raises if there is still none.

        refused_too: also retry those that got a server error. Until then no other pod is created.
        """
        pending_creations = self._unanswered.get(owner.uid, {}).values()
        if not refused_too and all(pending.refusal is not None for pending in pending_creations):
            await self.pools.resolve_unanswered(owner.uid)
            return
        unanswered = list(self._unanswered.get(owner.uid, {}).values())
        await in_parallel([self._create_pod(owner, pending.intent) for pending in unanswered])
        await self.pools.resolve_unanswered(owner.uid)

    def forget(self, job_uid: str | None = None) -> None:
        """Forget the unanswered requests of this job; of all jobs, if none is named."""
        self.pools.forget(job_uid)
        if job_uid is None:
            self._unanswered.clear()
        else:
            self._unanswered.pop(job_uid, None)

    async def pods(self, owner: ReconciledObject, intents: PodIntents) -> list[Refusal]:
        """Execute all intents, as far as possible. Returns the API server's rejections, each once."""
        refusals: list[Refusal] = []
        creations = [intent for intent in intents if isinstance(intent, CreatePod)]
        changes = [intent for intent in intents if not isinstance(intent, CreatePod)]
        others = [self._change_pod(owner, intent, refusals) for intent in changes]
        await in_parallel([self._create_pods(owner, creations, refusals), *others])
        return refusals

    def recovery_writer(self) -> RecoveryWriter:
        """For the Recovery objects of one job."""
        return RecoveryWriter(self._api, self.pace, self._steady)

    def outbox(self) -> Outbox:
        """For the events of one object."""
        return Outbox(self._api, self.pace, self._steady)

    async def _read_node(self, name: str) -> None:
        try:
            self._store.put(Kind.NODE, await self._api.get(f"/api/v1/nodes/{name}"))
        except ApiError as error:
            if error.status != 404:
                raise

    async def _create_pods(self, owner: ReconciledObject, intents: list[CreatePod], refusals: list[Refusal]) -> None:
        if intents and (unanswered := self._unanswered.get(owner.uid)):
            # Pods for the same places may exist already.
            refusals += dict.fromkeys(pending.refusal for pending in unanswered.values() if pending.refusal is not None)
            return
        refusals += await slow_start(intents, partial(self._create_pod, owner))

    async def _create_pod(self, owner: ReconciledObject, intent: CreatePod) -> Refusal | None:
        async with self.pace.turn(owner.namespace, owner.uid):
            return await self._send_pod(owner, intent)

    async def _send_pod(self, owner: ReconciledObject, intent: CreatePod) -> Refusal | None:
        path = f"/api/v1/namespaces/{owner.namespace}/pods"
        manifest = intent.manifest
        name = manifest["metadata"]["name"]
        pending = self._unanswered.setdefault(owner.uid, {}).setdefault(name, _PendingCreation(intent))
        try:
            raw = await self._api.create(path, manifest)
        except NotLeading:
            self._forget_unanswered(owner.uid, name)
            raise
        except ApiError as error:
            refusal = read_refusal(error.status, str(error), key=intent_key(intent))
            if refusal is not None:  # each try has a new name: without it, equal rejections are equal
                refusal = replace(refusal, message=refusal.message.replace(name, "<pod>"))
            if refusal is not None and refusal.kind is RefusalKind.SERVER:
                pending.refusal = refusal  # the API server may have created the pod
                return refusal
            self._forget_unanswered(owner.uid, name)
            if error.reason == "AlreadyExists":
                await self._read_existing(f"{path}/{name}")
            elif refusal is None:
                raise
            return refusal
        self._forget_unanswered(owner.uid, name)
        self._store.put(Kind.POD, raw)
        log.info("%s/%s created: %s", owner.namespace, name, intent.reason)
        return None

    async def _read_existing(self, path: str) -> None:
        """The pod exists: an earlier request has created it."""
        try:
            self._store.put(Kind.POD, await self._api.get(path))
        except ApiError as error:
            if error.status != 404:
                raise

    def _forget_unanswered(self, job_uid: str, name: str) -> None:
        unanswered = self._unanswered.get(job_uid, {})
        unanswered.pop(name, None)
        if not unanswered:
            self._unanswered.pop(job_uid, None)

    async def _change_pod(
        self, owner: ReconciledObject, intent: DeletePod | PatchPod | ReleasePod, refusals: list[Refusal]
    ) -> None:
        namespace, path = owner.namespace, f"/api/v1/namespaces/{owner.namespace}/pods/{intent.name}"
        try:
            async with self.pace.turn(namespace, owner.uid):
                match intent:
                    case DeletePod(name, uid, grace_s, reason, version):
                        body: Raw = {"preconditions": {"uid": uid, "resourceVersion": version}}
                        if grace_s is not None:
                            body = {**body, "gracePeriodSeconds": grace_s}
                        self._after_delete(await self._api.delete(path, body), grace_s)
                        log.info("%s/%s deleted: %s", namespace, name, reason)
                    case PatchPod(_, labels, annotations):
                        patch = {"metadata": {"labels": labels, "annotations": annotations}}
                        self._store.put(Kind.POD, await self._api.merge(path, patch))
                    case ReleasePod(name, uid, finalizers, reason, version):
                        body = {"metadata": {"uid": uid, "resourceVersion": version, "finalizers": list(finalizers)}}
                        self._store.put(Kind.POD, await self._api.merge(path, body))
                        log.info("%s/%s released: %s", namespace, name, reason)
        except ApiError as error:
            refusals += refusals_of(error, intent)

    def _after_delete(self, answer: Raw, grace_s: int | None) -> None:
        if answer.get("kind") != "Pod":
            return  # a Status, for an object that is gone; the watch reports it
        if grace_s == 0 and not answer["metadata"].get("finalizers"):
            self._store.remove(Kind.POD, answer)
        else:
            self._store.put(Kind.POD, answer)


@dataclass
class _PendingCreation:
    """A creation without an answer, or with an answer that does not show whether it was done."""

    intent: CreatePod
    refusal: Refusal | None = None
