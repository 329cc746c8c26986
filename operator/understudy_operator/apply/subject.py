"""An object of ours that passes are about, at the API server: its status is written.

A status counts on the version that was read: where the object has changed since, nothing is written, and the store has
it as it is now.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from understudy_operator.apply.api import Api, ApiError
from understudy_operator.apply.pace import Pace
from understudy_operator.observe.store import Kind, Raw, Store
from understudy_operator.plan.ownership import API_VERSION


@dataclass(frozen=True)
class Subject:
    """A TrainingJob, an InjectedJob or a HotSparePool, as it was read."""

    kind: Kind  # in the store
    kind_name: str
    path: str  # where it is served
    namespace: str
    name: str
    uid: str
    version: str

    @property
    def metadata(self) -> dict[str, str]:
        return {"namespace": self.namespace, "name": self.name, "uid": self.uid}

    @property
    def regarding(self) -> dict[str, str]:
        """What refers to it in an event."""
        return {"apiVersion": API_VERSION, "kind": self.kind_name, **self.metadata}


class Subjects:
    def __init__(self, api: Api, store: Store, pace: Pace) -> None:
        self._api, self._store, self._pace = api, store, pace

    async def status(self, subject: Subject, status: Mapping[str, Any]) -> bool:
        """Replace the status; False if the object has changed since it was read. Then the store has it as it is now."""
        metadata = {**subject.metadata, "resourceVersion": subject.version}
        body = {"apiVersion": API_VERSION, "kind": subject.kind_name, "metadata": metadata, "status": status}
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
    """Into the store, as it is now. metadata: by which the store knows it, should it be gone."""
    try:
        store.put(kind, await api.get(path))
    except ApiError as error:
        if error.status != 404:
            raise
        store.remove(kind, {"metadata": metadata})
