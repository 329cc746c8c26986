"""Decodes the API server's answers and the lines of its watches.

Rules: of pods and nodes only the listed fields (kept_fields.py) are decoded: 2 KB of a pod of 10 KB. An object whose
fields have other types is decoded whole, and the store rejects it. So items of a list and lines of a watch are decoded
one by one, and one malformed object does not affect the others. Of an object that has too many values, or is nested
too deeply, only the name is kept, with UNREADABLE.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypedDict

import msgspec

from understudy_operator.runtime.json_size import values_in
from understudy_operator.runtime.kept_fields import RawNode, RawPod

Raw = dict[str, Any]
#: The API server's limit for nesting.
DEEPEST = 10_000
#: Limit for commas, brackets and braces of an object. The largest objects are TrainingJobs of thousands of Jobs, whose
#: status counts the restarts of each.
MOST_VALUES = 100_000
#: Key of an object of which only the name was decoded; its value is the reason. No object of the API server has it.
UNREADABLE = "cannot be read"
_TOO_DEEP = "spec: it is nested too deeply: remove the fields that no Kubernetes version knows"


class _Page(TypedDict):
    metadata: Raw
    items: list[msgspec.Raw] | None


class _Identity(TypedDict, total=False):
    namespace: str
    name: str
    uid: str
    resourceVersion: str


class _Named(msgspec.Struct):
    """The fields that are read of an object that is not decoded."""

    metadata: _Identity = {}


class WatchEvent(msgspec.Struct):
    """A line of a watch."""

    type: str
    object: msgspec.Raw


Decode = Callable[[bytes | msgspec.Raw], Any]
_ANY: Decode = msgspec.json.Decoder().decode
_OBJECTS: dict[str, Decode] = {
    "pods": msgspec.json.Decoder(RawPod).decode,
    "nodes": msgspec.json.Decoder(RawNode).decode,
}
_PAGE = msgspec.json.Decoder(_Page).decode
_WATCH_EVENT = msgspec.json.Decoder(WatchEvent).decode
_NAMED = msgspec.json.Decoder(_Named).decode
#: Their strings may have any number of commas, and no tenant writes them.
_UNLIMITED = ("configmaps",)


def decode_watch_event(line: bytes) -> WatchEvent:
    """Raises msgspec.DecodeError if the line is not a watch event."""
    try:
        return _WATCH_EVENT(line)
    except RecursionError:
        with _deep_stack():
            return _WATCH_EVENT(line)


def origin_of(event: WatchEvent) -> tuple[str, str]:
    """Namespace and resourceVersion of the object in the line, "" where it has none. Nothing else is decoded. Raises
    msgspec.DecodeError if there is no object.
    """
    try:
        metadata = _NAMED(event.object).metadata
    except RecursionError:
        with _deep_stack():
            metadata = _NAMED(event.object).metadata
    return metadata.get("namespace", ""), metadata.get("resourceVersion", "")


def object_of(resource: str, event: WatchEvent) -> Raw:
    """The object in the line. Raises msgspec.DecodeError if there is none."""
    raw: Raw = _one(resource)(event.object)
    return raw


def decoder(method: str, path: str) -> Decode:
    """The decoder of the answer to that request. A deletion's answer may have another kind: a Status."""
    _, prefix, *parts = path.split("/")
    parts = parts[1 if prefix == "api" else 2 :]
    if method == "DELETE" or not parts:
        return _one("")
    if parts[0] == "namespaces" and len(parts) > 2:
        parts = parts[2:]
    resource = parts[0] if prefix == "api" else ""
    return _page_of(_one(resource)) if len(parts) == 1 and method == "GET" else _one(resource)


def _one(resource: str) -> Decode:
    decode = _OBJECTS.get(resource, _ANY)

    def read(data: bytes | msgspec.Raw) -> Any:
        if resource not in _UNLIMITED and (values := values_in(data)) > MOST_VALUES:
            return _decode_identity(
                data, f"the object has {values} values; at most {MOST_VALUES} are allowed: make it smaller"
            )
        try:
            return decode(data)
        except msgspec.ValidationError:
            return _ANY(data)
        except RecursionError:
            return _decode_identity(data, _TOO_DEEP)

    return read


def _decode_identity(data: bytes | msgspec.Raw, reason: str) -> Raw:
    with _deep_stack():
        return unreadable(_NAMED(data).metadata, reason)


def unreadable(metadata: Mapping[str, Any], reason: str) -> Raw:
    """A replacement for an object, with its name, uid and version."""
    kept = {field: metadata[field] for field in _Identity.__annotations__ if isinstance(metadata.get(field), str)}
    return {"metadata": kept, UNREADABLE: reason}


def _page_of(one: Decode) -> Decode:
    def read(data: bytes | msgspec.Raw) -> Any:
        try:
            page = _PAGE(data)
        except RecursionError:
            with _deep_stack():
                page = _PAGE(data)
        # One by one, as the caller takes them: the objects of a page may take many times the memory of its bytes.
        return {"metadata": page["metadata"], "items": map(one, page["items"] or ())}

    return read


@contextmanager
def _deep_stack() -> Iterator[None]:
    """Allow to skip a value that is nested as deeply as the API server allows; it is not decoded."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + 2 * DEEPEST)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
