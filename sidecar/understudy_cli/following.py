"""Follows collections: one list and one watch for each, in a thread of its own.

A watch that ends continues from its last version. If that version has expired, or after no answer, the collection is
listed again. A thread that gets no answer reports it and retries, first after 1 s, and at the end every 30 s. An answer
that a retry does not change (401, 403, 404) ends the thread with its error. A closed Api ends all threads.
"""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from understudy_cli import fields
from understudy_cli.api import FORBIDDEN, GONE, NOT_FOUND, UNAUTHORIZED, Api
from understudy_cli.command_errors import NoAnswer
from understudy_cli.fields import Raw

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
#: A watch that ends sooner is not repeated at once: a proxy may end each watch.
SHORT_S = 0.5


def _unread(raw: Raw) -> Raw:
    return raw


@dataclass(frozen=True)
class Collection:
    """name: the key of its objects in the result, which several collections may have. selector, fields_of: of labels
    and of fields. read: makes a fact of each object when it arrives. Only the fact is kept.
    """

    name: str
    path: str
    selector: str = ""
    fields_of: str = ""
    read: Callable[[Raw], object] = _unread


@dataclass(frozen=True)
class Listed:
    """All objects of a collection, by their keys."""

    of: Collection
    items: dict[str, object]


@dataclass(frozen=True)
class Changed:
    """item: None if the object was deleted."""

    of: Collection
    key: str
    item: object | None


@dataclass(frozen=True)
class Disconnected:
    """A collection gets no answer, and is retried."""

    of: Collection
    why: str


@dataclass(frozen=True)
class FollowingEnded:
    """A collection cannot be followed."""

    error: Exception


Report = Listed | Changed | Disconnected | FollowingEnded


class Followed:
    """The objects of the followed collections, as reported so far. `take` waits for news."""

    def __init__(self, api: Api, collections: tuple[Collection, ...]) -> None:
        self._reports: queue.Queue[Report] = queue.Queue()
        self._collections = collections
        self._items: dict[Collection, dict[str, object]] = {}
        self._disconnected: dict[Collection, str] = {}
        for collection in collections:
            threading.Thread(target=_follow, args=(api, collection, self._reports.put), daemon=True).start()

    @property
    def is_complete(self) -> bool:
        """Whether each collection was listed."""
        return all(collection in self._items for collection in self._collections)

    @property
    def disconnected(self) -> dict[str, str]:
        """Why, by the name of the collection."""
        return {collection.name: why for collection, why in self._disconnected.items()}

    def objects(self, name: str) -> tuple[Any, ...]:
        """What `read` of the collection has made of them."""
        named = [items for collection, items in self._items.items() if collection.name == name]
        return tuple(item for items in named for item in items.values())

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
            case Listed(of, items):
                self._items[of] = items
                self._disconnected.pop(of, None)
            case Changed(of, key, item):
                self._disconnected.pop(of, None)
                if item is None:
                    self._items.get(of, {}).pop(key, None)
                else:
                    self._items.setdefault(of, {})[key] = item
            case Disconnected(of, why):
                self._disconnected[of] = why
            case FollowingEnded(error):
                raise error


def _key(raw: Raw) -> str:
    return f"{fields.text(raw, 'metadata', 'namespace')}/{fields.text(raw, 'metadata', 'name')}"


def _list(api: Api, collection: Collection) -> tuple[dict[str, object], str]:
    """The objects, and the version from which a watch continues."""
    items: dict[str, object] = {}
    version = ""
    for page in api.pages(collection.path, collection.selector, collection.fields_of):
        items |= {_key(raw): collection.read(raw) for raw in page.items}
        version = page.version
    return items, version


def _follow(api: Api, collection: Collection, put: Callable[[Report], None]) -> None:
    version, pause_s = "", FIRST_PAUSE_S
    wait = api.closed.wait
    while not api.closed.is_set():
        try:
            if not version:
                items, version = _list(api, collection)
                put(Listed(collection, items))
            began = time.monotonic()
            for event in api.watch(collection.path, version, collection.selector, collection.fields_of):
                version = str(fields.get(event.object, "metadata", "resourceVersion") or version)
                pause_s = FIRST_PAUSE_S
                if event.kind != "BOOKMARK":
                    item = None if event.kind == "DELETED" else collection.read(event.object)
                    put(Changed(collection, _key(event.object), item))
            if time.monotonic() - began < SHORT_S:
                wait(SHORT_S)
        except NoAnswer as error:
            if error.status in (UNAUTHORIZED, FORBIDDEN, NOT_FOUND):
                put(FollowingEnded(error))
                return
            if error.status == GONE:
                version = ""
                wait(SHORT_S)
                continue
            put(Disconnected(collection, str(error)))
            version = ""  # a list shows that the connection works again, even if nothing has changed
            wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        except Exception as error:  # noqa: BLE001 (`take` raises it in the thread that waits)
            put(FollowingEnded(error))
            return
