"""A ConfigMap that several operators may write: it is read before it is written, and a write replaces the version that
was read.
"""

from collections.abc import Mapping
from typing import Any

from understudy_operator.runtime.api import Api, ApiError


class ConfigMap:
    """data: at the last read or write; None: it has to be read first."""

    def __init__(self, api: Api, namespace: str, name: str) -> None:
        self._api, self._namespace, self._name = api, namespace, name
        self._path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
        self._version = ""  # "": it does not exist
        self.data: Mapping[str, str] | None = None

    async def read(self) -> Mapping[str, str]:
        """The current data; empty if there is none."""
        try:
            raw: Mapping[str, Any] = await self._api.get(self._path)
            self.data, self._version = raw.get("data") or {}, raw["metadata"]["resourceVersion"]
        except ApiError as error:
            if error.status != 404:
                raise
            self.data, self._version = {}, ""
        return self.data

    async def write(self, data: Mapping[str, str]) -> None:
        """If another writer was faster, or has deleted it, nothing is written, and it has to be read again."""
        version = {"resourceVersion": self._version} if self._version else {}
        metadata = {"namespace": self._namespace, "name": self._name, **version}
        whole = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        try:
            if self._version:
                raw = await self._api.replace(self._path, whole)
            else:
                raw = await self._api.create(self._path.rpartition("/")[0], whole)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            self.data = None
            return
        self.data, self._version = data, raw["metadata"]["resourceVersion"]
