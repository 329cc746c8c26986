"""Executes what a plan says about child Jobs, and puts what comes back into the store at once, as for pods."""

import asyncio
import logging
from collections.abc import Sequence

from understudy_operator.apply.api import Api, ApiError
from understudy_operator.observe.store import Kind, Raw, Store, job_uid_of
from understudy_operator.plan.intents import CreateJob, DeleteJob, JobIntent, Manifest, PatchJob
from understudy_protocol import pod as names

FIRST_BATCH = 4
LARGEST_BATCH = 64
#: Statuses that say that an object will not do, however often it is sent.
REFUSALS = (400, 403, 422)
log = logging.getLogger(__name__)


class JobGateway:
    def __init__(self, api: Api, store: Store) -> None:
        self._api, self._store = api, store

    async def check(self, manifests: Sequence[Manifest]) -> list[str]:
        """Why the API server would refuse each of these that it would refuse."""
        refused: list[str] = []
        for manifest in manifests:
            try:
                await self._api.check(path_of(manifest), manifest)
            except ApiError as error:
                if error.status not in REFUSALS:
                    raise
                # A pod's name is new each time; without it the same refusal stays the same message.
                name = manifest["metadata"]["name"]
                refused.append(str(error).replace(name, "<pod>") if manifest["kind"] == "Pod" else str(error))
        return refused

    async def do(self, namespace: str, intents: Sequence[JobIntent]) -> list[str]:
        """Do all of it, as far as it goes; the messages of what the API server refused."""
        refusals: list[str] = []
        creations, batch = [x for x in intents if isinstance(x, CreateJob)], FIRST_BATCH
        while creations and not refusals:
            now, creations = creations[:batch], creations[batch:]
            told = await asyncio.gather(*(self._create(intent) for intent in now))
            refusals += [message for message in dict.fromkeys(told) if message]
            batch = min(2 * batch, LARGEST_BATCH)
        others = [self._other(namespace, x) for x in intents if not isinstance(x, CreateJob)]
        refusals += [message for message in await asyncio.gather(*others) if message]
        return refusals

    async def _create(self, intent: CreateJob) -> str:
        metadata, path = intent.manifest["metadata"], path_of(intent.manifest)
        try:
            raw = await self._api.create(path, intent.manifest)
        except ApiError as error:
            if error.status in REFUSALS:
                return str(error)
            if error.reason != "AlreadyExists":
                raise
            raw = await self._api.get(f"{path}/{metadata['name']}")
        if job_uid_of(raw) != metadata["labels"][names.LABEL_JOB_UID]:
            return (
                f"Job {metadata['name']} is there already and is not of this job: it waits until that is deleted; if "
                "nothing deletes it, delete it yourself or give the job another name"
            )
        self._store.put(Kind.CHILD, raw)
        log.info("%s/%s created: %s", metadata["namespace"], metadata["name"], intent.reason)
        return ""

    async def _other(self, namespace: str, intent: DeleteJob | PatchJob) -> str:
        path = f"/apis/batch/v1/namespaces/{namespace}/jobs/{intent.name}"
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
            if error.status in REFUSALS:
                return str(error)
            if error.status not in (404, 409):
                raise
        return ""


def path_of(manifest: Manifest) -> str:
    """Where objects of its kind are created."""
    namespace = manifest["metadata"]["namespace"]
    if manifest["kind"] == "Job":
        return f"/apis/batch/v1/namespaces/{namespace}/jobs"
    return f"/api/v1/namespaces/{namespace}/pods"
