"""An API server in memory: its objects, its answers and its notifications. client.py adds faults."""

from __future__ import annotations

import base64
import copy
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.simulation_operator.clockwork import EPOCH
from tests.unit.operator.fake_api import merged
from understudy_operator.runtime.api import ApiError

Raw = dict[str, Any]
OnChange = Callable[[str, str, Raw], None]  # plural, event type, object
PAGE = 3  # small, so that lists have several


@dataclass(frozen=True)
class Where:
    plural: str
    namespace: str
    name: str = ""
    sub: str = ""


def where(path: str) -> Where:
    parts = path.strip("/").split("/")
    remaining = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if remaining[0] == "namespaces":
        namespace, remaining = remaining[1], remaining[2:]
    return Where(remaining[0], namespace, *remaining[1:3])


@dataclass
class ApiServer:
    """`now` is simulated time. `refuse` returns the rejection of a creation, or None; `forbid` does the same for
    changes and deletions of pods.
    """

    now: Callable[[], float]
    objects: dict[tuple[str, str, str], Raw] = field(default_factory=dict)
    watchers: list[OnChange] = field(default_factory=list)
    events: list[Raw] = field(default_factory=list)  # Kubernetes Events
    refuse: Callable[[Raw], ApiError | None] = lambda _: None
    forbid: Callable[[], ApiError | None] = lambda: None
    _versions: itertools.count[int] = field(default_factory=lambda: itertools.count(100))
    _pages: dict[str, list[Raw]] = field(default_factory=dict)

    # Requests

    def handle(self, method: str, path: str, query: Mapping[str, str], body: Raw | None) -> Raw:
        at = where(path)
        if at.plural == "pods" and method in ("PATCH", "DELETE") and (forbidden := self.forbid()):
            raise forbidden
        match method:
            case "GET" if at.name:
                return self._existing(at)
            case "GET":
                return self._page(at, query)
            case "POST":
                return self._create(at, body or {}, keep="dryRun" not in query)
            case "PUT":
                return self._replace(at, body or {})
            case "PATCH":
                return self._merge(at, body or {})
            case _:
                return self._delete(at, body or {})

    def _create(self, at: Where, body: Raw, *, keep: bool) -> Raw:
        if at.plural == "events":
            if any(event["metadata"] == body["metadata"] for event in self.events):
                raise ApiError(409, "AlreadyExists", f"event {body['metadata']['name']} already exists")
            self.events.append(body)
            return body
        key = (at.plural, at.namespace, body["metadata"]["name"])
        if at.plural == "secrets" and (refused := self.refuse(body)):
            raise refused  # a quota rejects even the creation of an object that exists
        if key in self.objects:
            raise ApiError(409, "AlreadyExists", f"{key} already exists")
        if refused := self.refuse(body):
            raise refused
        return self.put(at.plural, body) if keep else body

    def _replace(self, at: Where, body: Raw) -> Raw:
        known = self._existing(at)
        for name in ("resourceVersion", "uid"):
            result = body["metadata"].get(name)
            if result is not None and result != known["metadata"][name]:
                raise ApiError(409, "Conflict", f"{at.name} has been modified")
        if at.sub == "status":
            return self.put(at.plural, {**known, "status": body["status"]})
        return self.put(at.plural, {**body, "metadata": {**known["metadata"], **body["metadata"]}})

    def _merge(self, at: Where, body: Raw) -> Raw:
        known = copy.deepcopy(self._existing(at))
        metadata, result = known["metadata"], body.get("metadata", {})
        if any(result.get(name, metadata[name]) != metadata[name] for name in ("resourceVersion", "uid")):
            raise ApiError(409, "Conflict", f"{at.name} has been modified")
        for name in ("labels", "annotations"):
            metadata[name] = merged(metadata.get(name, {}), result.get(name, {}))
        if "finalizers" in result:
            metadata["finalizers"] = result["finalizers"] or []
        if "ownerReferences" in result:
            metadata["ownerReferences"] = result["ownerReferences"]
        if "spec" in body:
            known["spec"] = merged(known["spec"], body["spec"])
        if at.plural == "recoveries":  # their fields are beside metadata
            known = {**merged(known, {name: value for name, value in body.items() if name != "metadata"})}
        is_done = metadata.get("deletionGracePeriodSeconds") == 0 and not metadata.get("finalizers")
        return self.remove(at.plural, known) if is_done else self.put(at.plural, known)

    def _delete(self, at: Where, body: Raw) -> Raw:
        known = copy.deepcopy(self._existing(at))
        for name, wanted in body.get("preconditions", {}).items():
            if wanted != known["metadata"][name]:
                raise ApiError(409, "Conflict", f"{at.name} has another {name}")
        pod = at.plural == "pods"
        if not pod or body.get("gracePeriodSeconds") == 0 or not known["spec"].get("nodeName"):
            return self.remove_or_terminate(at.plural, known)
        if "deletionTimestamp" not in known["metadata"]:
            known["metadata"] |= {"deletionTimestamp": self.timestamp(30.0), "deletionGracePeriodSeconds": 30}
        return self.put(at.plural, known)

    def _existing(self, at: Where) -> Raw:
        key = (at.plural, at.namespace, at.name)
        if key not in self.objects:
            raise ApiError(404, "NotFound", f"{key} not found")
        return self.objects[key]

    def _page(self, at: Where, query: Mapping[str, str]) -> Raw:
        token = query.get("continue", "")
        if token:
            items = self._pages.pop(token, None)
            if items is None:
                raise ApiError(410, "Expired", "the list is too old")
        else:
            items = self.of(at.plural, query.get("labelSelector", ""))
        page, remaining = items[:PAGE], items[PAGE:]
        token = ""
        if remaining:
            token = str(next(self._versions))
            self._pages[token] = remaining
        return {"items": page, "metadata": {"continue": token}}

    # Changes by other components, without a request

    def of(self, plural: str, label: str = "", **labels: str) -> list[Raw]:
        """The objects of a kind that have this label, and these labels with these values. label: also NAME=VALUE."""
        label, _, value = label.partition("=")
        labels |= {label: value} if value else {}
        found = []
        for (kind, _, _), raw in self.objects.items():
            result = raw["metadata"].get("labels", {})
            if kind == plural and (not label or label in result) and labels.items() <= result.items():
                found.append(raw)
        return found

    def put(self, plural: str, body: Raw) -> Raw:
        raw = copy.deepcopy(dict(body))
        metadata = raw["metadata"]
        key = (plural, metadata.get("namespace", ""), metadata["name"])
        known = self.objects.get(key)
        if known is not None and _content(known) == _content(raw):
            return known
        metadata.setdefault("uid", f"uid-{next(self._versions)}")
        metadata.setdefault("creationTimestamp", self.timestamp())
        metadata["resourceVersion"] = str(next(self._versions))
        if texts := raw.pop("stringData", {}):
            raw["data"] = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
        if plural == "services":
            raw["spec"].setdefault("clusterIP", "10.0.0.7")
        if plural == "jobs" and not raw.get("status", {}).get("conditions"):  # its pod never gets ready
            raw["status"] = {**raw.get("status", {}), "active": 0 if raw["spec"].get("suspend") else 1}
        self.objects[key] = raw
        self._notify(plural, "MODIFIED" if known else "ADDED", raw)
        return raw

    def remove_or_terminate(self, plural: str, raw: Raw) -> Raw:
        """Remove the object now, or once its last finalizer is removed."""
        metadata = raw["metadata"]
        if not metadata.get("finalizers"):
            return self.remove(plural, raw)
        going = {"deletionTimestamp": self.timestamp(), **metadata, "deletionGracePeriodSeconds": 0}
        return self.put(plural, {**raw, "metadata": going})

    def remove(self, plural: str, raw: Raw) -> Raw:
        metadata = raw["metadata"]
        known = self.objects.get((plural, metadata.get("namespace", ""), metadata["name"]))
        if known is None or known["metadata"]["uid"] != metadata["uid"]:
            return raw
        del self.objects[plural, metadata.get("namespace", ""), metadata["name"]]
        gone = copy.deepcopy(known)
        gone["metadata"]["resourceVersion"] = str(next(self._versions))
        self._notify(plural, "DELETED", gone)
        return gone

    def timestamp(self, in_s: float = 0.0) -> str:
        return datetime.fromtimestamp(EPOCH + self.now() + in_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _notify(self, plural: str, kind: str, raw: Raw) -> None:
        for watcher in list(self.watchers):
            watcher(plural, kind, raw)


def _content(raw: Raw) -> Raw:
    metadata = {name: value for name, value in raw["metadata"].items() if name != "resourceVersion"}
    return {**raw, "metadata": metadata}
