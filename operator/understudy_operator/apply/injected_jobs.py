"""Writes for jobs whose pods are injected: the InjectedJob, the annotation of a pod, and the event on the owner."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from understudy_operator.apply.events import send_event
from understudy_operator.apply.pace import Pace
from understudy_operator.observe.store import Kind, Raw, Store
from understudy_operator.plan.facts.ownership import API_VERSION
from understudy_operator.plan.injection.owner import PATHS, Owner
from understudy_operator.plan.intents import Event, PatchPod
from understudy_operator.runtime.api import Api, ApiError

log = logging.getLogger(__name__)


class InjectedJobExecutor:
    def __init__(self, api: Api, store: Store, pace: Pace) -> None:
        self._api, self._store, self._pace = api, store, pace

    async def create(self, namespace: str, owner: Owner, manifest: Raw) -> None:
        """Create the InjectedJob. When a JobSet restarts, the one of its previous attempt is deleted first."""
        path = f"/apis/{API_VERSION}/namespaces/{namespace}/injectedjobs"
        if owner.attempt:
            await self._delete(f"{path}/{replace(owner, attempt=owner.attempt - 1).group}", namespace, owner)
        try:
            async with self._pace.turn(namespace, owner.uid):
                raw = await self._api.create(path, manifest)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            raw = await self._api.get(f"{path}/{owner.group}")
            if target_uid(raw) != owner.uid:
                raise  # it belongs to a deleted Job of the same name, and will be gone soon
        log.info("%s/%s created: pods of %s %s are injected", namespace, owner.group, owner.kind, owner.name)
        self._store.put(Kind.INJECTED, raw)

    async def annotate(self, namespace: str, uid: str, patch: PatchPod) -> None:
        """Write the node's verdict as an annotation of that pod."""
        body = {"metadata": {"annotations": dict(patch.annotations)}}
        try:
            async with self._pace.turn(namespace, uid):
                raw = await self._api.merge(f"/api/v1/namespaces/{namespace}/pods/{patch.name}", body)
            self._store.put(Kind.POD, raw)
        except ApiError as error:
            if error.status != 404:
                raise

    async def report(self, namespace: str, owner: Owner, event: Event) -> None:
        regarding = {"apiVersion": PATHS[owner.kind][0], "kind": owner.kind, "name": owner.name, "uid": owner.uid}
        log.warning("%s/%s: %s", namespace, owner.name, event.message)
        await send_event(self._api, self._pace, {**regarding, "namespace": namespace}, event)

    async def _delete(self, path: str, namespace: str, owner: Owner) -> None:
        try:
            async with self._pace.turn(namespace, owner.uid):
                await self._api.delete(path, {})
        except ApiError as error:
            if error.status != 404:
                raise


def target_uid(injected: Mapping[str, Any]) -> str:
    """The uid of an InjectedJob's target."""
    target = injected.get("spec", {}).get("target", {})
    return str(target.get("uid", "")) if isinstance(target, Mapping) else ""
