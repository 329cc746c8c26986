"""Raw objects by kind, from the newest watch events and lists, reduced to the fields that are read; and their facts.

Rules:
- A newer version of an object replaces the older one. Answers to our own writes arrive before their watch events, and a
  watch may send an event twice, or late. resourceVersions are numbers that grow over all objects of a resource.
- A late message does not restore a removed object.
- A list replaces a whole kind, because a watch that started again does not report the deletions that it missed. A list
  shows the state at a moment after its request. It replaces all older content, even if that has newer versions (an API
  server restored from a backup counts from an older one). It does not replace content that arrived after the request.
- Labels select the watched objects. ownerReferences decide which job an object belongs to: a copy with the same labels
  belongs to none, so the operator neither counts nor deletes it. Objects of a job are in the job's namespace.
- The objects of a namespace take at most NAMESPACE_BYTES, estimated by their JSON. An object beyond that is malformed.
- A malformed object affects only itself. The store does not keep an object without the basic shape (kept_fields.py).
  If a reader cannot read a kept object, the store has the raw object and no fact. In both cases it logs each state of
  the object once, and lists it in `malformed` while that state lasts.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from understudy_operator.observe.gone_pods import GonePods
from understudy_operator.observe.malformed_log import MalformedLog
from understudy_operator.plan.facts.cluster_objects import Node, NodeMap, Stay
from understudy_operator.plan.facts.malformed import Malformed, PartlyMalformed
from understudy_operator.plan.facts.ownership import INJECTED_KIND, KIND, POOL_KIND, controller_of
from understudy_operator.plan.injection.owner import is_of_target
from understudy_operator.plan.manifests.object_names import is_injected
from understudy_operator.plan.times.rfc3339 import parse_time
from understudy_operator.runtime.decoding import UNREADABLE, unreadable
from understudy_operator.runtime.json_size import memory_of
from understudy_operator.runtime.kept_fields import (
    select_fields,
    select_job_fields,
    select_node_fields,
    select_pod_fields,
)
from understudy_protocol import pod as names

Raw = Mapping[str, Any]
Key = tuple[str, str]  # namespace, name
OwnerKey = tuple[str, str]  # namespace and uid of a job, or of a pool
T = TypeVar("T")
C = TypeVar("C")
#: For all kinds. A job of 20,000 pods takes up to 400 MB by this estimate, and 170 MB in reality.
NAMESPACE_BYTES = 512 << 20
#: For the text of an exception that is not Malformed.
MESSAGE_CHARACTERS = 200
#: For a resourceVersion: it counts the writes to etcd, in 64 bits.
VERSION_DIGITS = 20
log = logging.getLogger(__name__)


class Kind(Enum):
    JOB = "trainingjobs"
    POOL = "hotsparepools"
    INJECTED = "injectedjobs"
    POD = "pods"
    NODE = "nodes"
    SERVICE = "services"
    CHILD = "jobs"
    CLAIM = "persistentvolumeclaims"  # another owner's claim of that name stays until the next list, which lacks it


_SELECTORS: Mapping[Kind, Callable[[Raw], Raw]] = {
    Kind.POD: select_pod_fields,
    Kind.NODE: select_node_fields,
    Kind.CHILD: select_job_fields,
}


class _Memory:
    """The memory that objects take, by namespace."""

    def __init__(self) -> None:
        self._taken = Counter[str]()

    def __len__(self) -> int:
        return len(self._taken)

    def check(self, namespace: str, count: int) -> None:
        """Raises Malformed if count bytes do not fit. Nodes have no namespace, and belong to no tenant."""
        if namespace and self._taken[namespace] + count > NAMESPACE_BYTES:
            raise Malformed(
                f"the objects of namespace {namespace} take more than {NAMESPACE_BYTES >> 20} MiB of the operator's "
                "memory: delete some, or make them smaller"
            )

    def take(self, namespace: str, count: int) -> None:
        self._taken[namespace] += count

    def release(self, namespace: str, count: int) -> None:
        self._taken[namespace] -= count
        if not self._taken[namespace]:
            del self._taken[namespace]


@dataclass(frozen=True)
class MalformedObject:
    """One state of an object that cannot be read, or only in part."""

    kind: Kind
    namespace: str
    name: str
    uid: str
    version: str
    message: str  # the field, and its error


@dataclass
class _Entry:
    raw: Raw
    arrived: float
    owners: tuple[OwnerKey, ...]
    memory: int
    pool: Key | None  # the pool in the pod's label; only if a pool controls it
    fact: Any = None  # the reader's result; readers never return None
    is_malformed: bool = False  # the reader could not read it


class Store:
    """Each kind has one reader. The store keeps the reader's result with the object."""

    def __init__(self, now: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._now, self._wall = now, wall
        self._gone_pods = GonePods()
        self._entries: dict[Kind, dict[Key, _Entry]] = {kind: {} for kind in Kind}
        self._of_job: dict[tuple[Kind, OwnerKey], set[Key]] = {}
        self._memory = _Memory()
        self._of_pool: dict[Key, set[Key]] = {}  # pods
        self._in_namespace: dict[tuple[Kind, str], set[Key]] = {}
        self._facts_of_job: dict[tuple[Kind, OwnerKey], Any] = {}  # until one of them changes
        self._nodes, self._unmapped = NodeMap(), set[Key]()  # the nodes that were written since `nodes` was called
        self._removed: dict[Kind, dict[str, float]] = {kind: {} for kind in Kind}  # uids, until a later list
        self._malformed: dict[Kind, dict[Key, MalformedObject]] = {kind: {} for kind in Kind}
        self._logged: dict[Kind, dict[Key, tuple[str, str]]] = {kind: {} for kind in Kind}  # uid, message
        self._log = MalformedLog(now)

    def put(self, kind: Kind, raw: Raw) -> Raw | None:
        """Store the newest state of the object, and return its kept fields; None if it is malformed."""
        return self._put(kind, raw, is_newest=False)

    def _put(self, kind: Kind, raw: Raw, *, is_newest: bool) -> Raw | None:
        """is_newest: ignore its version."""
        key = key_of(raw)
        current = self._entries[kind].get(key)
        if current is not None and not is_newest and _version(raw) < _version(current.raw):
            return current.raw
        if current is not None and _version(raw) and _state(raw) == _state(current.raw):
            return current.raw  # from a list, or the watch event of our own write: its fact stays
        taken = 0 if current is None else current.memory
        try:
            kept = _select_fields(kind, raw)
            owners, memory = owners_of(kind, kept), memory_of(kept)
            self._memory.check(key[0], memory - taken)
        except Exception as error:  # noqa: BLE001 (any error concerns this object alone)
            if kind is not Kind.NODE:  # without the node, jobs would consider its pods lost
                self._forget(kind, key)
            self.report_malformed(kind, raw, _message(error))
            return None
        if _state(kept)[0] not in self._removed[kind]:
            self._keep(kind, key, kept, owners, memory)
        return kept

    def remove(self, kind: Kind, raw: Raw) -> Raw | None:
        """Forget an object, but not a newer one of its name. Returns its last state; None if that is malformed."""
        key, (uid, _) = key_of(raw), _state(raw)
        if uid:
            self._removed[kind][uid] = self._now()
        current, noted = self._entries[kind].get(key), self._malformed[kind].get(key)
        if noted is not None and noted.uid == uid:
            del self._malformed[kind][key]
        logged = self._logged[kind].get(key)
        if logged is not None and logged[0] == uid:
            del self._logged[kind][key]
        if current is not None and current.raw["metadata"].get("uid", "") == uid:
            self._remember_gone(kind, current)
            self._forget(kind, key)
        try:
            return _select_fields(kind, raw)
        except Exception:  # noqa: BLE001 (its end does not affect other objects)
            return None

    def item_filter(self, kind: Kind) -> Callable[[dict[str, Any]], dict[str, Any]]:
        """For each item of a list on arrival: the fields that `replace` reads. Until `replace` is called, the items of
        a namespace take no more memory than afterwards.
        """
        return item_filter(partial(_select_fields, kind))

    def replace(self, kind: Kind, raws: Iterable[Raw], requested_at: float) -> None:
        """raws: a consistent list, requested at `requested_at`. Objects that it lacks are gone."""
        listed = {key_of(raw): raw for raw in raws}
        self._malformed[kind] = {key: noted for key, noted in self._malformed[kind].items() if key in listed}
        self._logged[kind] = {key: logged for key, logged in self._logged[kind].items() if key in listed}
        removed = {uid: at for uid, at in self._removed[kind].items() if at >= requested_at}
        for key, entry in list(self._entries[kind].items()):
            if key not in listed and entry.arrived < requested_at:
                self._remember_gone(kind, entry)
                self._forget(kind, key)
                removed[entry.raw["metadata"].get("uid", "")] = self._now()
        self._removed[kind] = removed
        for key, raw in listed.items():
            current = self._entries[kind].get(key)
            self._put(kind, raw, is_newest=current is None or current.arrived < requested_at)

    def get(self, kind: Kind, key: Key) -> Raw | None:
        entry = self._entries[kind].get(key)
        return None if entry is None else entry.raw

    def has_state(self, kind: Kind, raw: Raw) -> bool:
        """Whether the store already has that state of the object."""
        current = self.get(kind, key_of(raw))
        return current is not None and _state(current) == _state(raw)

    def all(self, kind: Kind) -> list[Raw]:
        return [entry.raw for entry in self._entries[kind].values()]

    def keys_in(self, kind: Kind, namespace: str) -> list[Key]:
        """Sorted by name."""
        return sorted(self._in_namespace.get((kind, namespace), ()))

    def pools_of_pods(self) -> list[Key]:
        """The names of pools that pods name. Such a pool may be gone."""
        return list(self._of_pool)

    def pods_of_pool(self, pool: Key) -> list[Key]:
        """Sorted by name."""
        return sorted(self._of_pool.get(pool, ()))

    def of_job(self, kind: Kind, job: OwnerKey) -> list[Raw]:
        return [self._entries[kind][key].raw for key in sorted(self._of_job.get((kind, job), ()))]

    def fact(self, kind: Kind, key: Key, reader: Callable[[Raw], T]) -> T | None:
        """The reader's result for that object; None if there is no object, or it is malformed.

        Each state of an object is read once: a reconcile reads thousands of objects, and few of them have changed.
        """
        entry = self._entries[kind].get(key)
        if entry is not None and entry.fact is None and not entry.is_malformed:
            try:
                entry.fact = reader(entry.raw)
            except PartlyMalformed as error:
                entry.fact = error.fact
                self.report_malformed(kind, entry.raw, str(error))
            except Exception as error:  # noqa: BLE001 (any error concerns this object alone)
                entry.is_malformed = True
                self.report_malformed(kind, entry.raw, _message(error))
        return None if entry is None else entry.fact

    def facts(self, kind: Kind, reader: Callable[[Raw], T]) -> list[T]:
        return self._facts(kind, self._entries[kind], reader)

    def malformed(self, kind: Kind) -> list[MalformedObject]:
        """The current malformed objects of the kind."""
        return list(self._malformed[kind].values())

    def is_malformed(self, kind: Kind, key: Key) -> bool:
        return key in self._malformed[kind]

    @contextmanager
    def contain_errors(self, kind: Kind, raw: Raw) -> Iterator[None]:
        """Report an error of the body on this object, so that a loop over all objects continues."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 (any error)
            self.report_malformed(kind, raw, _message(error))

    def report_malformed(self, kind: Kind, raw: Raw, message: str) -> None:
        """List the object as malformed, and log that once. An object that the store keeps stays in use."""
        noted = MalformedObject(kind, *key_of(raw), *_state(raw), message)
        key = (noted.namespace, noted.name)
        self._malformed[kind][key] = noted
        if self._logged[kind].get(key) != (noted.uid, message):
            self._logged[kind][key] = (noted.uid, message)
            self._log.warn(key[0], f"{kind.value} {key[0]}/{key[1]} is malformed: {message}")

    def nodes(self, reader: Callable[[Raw], Node]) -> NodeMap:
        """All nodes by name: one shared mapping until the fact of a node changes. A heartbeat changes no fact, so the
        next reconcile does not read all nodes.
        """
        facts = {key[1]: self.fact(Kind.NODE, key, reader) for key in self._unmapped}
        self._unmapped.clear()
        changed = {name: fact for name, fact in facts.items() if fact != self._nodes.get(name)}
        if changed:
            nodes = NodeMap(self._nodes)  # reconciles in threads may still read the previous one
            for name, fact in changed.items():
                if fact is None:
                    del nodes[name]
                else:
                    nodes[name] = fact
            self._nodes = nodes
        return self._nodes

    def unread_of_job(self, kind: Kind, job: OwnerKey) -> list[Key]:
        """The objects of a job that have changed since they were read."""
        entries = self._entries[kind]
        return [key for key in self._of_job.get((kind, job), ()) if entries[key].fact is None]

    def facts_of_job(
        self, kind: Kind, job: OwnerKey, reader: Callable[[Raw], T], collect: Callable[[Iterable[T]], C]
    ) -> C:
        """Sorted by name. The same object until one of them changes.

        collect: makes it of the facts; the same function for all calls with this kind.
        """
        if (kind, job) not in self._facts_of_job:
            keys = sorted(self._of_job.get((kind, job), ()))
            if not keys:
                return collect(())
            self._facts_of_job[kind, job] = collect(self._facts(kind, keys, reader))
        found: C = self._facts_of_job[kind, job]
        return found

    def past_stays(self, owner: OwnerKey) -> tuple[Stay, ...]:
        """Of the owner's pods whose objects were deleted in the last ten minutes, the oldest first."""
        return self._gone_pods.of_owner(owner, self._wall())

    def size(self) -> int:
        """The number of all entries, without past stays. It grows only with the number of objects."""
        objects = sum(len(entries) for entries in self._entries.values())
        return (
            objects
            + len(self._of_job)
            + len(self._of_pool)
            + len(self._memory)
            + len(self._in_namespace)
            + sum(len(removed) for removed in self._removed.values())
            + sum(len(malformed) for malformed in self._malformed.values())
            + sum(len(logged) for logged in self._logged.values())
        )

    def _facts(self, kind: Kind, keys: Iterable[Key], reader: Callable[[Raw], T]) -> list[T]:
        found = (self.fact(kind, key, reader) for key in keys)
        return [fact for fact in found if fact is not None]

    def _keep(self, kind: Kind, key: Key, kept: Raw, owners: tuple[OwnerKey, ...], memory: int) -> None:
        before = self._entries[kind].get(key)
        if before is not None and _state(before.raw)[0] != _state(kept)[0]:
            self._remember_gone(kind, before)
        self._forget(kind, key)
        noted = self._malformed[kind].get(key)
        if noted is not None and (noted.uid, noted.version) != _state(kept):
            del self._malformed[kind][key]
        pool = pool_key_of(kept) if kind is Kind.POD and is_of_pool(kept) else None
        self._entries[kind][key] = _Entry(kept, self._now(), owners, memory, pool)
        self._memory.take(key[0], memory)
        self._in_namespace.setdefault((kind, key[0]), set()).add(key)
        if pool is not None:
            self._of_pool.setdefault(pool, set()).add(key)
        if kind is Kind.NODE:
            self._unmapped.add(key)
        for owner in owners:
            self._of_job.setdefault((kind, owner), set()).add(key)
            self._facts_of_job.pop((kind, owner), None)

    def _remember_gone(self, kind: Kind, entry: _Entry) -> None:
        node = entry.raw.get("spec", {}).get("nodeName") if kind is Kind.POD else None
        if not node or not entry.owners:
            return
        metadata, now = entry.raw["metadata"], self._wall()
        try:
            stay = Stay(metadata["name"], metadata["uid"], node, parse_time(metadata["creationTimestamp"]), now)
        except (KeyError, ValueError):  # the malformed object was reported
            return
        self._gone_pods.add(entry.owners[0], stay, now)

    def _forget(self, kind: Kind, key: Key) -> None:
        entry = self._entries[kind].pop(key, None)
        if kind is Kind.NODE and key[1] in self._nodes:
            self._unmapped.add(key)
        elif kind is Kind.NODE:
            self._unmapped.discard(key)  # a replica that does not lead never calls `nodes`
        if entry is None:
            return
        self._memory.release(key[0], entry.memory)
        _take_out(self._in_namespace, (kind, key[0]), key)
        if entry.pool is not None:
            _take_out(self._of_pool, entry.pool, key)
        for owner in entry.owners:
            _take_out(self._of_job, (kind, owner), key)
            self._facts_of_job.pop((kind, owner), None)


def _take_out(index: dict[T, set[Key]], of: T, key: Key) -> None:
    index[of].discard(key)
    if not index[of]:
        del index[of]


def item_filter(select: Callable[[Raw], Raw] = select_fields) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """For the items of one list: their read fields, or UNREADABLE for items beyond NAMESPACE_BYTES."""
    memory = _Memory()

    def keep(raw: dict[str, Any]) -> dict[str, Any]:
        try:
            kept = dict(select(raw))
            namespace, count = key_of(kept)[0], memory_of(kept)
            memory.check(namespace, count)
        except Exception as error:  # noqa: BLE001 (any error concerns this object alone)
            return unreadable(_metadata_of(raw), _message(error))
        memory.take(namespace, count)
        return kept

    return keep


def _select_fields(kind: Kind, raw: Raw) -> Raw:
    """Raises Malformed, or any other error that a malformed object causes."""
    if isinstance(raw, Mapping) and UNREADABLE in raw:
        raise Malformed(str(raw[UNREADABLE]))
    return _SELECTORS.get(kind, select_fields)(raw)


def key_of(raw: Raw) -> Key:
    """For any object, even a malformed one."""
    return _text(raw, "namespace"), _text(raw, "name")


def owners_of(kind: Kind, raw: Raw) -> tuple[OwnerKey, ...]:
    """The owner of an object. For a pool's pod also the job that has claimed it, and for a job's pod the pool that it
    came from. Empty for an object that has the labels, but not the owner.
    """
    labels, controller = raw["metadata"].get("labels", {}), controller_of(raw)
    # The Service of an InjectedJob has the job's membership as its label, and belongs to the InjectedJob.
    owner = str(controller.get("uid", "")) if _is_of_injected(kind, controller) else owner_uid(raw)
    if not owner:
        return ()
    uids = [owner]
    if is_of_pool(raw):
        uids.append(labels.get(names.LABEL_CLAIMED_BY_UID))
    elif controller.get("kind") == KIND:
        uids.append(labels.get(names.LABEL_POOL_UID))
    return tuple(dict.fromkeys((key_of(raw)[0], uid) for uid in uids if uid))


def is_of_pool(raw: Raw) -> bool:
    """Whether a HotSparePool controls the object. Its labels alone are not enough."""
    return bool(owner_uid(raw)) and controller_of(raw).get("kind") == POOL_KIND


def _is_of_injected(kind: Kind, controller: Raw) -> bool:
    return kind not in (Kind.POD, Kind.CHILD) and controller.get("kind") == INJECTED_KIND


def owner_uid(raw: Raw) -> str:
    """The uid in the label, if the ownerReferences confirm it; for injected pods and Jobs the membership."""
    labels, controller = raw["metadata"].get("labels", {}), controller_of(raw)
    uid, labeled_uid = str(controller.get("uid", "")), str(labels.get(names.LABEL_JOB_UID, ""))
    if uid and uid == labeled_uid:
        return uid
    return labeled_uid if is_injected(labels.get(names.LABEL_JOB, "")) and is_of_target(raw, labeled_uid) else ""


def job_kind(key: Key) -> Kind:
    return Kind.INJECTED if is_injected(key[1]) else Kind.JOB


def job_key_of(raw: Raw) -> Key | None:
    """The TrainingJob that an object of ours belongs to."""
    name = raw["metadata"].get("labels", {}).get(names.LABEL_JOB)
    return None if name is None else (raw["metadata"].get("namespace", ""), name)


def pool_key_of(raw: Raw) -> Key | None:
    """The pool in the pod's label."""
    name = raw["metadata"].get("labels", {}).get(names.LABEL_POOL)
    return None if name is None else (raw["metadata"].get("namespace", ""), name)


def resource_version_of(raw: Raw) -> str:
    """The resourceVersion of any object; "" if it has none."""
    version = _text(raw, "resourceVersion")
    return version if version.isascii() and version.isdecimal() and len(version) <= VERSION_DIGITS else ""


def _state(raw: Raw) -> tuple[str, str]:
    return _text(raw, "uid"), _text(raw, "resourceVersion")


def _version(raw: Raw) -> int:
    return int(resource_version_of(raw) or 0)


def _metadata_of(raw: Raw) -> Raw:
    metadata = raw.get("metadata") if isinstance(raw, Mapping) else None
    return metadata if isinstance(metadata, Mapping) else {}


def _text(raw: Raw, field: str) -> str:
    value = _metadata_of(raw).get(field)
    return value if isinstance(value, str) else ""


def _message(error: Exception) -> str:
    if isinstance(error, Malformed):
        return str(error)
    if isinstance(error, KeyError):
        return f"the field {error} is missing"[:MESSAGE_CHARACTERS]
    return f"it cannot be read: {type(error).__name__}: {error}"[:MESSAGE_CHARACTERS]
