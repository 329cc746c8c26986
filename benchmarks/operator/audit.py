"""How many requests each user made of the API server: a part of its audit log, counted. Pure but for the file.

The API server's own metrics tell no user, so this log is what tells a controller's requests from all others. Each of
the cluster's programs has a user of its own (settings.py). What asks for no resource (health, discovery) does not
count, and a watch counts when it ends, so watches are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
READS = frozenset({"get", "list"})


class _User(msgspec.Struct):
    username: str = ""


class _Object(msgspec.Struct):
    resource: str = ""
    subresource: str = ""


class _Entry(msgspec.Struct, rename={"about": "objectRef"}):
    verb: str
    stage: str
    user: _User = msgspec.field(default_factory=_User)
    about: _Object | None = None


Requests = Counter[tuple[str, str, str]]  # user, verb, resource with its subresource
_ENTRY = msgspec.json.Decoder(_Entry)


def count(lines: Iterable[bytes]) -> Requests:
    """The requests that these lines of the log tell as answered."""
    requests: Requests = Counter()
    for line in lines:
        entry = _ENTRY.decode(line)
        if entry.stage != "ResponseComplete" or entry.about is None or not entry.about.resource:
            continue
        what = "/".join(filter(None, (entry.about.resource, entry.about.subresource)))
        requests[entry.user.username, entry.verb, what] += 1
    return requests


def total(requests: Requests, users: Collection[str], verbs: Collection[str]) -> int:
    return sum(number for (user, verb, _), number in requests.items() if user in users and verb in verbs)


def told(requests: Requests, users: Collection[str]) -> str:
    """The writes of these users, the most frequent first, for a log."""
    writes = [
        (n, f"{user} {verb} {what}") for (user, verb, what), n in requests.items() if user in users and verb in WRITES
    ]
    return ", ".join(f"{n} {what}" for n, what in sorted(writes, key=lambda x: (-x[0], x[1])))


def read(log: Path, start: int, end: int) -> Requests:
    """The requests between two ends of the log (its sizes then)."""
    with log.open("rb") as file:
        file.seek(start)
        return count(file.read(end - start).splitlines())
