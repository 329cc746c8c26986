"""Executes what a plan says about child Jobs, and puts what comes back into the store at once, as for pods."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from understudy_operator.apply.api import Api, ApiError
from understudy_operator.apply.pace import Pace
from understudy_operator.observe.store import Kind, Raw, Store, job_uid_of
from understudy_operator.plan.intents import CreateJob, DeleteJob, JobIntent, Manifest, PatchJob
from understudy_operator.plan.refusals import Refusal, judged
from understudy_protocol import pod as names

FIRST_BATCH = 4
LARGEST_BATCH = 64
log = logging.getLogger(__name__)


class JobGateway:
    def __init__(self, api: Api, store: Store, pace: Pace) -> None:
        self._api, self._store, self._pace = api, store, pace

    async def check(self, manifests: Sequence[Manifest]) -> list[Refusal]:
        """Why the API server would refuse each of these that it would refuse."""
        refused: list[Refusal] = []
        for manifest in manifests:
            await self._pace.turn()
            try:
                await self._api.check(path_of(manifest), manifest)
            except ApiError as error:
                if error.reason == "AlreadyExists":
                    continue  # it is no fault of the template's; its creation finds out whose it is
                refusal = judged(error.status, str(error))
                if refusal is None:
                    raise
                if manifest["kind"] == "Pod":  # its name is new each time: without it the same refusal stays the same
                    name = manifest["metadata"]["name"]
                    refusal = replace(refusal, message=refusal.message.replace(name, "<pod>"))
                refused.append(refusal)
        return refused

    async def some_pods(self, namespace: str, labels: str, fields: str, limit: int) -> Sequence[Raw]:
        """Pods that no watch tells of."""
        return await self._api.some(f"/api/v1/namespaces/{namespace}/pods", labels, fields, limit)

    async def do(self, namespace: str, intents: Sequence[JobIntent]) -> list[Refusal]:
        """Do all of it, as far as it goes; what the API server refused."""
        refusals: list[Refusal] = []
        creations, batch = [x for x in intents if isinstance(x, CreateJob)], FIRST_BATCH
        while creations and not refusals:
            now, creations = creations[:batch], creations[batch:]
            told = await asyncio.gather(*(self._create(intent) for intent in now))
            refusals += [refusal for refusal in dict.fromkeys(told) if refusal is not None]
            batch = min(2 * batch, LARGEST_BATCH)
        others = [self._other(namespace, x) for x in intents if not isinstance(x, CreateJob)]
        refusals += [refusal for refusal in await asyncio.gather(*others) if refusal is not None]
        return refusals

    async def _create(self, intent: CreateJob) -> Refusal | None:
        metadata, path = intent.manifest["metadata"], path_of(intent.manifest)
        await self._pace.turn()
        try:
            raw = await self._api.create(path, intent.manifest)
        except ApiError as error:
            if refusal := judged(error.status, str(error)):
                return refusal
            if error.reason != "AlreadyExists":
                raise
            raw = await self._api.get(f"{path}/{metadata['name']}")
        if job_uid_of(raw) != metadata["labels"][names.LABEL_JOB_UID]:
            return Refusal(
                f"Job {metadata['name']} is there already and is not of this job: it waits until that is deleted; if "
                "nothing deletes it, delete it yourself or give the job another name"
            )
        self._store.put(Kind.CHILD, raw)
        log.info("%s/%s created: %s", metadata["namespace"], metadata["name"], intent.reason)
        return None

    async def _other(self, namespace: str, intent: DeleteJob | PatchJob) -> Refusal | None:
        path = f"/apis/batch/v1/namespaces/{namespace}/jobs/{intent.name}"
        await self._pace.turn()
        try:
            match intent:
                case DeleteJob(name, uid, reason):
                    # In the foreground: its pods are gone before it is, and the next of its name can be made.
                    body: Raw = {"preconditions": {"uid": uid}, "propagationPolicy": "Foreground"}
                    answer = await self._api.delete(path, body)
                    if answer.get("kind") == "Job":
                        self._store.put(Kind.CHILD, answer)
                    log.info("%s/%s deleted: %s", namespace, name, reason)
                case PatchJob(name, patch, reason, restarts_clock):
                    if restarts_clock:
                        await self._api.merge(f"{path}/status", {"status": {"startTime": None}})
                    self._store.put(Kind.CHILD, await self._api.merge(path, patch))
                    log.info("%s/%s changed: %s", namespace, name, reason)
        except ApiError as error:
            if error.of_another:
                return None
            if refusal := judged(error.status, str(error)):
                return refusal
            if error.status not in (404, 409):
                raise
        return None


def path_of(manifest: Manifest) -> str:
    """Where objects of its kind are created."""
    namespace = manifest["metadata"]["namespace"]
    if manifest["kind"] == "Job":
        return f"/apis/batch/v1/namespaces/{namespace}/jobs"
    return f"/api/v1/namespaces/{namespace}/pods"
