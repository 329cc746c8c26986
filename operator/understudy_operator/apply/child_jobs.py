"""Executes a plan's intents for child Jobs, and puts the answers into the store at once, as for pods."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from understudy_operator.apply.pace import Pace
from understudy_operator.apply.parallel import in_parallel, slow_start
from understudy_operator.apply.subject import ReconciledObject, create_controlled, refusals_of
from understudy_operator.observe.store import Kind, Raw, Store
from understudy_operator.plan.facts.refusals import Refusal, read_refusal
from understudy_operator.plan.intents import CreateJob, DeleteJob, DryRun, JobIntent, Manifest, PatchJob, intent_key
from understudy_operator.runtime.api import Api, ApiError

log = logging.getLogger(__name__)
#: Part of the API server's message about a webhook with side effects.
NO_DRY_RUN = "does not support dry run"


class JobExecutor:
    def __init__(self, api: Api, store: Store, pace: Pace) -> None:
        self._api, self._store, self._pace = api, store, pace

    async def dry_run(self, owner: ReconciledObject, manifests: Sequence[Manifest]) -> list[Refusal]:
        """Returns the rejections that the creation of these manifests would get."""
        refusals: list[Refusal] = []
        for manifest in manifests:
            try:
                async with self._pace.turn(owner.namespace, owner.uid):
                    await self._api.dry_run(collection_path_of(manifest), manifest)
            except ApiError as error:
                # Not the template's fault. The creation will show the owner of that name, or the webhook's answer.
                if error.reason == "AlreadyExists" or NO_DRY_RUN in str(error):
                    continue
                refusal = read_refusal(error.status, str(error), key=intent_key(DryRun()))
                if refusal is None:
                    raise
                if manifest["kind"] == "Pod":  # each try has a new name: without it, equal rejections are equal
                    name = manifest["metadata"]["name"]
                    refusal = replace(refusal, message=refusal.message.replace(name, "<pod>"))
                refusals.append(refusal)
        return refusals

    async def list_pods(self, owner: ReconciledObject, labels: str, fields: str, limit: int) -> Sequence[Raw]:
        """List pods that have no watch. A list takes a turn, as a write does: the API server looks at all pods of the
        namespace for it.
        """
        async with self._pace.turn(owner.namespace, owner.uid):
            return await self._api.list_first(f"/api/v1/namespaces/{owner.namespace}/pods", labels, fields, limit)

    async def execute(self, owner: ReconciledObject, intents: Sequence[JobIntent]) -> list[Refusal]:
        """Execute all intents, as far as possible. Returns the API server's rejections."""
        refusals = await slow_start([x for x in intents if isinstance(x, CreateJob)], partial(self._create, owner))
        others = [self._change_job(owner, x) for x in intents if not isinstance(x, CreateJob)]
        return [*refusals, *(refusal for result in await in_parallel(others) for refusal in result)]

    async def _create(self, owner: ReconciledObject, intent: CreateJob) -> Refusal | None:
        manifest = intent.manifest
        path = collection_path_of(manifest)
        async with self._pace.turn(owner.namespace, owner.uid):
            refusal = await create_controlled(self._api, self._store, Kind.CHILD, path, manifest, intent_key(intent))
        if refusal is None:
            log.info("%s/%s created: %s", owner.namespace, manifest["metadata"]["name"], intent.reason)
        return refusal

    async def _change_job(self, owner: ReconciledObject, intent: DeleteJob | PatchJob) -> list[Refusal]:
        namespace, path = owner.namespace, f"/apis/batch/v1/namespaces/{owner.namespace}/jobs/{intent.name}"
        try:
            async with self._pace.turn(namespace, owner.uid):
                match intent:
                    case DeleteJob(name, uid, reason):
                        # In the foreground: its pods are deleted before it, and then its name is free for the next Job.
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
            return refusals_of(error, intent)
        return []


def collection_path_of(manifest: Manifest) -> str:
    """The path at which objects of its kind are created."""
    namespace = manifest["metadata"]["namespace"]
    if manifest["kind"] == "Job":
        return f"/apis/batch/v1/namespaces/{namespace}/jobs"
    return f"/api/v1/namespaces/{namespace}/pods"
