"""An API server of dictionaries, with the calls that the operator makes: no watch, no controller, no validation.

A test sets `refuse` to a function of the manifest that returns a rejection's message, or ""; or `deny` to a function of
method and path that returns the answer, or None.
"""

import base64
import copy
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from understudy_operator.runtime.api import Api, ApiError, Keep, ObjectList

Raw = dict[str, Any]
CREATED = "2026-11-20T10:00:00Z"


def owned_by(uid: str, kind: str = "TrainingJob") -> list[Raw]:
    """The ownerReferences of an object whose controller is the job, or the pool, of that uid."""
    return [{"kind": kind, "uid": uid, "controller": True}]


class FakeApi(Api):
    def __init__(self) -> None:
        super().__init__(None)
        self.objects: dict[str, Raw] = {}
        self.calls: list[tuple[str, str]] = []
        self.history: list[Raw] = []  # every state of every object
        self.refuse: Callable[[Mapping[str, Any]], str] = lambda _: ""
        self.deny: Callable[[str, str], Exception | None] = lambda *_: None
        self._versions, self._addresses = itertools.count(100), itertools.count(7)

    async def get(self, path: str) -> Raw:
        return self._called("GET", path)

    async def list_first(self, path: str, selector: str, fields: str, limit: int) -> list[Raw]:
        """Ignores field selectors. Of the label selectors it knows those of child Jobs' pods."""
        del selector
        self.calls.append(("LIST", f"{path}?{fields}"))
        self._let("LIST", path)
        field, _, value = fields.partition("=")
        found = [raw for key, raw in self.objects.items() if key.startswith(f"{path}/") and _at(raw, field) == value]
        return copy.deepcopy(found[:limit])

    async def create(self, path: str, body: Mapping[str, Any]) -> Raw:
        name = body["metadata"].get("name") or f"{body['metadata']['generateName']}{len(self.objects)}"
        key = f"{path}/{name}"
        self.calls.append(("POST", key))
        if key in self.objects:
            raise ApiError(409, "AlreadyExists", f"{key} exists")
        if message := self.refuse(body):
            raise ApiError(422, "Invalid", message)
        self._let("POST", key)
        return self.put(key, body)

    async def dry_run(self, path: str, body: Mapping[str, Any]) -> None:
        self.calls.append(("CHECK", path))
        key = f"{path}/{body['metadata']['name']}"
        if key in self.objects:
            raise ApiError(409, "AlreadyExists", f"{key} exists")
        if message := self.refuse(body):
            raise ApiError(422, "Invalid", message)

    async def replace(self, path: str, body: Mapping[str, Any]) -> Raw:
        object_path = path.removesuffix("/status")
        known = self._called("PUT", object_path)
        if known["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        return self.put(object_path, body if path == object_path else {**known, "status": body["status"]})

    async def merge(self, path: str, body: Mapping[str, Any]) -> Raw:
        path = path.removesuffix("/status")
        known = self._called("PATCH", path)
        uid = known["metadata"]["uid"]
        if body.get("metadata", {}).get("uid", uid) != uid:
            raise ApiError(422, "Invalid", "metadata.uid: Invalid value: field is immutable")
        version = body.get("metadata", {}).get("resourceVersion")
        if version not in (None, known["metadata"]["resourceVersion"]):
            raise ApiError(409, "Conflict", "the object has been modified")
        return self.put(path, merged(known, body))

    async def delete(self, path: str, body: Mapping[str, Any]) -> Raw:
        known = self._called("DELETE", path)
        version = known["metadata"]["resourceVersion"]
        if body.get("preconditions", {}).get("resourceVersion", version) != version:
            raise ApiError(409, "Conflict", "the object has been modified")
        del self.objects[path]
        return known

    def put(self, path: str, body: Mapping[str, Any]) -> Raw:
        """Store an object as the API server does, for any writer."""
        raw = copy.deepcopy(dict(body))
        metadata = raw["metadata"]
        metadata.setdefault("name", path.rpartition("/")[2])
        metadata.setdefault("uid", f"uid-{next(self._versions)}")
        metadata.setdefault("creationTimestamp", CREATED)
        metadata["resourceVersion"] = str(next(self._versions))
        if raw.get("kind") == "Secret" and (texts := raw.pop("stringData", {})):
            raw["data"] = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
        if raw.get("kind") == "Service":
            raw["spec"].setdefault("clusterIP", f"10.0.0.{next(self._addresses)}")
        self.objects[path] = raw
        self.history.append(copy.deepcopy(raw))
        return copy.deepcopy(raw)

    def of_kind(self, kind: str) -> list[Raw]:
        return [raw for raw in self.objects.values() if raw.get("kind") == kind]

    def _let(self, method: str, path: str) -> None:
        if denied := self.deny(method, path):
            raise denied

    def _called(self, method: str, path: str) -> Raw:
        self.calls.append((method, path))
        self._let(method, path)
        if path not in self.objects:
            raise ApiError(404, "NotFound", f"{path} not found")
        return copy.deepcopy(self.objects[path])

    async def list(self, path: str, selector: str = "", keep: Keep = lambda raw: raw) -> ObjectList:
        """selector: one label and its value, or ""."""
        self.calls.append(("LIST", f"{path}?{selector}"))
        self._let("LIST", path)
        label, _, value = selector.partition("=")
        listed = [raw for key, raw in self.objects.items() if key.startswith(f"{path}/")]
        selected = [raw for raw in listed if not label or raw["metadata"].get("labels", {}).get(label) == value]
        kept = (keep(copy.deepcopy(raw)) for raw in selected)
        return ObjectList([raw for raw in kept if raw is not None], "100")


def _at(raw: Raw, field: str) -> object:
    for name in field.split("."):
        raw = raw.get(name, {})
    return raw


def merged(known: Raw, patch: Mapping[str, Any]) -> Raw:
    """As in RFC 7396."""
    result = {name: value for name, value in known.items() if patch.get(name, "") is not None}
    for name, value in patch.items():
        if isinstance(value, Mapping):
            result[name] = merged(result.get(name, {}), value)
        elif value is not None:
            result[name] = value
    return result
