"""The writes that jobs and pools share: creations, status, events; and rejections from the API server's error answers.

A write of status has the version that was read as its precondition. If the object has changed since, nothing is
written, and the store gets the current version.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from understudy_operator.apply.events import Outbox
from understudy_operator.apply.pace import Pace
from understudy_operator.observe.store import Kind, Raw, Store, job_kind
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.ownership import (
    API_VERSION,
    POOL_KIND,
    controller_uid,
    kind_of,
    object_path_of,
    object_uid,
)
from understudy_operator.plan.facts.pool_facts import Pool
from understudy_operator.plan.facts.refusals import ADDRESS_TAKEN, Refusal, RefusalKind, read_refusal
from understudy_operator.plan.facts.status import Record, written
from understudy_operator.plan.intents import Event, Intent, Manifest, intent_key
from understudy_operator.runtime.api import Api, ApiError
from understudy_operator.runtime.clock import Backoffs

ADDRESS_ATTEMPTS = 4
ReconciledObject = Job | Pool


@dataclass(frozen=True)
class _Subject:
    """A TrainingJob, an InjectedJob or a HotSparePool at the version that was read."""

    kind: Kind  # in the store
    kind_name: str
    path: str  # at the API server
    namespace: str
    name: str
    uid: str
    version: str

    @property
    def metadata(self) -> dict[str, str]:
        return {"namespace": self.namespace, "name": self.name, "uid": self.uid}

    @property
    def regarding(self) -> dict[str, str]:
        """The reference to the object in an event."""
        return {"apiVersion": API_VERSION, "kind": self.kind_name, **self.metadata}


class Subjects:
    def __init__(self, api: Api, store: Store, pace: Pace) -> None:
        self._api, self._store, self._pace = api, store, pace

    def add_events(self, outbox: Outbox, owner: ReconciledObject, events: Iterable[Event]) -> None:
        outbox.add(_subject(owner).regarding, events)

    async def status(self, owner: ReconciledObject, status: Record) -> bool:
        """Replace the status. False if the object has changed since it was read; the store then has its new version."""
        subject = _subject(owner)
        metadata = {**subject.metadata, "resourceVersion": subject.version}
        body: dict[str, Any] = {"apiVersion": API_VERSION, "kind": subject.kind_name, "metadata": metadata}
        body["status"] = written(status)
        try:
            async with self._pace.turn(subject.namespace, subject.uid):
                self._store.put(subject.kind, await self._api.replace(f"{subject.path}/status", body))
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            await refresh_object(self._api, self._store, subject.kind, subject.path, subject.metadata)
            return False
        return True


def _subject(owner: ReconciledObject) -> _Subject:
    if isinstance(owner, Pool):
        path = f"/apis/{API_VERSION}/namespaces/{owner.namespace}/hotsparepools/{owner.name}"
        kind, kind_name, uid = Kind.POOL, POOL_KIND, owner.uid
    else:
        path, kind = object_path_of(owner), job_kind((owner.namespace, owner.name))
        kind_name, uid = kind_of(owner), object_uid(owner)
    return _Subject(kind, kind_name, path, owner.namespace, owner.name, uid, owner.resource_version)


async def create_controlled(
    api: Api, store: Store, kind: Kind, path: str, manifest: Manifest, key: str
) -> Refusal | None:
    """Create the object, which the reconciled object controls. Returns the rejection; None once the object exists.

    key: intent_key() of the creation.
    """
    name = manifest["metadata"]["name"]
    try:
        raw = await _create(api, path, manifest)
    except ApiError as error:
        if refusal := read_refusal(error.status, str(error), key=key):
            return refusal
        if error.reason != "AlreadyExists":
            raise
        raw = await api.get(f"{path}/{name}")
    is_shared = kind is Kind.CLAIM and "ownerReferences" not in manifest["metadata"]
    if controller_uid(raw) != controller_uid(manifest) and not is_shared:
        return Refusal(
            f"{manifest['kind']} {name} exists and does not belong to this job, which needs an object of this name: "
            "delete that object, or give the job another name",
            RefusalKind.NAME,
            key,
        )
    store.put(kind, raw)
    return None


async def _create(api: Api, path: str, manifest: Manifest) -> Raw:
    """The ClusterIP of a deleted Service becomes free a moment after the deletion was reported."""
    for pause_s in islice(Backoffs(0.1, 0.8), ADDRESS_ATTEMPTS):
        try:
            return await api.create(path, manifest)
        except ApiError as error:
            if ADDRESS_TAKEN not in str(error):
                raise
        await asyncio.sleep(pause_s)
    return await api.create(path, manifest)


async def refresh_object(api: Api, store: Store, kind: Kind, path: str, metadata: Raw) -> None:
    """Put the object's current version into the store. metadata: identifies it in the store, if it is gone."""
    try:
        store.put(kind, await api.get(path))
    except ApiError as error:
        if error.status != 404:
            raise
        store.remove(kind, {"metadata": metadata})


def refusals_of(error: ApiError, intent: Intent) -> list[Refusal]:
    """The rejection. Empty if the object is gone or was replaced: the store will show that.

    Raises all other errors.
    """
    if error.is_uid_conflict:
        return []
    refusal = read_refusal(error.status, str(error), key=intent_key(intent))
    if refusal is None and error.status not in (404, 409):
        raise error
    return [] if refusal is None else [refusal]
