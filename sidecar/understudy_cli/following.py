"""Follows collections: one list and one watch for each, in a thread of its own.

A watch that ends continues from its last version. If that version has expired, or after no answer, the collection is
listed again. A thread that gets no answer reports it and retries, first after 1 s, and at the end every 30 s. An answer
that a retry does not change (401, 403, 404) ends the thread with its error.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from understudy_cli import fields
from understudy_cli.api import FORBIDDEN, GONE, NOT_FOUND, UNAUTHORIZED, Api
from understudy_cli.failures import NoAnswer
from understudy_cli.fields import Raw

T = TypeVar("T")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
#: A watch that ends sooner is not repeated at once: a proxy may end each watch.
SHORT_S = 0.5


@dataclass(frozen=True)
class Collection:
    """name: the key of its objects in the result. selector, fields_of: of labels and of fields."""

    name: str
    path: str
    selector: str = ""
    fields_of: str = ""


@dataclass(frozen=True)
class Listed:
    """All objects of a collection."""

    name: str
    items: tuple[Raw, ...]


@dataclass(frozen=True)
class Changed:
    name: str
    object: Raw
    is_deleted: bool


@dataclass(frozen=True)
class Disconnected:
    """A collection gets no answer, and is retried."""

    name: str
    why: str


@dataclass(frozen=True)
class Ended:
    """A collection cannot be followed."""

    error: Exception


Report = Listed | Changed | Disconnected | Ended


class Followed:
    """The objects of the followed collections, as reported so far. `take` waits for news."""

    def __init__(self, api: Api, collections: tuple[Collection, ...]) -> None:
        self._reports: queue.Queue[Report] = queue.Queue()
        self._objects: dict[str, dict[str, Raw]] = {}
        self._names = tuple(collection.name for collection in collections)
        self.disconnected: dict[str, str] = {}  # by collection: why
        for collection in collections:
            threading.Thread(target=_follow, args=(api, collection, self._reports.put), daemon=True).start()

    @property
    def is_complete(self) -> bool:
        """Whether each collection was listed."""
        return all(name in self._objects for name in self._names)

    def objects(self, name: str) -> tuple[Raw, ...]:
        return tuple(self._objects.get(name, {}).values())

    def take(self, limit_s: float) -> bool:
        """Wait for news, and apply all. Returns whether there were any. Raises the error that ended a collection."""
        try:
            self._apply(self._reports.get(timeout=limit_s))
        except queue.Empty:
            return False
        while not self._reports.empty():
            self._apply(self._reports.get())
        return True

    def _apply(self, report: Report) -> None:
        match report:
            case Listed(name, items):
                self._objects[name] = {_key(item): item for item in items}
                self.disconnected.pop(name, None)
            case Changed(name, content, is_deleted):
                self.disconnected.pop(name, None)
                if is_deleted:
                    self._objects.get(name, {}).pop(_key(content), None)
                else:
                    self._objects.setdefault(name, {})[_key(content)] = content
            case Disconnected(name, why):
                self.disconnected[name] = why
            case Ended(error):
                raise error


class ReadOnce(Generic[T]):
    """Reads each object once, however often it is shown: a job may have thousands of pods, of which few change."""

    def __init__(self, read: Callable[[Raw], T]) -> None:
        self._read = read
        # By identity. The object is kept, so that no other object gets its identity.
        self._known: dict[int, tuple[Raw, T]] = {}

    def __call__(self, raws: Iterable[Raw]) -> list[T]:
        known = self._known
        self._known = {id(raw): known[id(raw)] if id(raw) in known else (raw, self._read(raw)) for raw in raws}
        return [found for _, found in self._known.values()]


def _key(raw: Raw) -> str:
    return f"{fields.text(raw, 'metadata', 'namespace')}/{fields.text(raw, 'metadata', 'name')}"


def _follow(api: Api, collection: Collection, put: Callable[[Report], None]) -> None:
    version, pause_s = "", FIRST_PAUSE_S
    wait = threading.Event().wait
    while True:
        try:
            if not version:
                found = api.list(collection.path, collection.selector, collection.fields_of)
                version = found.version
                put(Listed(collection.name, found.items))
            began = time.monotonic()
            for event in api.watch(collection.path, version, collection.selector, collection.fields_of):
                version = str(fields.get(event.object, "metadata", "resourceVersion") or version)
                pause_s = FIRST_PAUSE_S
                if event.kind != "BOOKMARK":
                    put(Changed(collection.name, event.object, event.kind == "DELETED"))
            if time.monotonic() - began < SHORT_S:
                wait(SHORT_S)
        except NoAnswer as error:
            if error.status in (UNAUTHORIZED, FORBIDDEN, NOT_FOUND):
                put(Ended(error))
                return
            if error.status == GONE:
                version = ""
                wait(SHORT_S)
                continue
            put(Disconnected(collection.name, str(error)))
            version = ""  # a list shows that the connection works again, even if nothing has changed
            wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        except Exception as error:  # noqa: BLE001 (`take` raises it in the thread that waits)
            put(Ended(error))
            return
