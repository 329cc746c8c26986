"""The writes that jobs and pools share: of the status, and rejections from the API server's error answers.

A write of status has the version that was read as its precondition. If the object has changed since, nothing is
written, and the store gets the current version.
"""

from dataclasses import dataclass
from typing import Any

from understudy_operator.apply.pace import Pace
from understudy_operator.observe.store import Kind, Raw, Store
from understudy_operator.plan.facts.ownership import API_VERSION
from understudy_operator.plan.facts.refusals import Refusal, read_refusal
from understudy_operator.plan.facts.status import Record, written
from understudy_operator.plan.intents import Intent, intent_key
from understudy_operator.runtime.api import Api, ApiError


@dataclass(frozen=True)
class Subject:
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

    async def status(self, subject: Subject, status: Record) -> bool:
        """Replace the status. False if the object has changed since it was read; the store then has its new version."""
        metadata = {**subject.metadata, "resourceVersion": subject.version}
        body: dict[str, Any] = {"apiVersion": API_VERSION, "kind": subject.kind_name, "metadata": metadata}
        body["status"] = written(status)
        await self._pace.acquire(subject.namespace, subject.uid)
        try:
            self._store.put(subject.kind, await self._api.replace(f"{subject.path}/status", body))
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            await refresh_object(self._api, self._store, subject.kind, subject.path, subject.metadata)
            return False
        return True


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
