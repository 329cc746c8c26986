"""Raw objects by kind, as the watches and lists last told, trimmed to what is read.

Replace semantics: what arrives replaces what was there, unless it is older: the answers to our own writes arrive before
the watch tells of them. A list replaces a whole kind, since a watch that had to start again never tells of deletions
it missed; objects that arrived after the list was asked for are kept, and ones removed since stay removed.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from understudy_protocol import pod as names

Raw = Mapping[str, Any]
Key = tuple[str, str]  # namespace, name


class Kind(Enum):
    JOB = "trainingjobs"
    POD = "pods"
    NODE = "nodes"
    SERVICE = "services"
    SECRET = "secrets"  # noqa: S105
    CHILD = "jobs"
    CLAIM = "persistentvolumeclaims"  # those that this operator has made, or found in their place


@dataclass
class Store:
    _objects: dict[Kind, dict[Key, Raw]] = field(default_factory=lambda: defaultdict(dict))
    _arrived: dict[tuple[Kind, Key], float] = field(default_factory=dict)
    _of_job: dict[tuple[Kind, str], set[Key]] = field(default_factory=lambda: defaultdict(set))  # by job uid
    _removed: dict[str, float] = field(default_factory=dict)  # uids, until a list that was asked for later

    def put(self, kind: Kind, raw: Raw) -> None:
        key = key_of(raw)
        known = self._objects[kind].get(key)
        if raw["metadata"].get("uid") in self._removed or (known is not None and _older(raw, known)):
            return
        self._forget(kind, key)
        self._objects[kind][key] = _trimmed(raw)
        self._arrived[kind, key] = time.monotonic()
        if uid := job_uid_of(raw):
            self._of_job[kind, uid].add(key)

    def remove(self, kind: Kind, raw: Raw) -> None:
        """Forget an object; one of the same name that was created since stays."""
        if uid := raw["metadata"].get("uid"):
            self._removed[uid] = time.monotonic()
        known = self._objects[kind].get(key_of(raw))
        if known is not None and known["metadata"].get("uid") == raw["metadata"].get("uid"):
            self._forget(kind, key_of(raw))

    def replace(self, kind: Kind, raws: Iterable[Raw], asked_at: float) -> None:
        """A list, asked for at `asked_at` (time.monotonic): what it lacks is gone."""
        listed = {key_of(raw): raw for raw in raws}
        for key in list(self._objects[kind]):
            if key not in listed and self._arrived[kind, key] < asked_at:
                self._forget(kind, key)
        for key, raw in listed.items():
            if self._arrived.get((kind, key), 0.0) < asked_at:
                self.put(kind, raw)
        self._removed = {uid: at for uid, at in self._removed.items() if at >= asked_at}

    def get(self, kind: Kind, key: Key) -> Raw | None:
        return self._objects[kind].get(key)

    def all(self, kind: Kind) -> list[Raw]:
        return list(self._objects[kind].values())

    def of_job(self, kind: Kind, job_uid: str) -> list[Raw]:
        return [self._objects[kind][key] for key in sorted(self._of_job[kind, job_uid])]

    def _forget(self, kind: Kind, key: Key) -> None:
        known = self._objects[kind].pop(key, None)
        self._arrived.pop((kind, key), None)
        if known is not None and (uid := job_uid_of(known)):
            self._of_job[kind, uid].discard(key)


def key_of(raw: Raw) -> Key:
    metadata = raw["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def job_uid_of(raw: Raw) -> str:
    return str(raw["metadata"].get("labels", {}).get(names.LABEL_JOB_UID, ""))


def job_key_of(raw: Raw) -> Key | None:
    """The TrainingJob that an object of ours belongs to."""
    name = raw["metadata"].get("labels", {}).get(names.LABEL_JOB)
    return None if name is None else (raw["metadata"].get("namespace", ""), name)


def _older(raw: Raw, known: Raw) -> bool:
    """Whether this is an older state of the same object. Versions of one resource can be compared as numbers."""
    new, old = raw["metadata"], known["metadata"]
    return new.get("uid") == old.get("uid") and int(new["resourceVersion"]) < int(old["resourceVersion"])


def _trimmed(raw: Raw) -> Raw:
    """Without managedFields, which are most of an object's bytes and are never read."""
    metadata = {name: value for name, value in raw["metadata"].items() if name != "managedFields"}
    return {**raw, "metadata": metadata}
