"""Executes a plan against the API server, and puts what comes back into the store at once.

Without the latter the next pass could create a pod twice: the watch may be a moment behind. Pods are created in
parallel in growing batches, so that a mistake in a template costs one refused request and not thousands.
"""

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from understudy_operator.apply.api import Api, ApiError
from understudy_operator.apply.jobs import JobGateway
from understudy_operator.observe.store import Kind, Raw, Store, job_uid_of
from understudy_operator.plan.intents import Create, CreatePod, DeletePod, Event, PatchPod
from understudy_operator.plan.observed import Job
from understudy_operator.plan.ownership import API_VERSION, KIND
from understudy_protocol import pod as names

FIRST_BATCH = 4
LARGEST_BATCH = 64
#: Statuses that say that an object will not do, however often it is sent.
REFUSALS = (400, 403, 422)
_PLURALS = {
    "Secret": ("secrets", Kind.SECRET),
    "Service": ("services", Kind.SERVICE),
    "PersistentVolumeClaim": ("persistentvolumeclaims", Kind.CLAIM),
}
log = logging.getLogger(__name__)


class Gateway:
    def __init__(self, api: Api, store: Store) -> None:
        self._api, self._store = api, store
        self.jobs = JobGateway(api, store)

    async def remove(self, job: Job, reason: str) -> None:
        """Delete the TrainingJob, after all that belongs to it."""
        body: Raw = {"preconditions": {"uid": job.uid}, "propagationPolicy": "Foreground"}
        try:
            await self._api.delete(_job_path(job), body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
        log.info("job %s/%s deleted: %s", job.namespace, job.name, reason)

    async def create(self, intent: Create) -> str:
        """The message of why it cannot be there; "" once it is."""
        metadata, (plural, kind) = intent.manifest["metadata"], _PLURALS[intent.manifest["kind"]]
        path = f"/api/v1/namespaces/{metadata['namespace']}/{plural}"
        try:
            raw = await self._api.create(path, intent.manifest)
        except ApiError as error:
            if error.status in REFUSALS:
                return str(error)
            if error.reason != "AlreadyExists":
                raise
            raw = await self._api.get(f"{path}/{metadata['name']}")
        shared = kind is Kind.CLAIM and "ownerReferences" not in metadata
        if job_uid_of(raw) != metadata["labels"][names.LABEL_JOB_UID] and not shared:
            return (
                f"{intent.manifest['kind']} {metadata['name']} is there already and is not of this job: it waits until "
                "that is deleted; if nothing deletes it, delete it yourself or give the job another name"
            )
        self._store.put(kind, raw)
        return ""

    async def read_nodes(self, wanted: Iterable[str]) -> None:
        """Put these nodes into the store, as far as they exist."""
        await asyncio.gather(*(self._read_node(name) for name in wanted))

    async def pods(self, namespace: str, intents: Sequence[CreatePod | DeletePod | PatchPod]) -> list[str]:
        """Do all of it, as far as it goes; the messages of what the API server refused."""
        refusals: list[str] = []
        await self._create_pods(namespace, [i for i in intents if isinstance(i, CreatePod)], refusals)
        others = [self._other(namespace, i) for i in intents if not isinstance(i, CreatePod)]
        for result in await asyncio.gather(*others, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
        return refusals

    async def status(self, job: Job, status: Mapping[str, Any]) -> None:
        """Replace the status; an ApiError of reason Conflict means that the job has changed since it was read."""
        raw = dict(self._store.get(Kind.JOB, (job.namespace, job.name)) or {})
        raw["status"] = status
        raw["metadata"] = {**raw["metadata"], "resourceVersion": job.resource_version}
        self._store.put(Kind.JOB, await self._api.replace(f"{_job_path(job)}/status", raw))

    async def event(self, job: Job, event: Event) -> None:
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"generateName": f"{job.name}-", "namespace": job.namespace},
            "eventTime": at,
            "type": event.type,
            "reason": event.reason,
            "action": event.reason,
            "note": event.message[:1024],
            "reportingController": "understudy.dev/operator",
            "reportingInstance": os.environ.get("HOSTNAME", "understudy-operator"),
            "regarding": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": job.name,
                "namespace": job.namespace,
                "uid": job.uid,
            },
        }
        try:
            await self._api.create(f"/apis/events.k8s.io/v1/namespaces/{job.namespace}/events", body)
        except ApiError as error:
            log.warning("job %s/%s: event %s was refused: %s", job.namespace, job.name, event.reason, error)

    async def _read_node(self, name: str) -> None:
        try:
            self._store.put(Kind.NODE, await self._api.get(f"/api/v1/nodes/{name}"))
        except ApiError as error:
            if error.status != 404:
                raise

    async def _create_pods(self, namespace: str, intents: list[CreatePod], refusals: list[str]) -> None:
        batch = FIRST_BATCH
        while intents and not refusals:
            now, intents = intents[:batch], intents[batch:]
            refused = await asyncio.gather(*(self._create_pod(namespace, intent) for intent in now))
            refusals += [message for message in dict.fromkeys(refused) if message]
            batch = min(2 * batch, LARGEST_BATCH)

    async def _create_pod(self, namespace: str, intent: CreatePod) -> str:
        name = intent.manifest["metadata"]["name"]
        try:
            raw = await self._api.create(f"/api/v1/namespaces/{namespace}/pods", intent.manifest)
        except ApiError as error:
            if error.reason == "AlreadyExists":
                return ""
            if error.status in REFUSALS:
                # The pod's name is new each time; without it the same refusal stays the same message.
                return str(error).replace(name, "<pod>")
            raise
        self._store.put(Kind.POD, raw)
        log.info("%s/%s created: %s", namespace, name, intent.reason)
        return ""

    async def _other(self, namespace: str, intent: DeletePod | PatchPod) -> None:
        path = f"/api/v1/namespaces/{namespace}/pods/{intent.name}"
        try:
            match intent:
                case DeletePod(name, uid, grace_s, reason):
                    body: Raw = {"preconditions": {"uid": uid}}
                    if grace_s is not None:
                        body = {**body, "gracePeriodSeconds": grace_s}
                    answer = await self._api.delete(path, body)
                    if answer.get("kind") == "Pod":
                        self._after_delete(answer, grace_s)
                    log.info("%s/%s deleted: %s", namespace, name, reason)
                case PatchPod(_, labels, annotations):
                    patch = {"metadata": {"labels": labels, "annotations": annotations}}
                    self._store.put(Kind.POD, await self._api.merge(path, patch))
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    def _after_delete(self, pod: Raw, grace_s: int | None) -> None:
        if grace_s == 0:
            self._store.remove(Kind.POD, pod)
        else:
            self._store.put(Kind.POD, pod)


def _job_path(job: Job) -> str:
    return f"/apis/{API_VERSION}/namespaces/{job.namespace}/trainingjobs/{job.name}"
