"""Counts the requests of each user to the API server, in a part of its audit log. Pure, except for reading the file.

The API server's metrics have no user, so only this log separates a controller's requests from all others. Each of the
cluster's programs has its own user (settings.py). Requests without a resource (health, discovery) do not count. A watch
is logged when it ends, so watches do not count either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from datetime import datetime
from pathlib import Path

import msgspec

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
READS = frozenset({"get", "list"})


class _User(msgspec.Struct):
    username: str = ""


class _Object(msgspec.Struct):
    resource: str = ""
    subresource: str = ""
    name: str = ""

    @property
    def identity(self) -> str:
        return "/".join(filter(None, (self.resource, self.subresource)))


class _Entry(msgspec.Struct, rename={"about": "objectRef", "received": "requestReceivedTimestamp"}):
    verb: str
    stage: str
    received: datetime | None = None
    user: _User = msgspec.field(default_factory=_User)
    about: _Object | None = None


Requests = Counter[tuple[str, str, str]]  # user, verb, resource with its subresource
_ENTRY = msgspec.json.Decoder(_Entry)


def count(lines: Iterable[bytes]) -> Requests:
    """The answered requests in these lines of the log."""
    requests: Requests = Counter()
    for line in lines:
        entry = _ENTRY.decode(line)
        if entry.stage != "ResponseComplete" or entry.about is None or not entry.about.resource:
            continue
        requests[entry.user.username, entry.verb, entry.about.identity] += 1
    return requests


def arrivals(lines: Iterable[bytes], user: str, description: str, name: str) -> list[float]:
    """The times at which writes of this user to this object arrived (Unix seconds), in order."""
    entries = (_ENTRY.decode(line) for line in lines)
    return sorted(
        entry.received.timestamp()
        for entry in entries
        if entry.received is not None
        and entry.about is not None
        and (entry.user.username, entry.about.identity, entry.about.name) == (user, description, name)
        and entry.verb in WRITES
    )


def total(requests: Requests, users: Collection[str], verbs: Collection[str]) -> int:
    return sum(number for (user, verb, _), number in requests.items() if user in users and verb in verbs)


def read_audit(requests: Requests, users: Collection[str]) -> str:
    """The writes of these users, the most frequent first, for a log."""
    writes = [
        (n, f"{user} {verb} {description}")
        for (user, verb, description), n in requests.items()
        if user in users and verb in WRITES
    ]
    return ", ".join(f"{n} {description}" for n, description in sorted(writes, key=lambda x: (-x[0], x[1])))


def read(log: Path, start: int, end: int) -> Requests:
    """The requests between two positions in the log (its sizes at two times)."""
    return count(lines_of(log, start, end))


def lines_of(log: Path, start: int, end: int) -> list[bytes]:
    with log.open("rb") as file:
        file.seek(start)
        return file.read(end - start).splitlines()
