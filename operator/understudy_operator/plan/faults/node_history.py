"""Which nodes have failed jobs before: a small memory across all jobs, with decay.

Rules:
- An offense is a recovery in some job's status whose cause was on the node. The job and the time identify it, so the
  same status read twice, or by two operators, adds nothing. If a coordinator revises a cause (it learns which pod ended
  first), the new offense replaces the old one.
- A fault of the node counts 1. A fault of a worker (Process, Hang) counts 0.5, because the script may have caused it. A
  pod that ended, was deleted, or was swapped before a fault counts 0, as a drill does. Each value halves within
  HALF_LIFE_S.
- Of each job, only the offense that counts most is added, because its coordinator could report any number; status names
  a node only if the operator saw the pod there (plan/facts/stays.py).
- A node with OFFENDER_SCORE or more is a repeat offender. For the jobs of a namespace, all faults of one other
  namespace count at most MAX_SCORE_OF_OTHERS: faults in one namespace alone cannot make the jobs of others avoid a
  node. Their jobs are counted, but neither their names nor their messages are shown.
- Offenses from before the creation or the forgiveness of a node do not count: its name may now stand for another
  machine, or an administrator has fixed it.
- The memory keeps at most MAX_NODES nodes, those with the highest score, with their newest MAX_OFFENCES. Of these, at
  most MAX_BYTES are stored, the newest ones.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from understudy_operator.plan.facts.cluster_objects import Node
from understudy_operator.plan.facts.message_limits import AHEAD_S
from understudy_operator.plan.facts.status import RecoveryStatus
from understudy_operator.plan.times.rfc3339 import parse_time
from understudy_protocol.enums import Fault
from understudy_protocol.recovery import DRILL_REASON, SWAP_REASON

HALF_LIFE_S = 24 * 3600.0
#: Node faults of two jobs within a day: each halves in a day, so that two never reach 2.
OFFENDER_SCORE = 1.5
MAX_SCORE_OF_OTHERS = 1.0
MAX_OFFENCES = 6
MAX_NODES = 400
#: The API server accepts at most 1 MiB in a ConfigMap.
MAX_BYTES = 900 << 10
#: An offense is dropped after seven half-lives, when it counts little.
FORGET_AFTER_S = 7 * HALF_LIFE_S
#: The name of a node, which is a key of a ConfigMap.
_NODE = re.compile("[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
REASON_CHARACTERS = 80
#: Jobs named in the description of a node.
MAX_NAMES = 3
_WEIGHTS = {Fault.NODE: 1.0, Fault.PROCESS: 0.5, Fault.HANG: 0.5}


@dataclass(frozen=True, order=True)
class NodeOffence:
    """One fault of one job on one node."""

    at: float
    job_uid: str
    job: str  # namespace/name
    fault: Fault
    reason: str = ""

    @property
    def namespace(self) -> str:
        return self.job.partition("/")[0]


@dataclass(frozen=True)
class JobRecoveries:
    """The recoveries in one job's status."""

    uid: str
    name: str  # namespace/name
    recoveries: tuple[RecoveryStatus, ...]


@dataclass(frozen=True)
class Offenders:
    """The repeat offenders, each with a description."""

    for_all: Mapping[str, str]  # for namespaces without a fault on the node
    by_namespace: Mapping[str, Mapping[str, str]]  # for namespaces with a fault on the node

    def of(self, namespace: str) -> Mapping[str, str]:
        """The offenders that the jobs of a namespace avoid."""
        own = self.by_namespace.get(namespace)
        return {**self.for_all, **own} if own else self.for_all

    @property
    def nodes(self) -> set[str]:
        return {*self.for_all, *(node for own in self.by_namespace.values() for node in own)}


@dataclass(frozen=True)
class Memory:
    """Offenses by node, the oldest first; within the limits of this module.

    An offense whose time is further ahead of this clock than clocks differ is dropped.
    """

    by_node: Mapping[str, tuple[NodeOffence, ...]]

    def after(self, jobs: Iterable[JobRecoveries], now: float) -> "Memory":
        """With the recoveries of these jobs; for other recoveries the memory stays as it is."""
        jobs = tuple(jobs)
        offences = [entry for job in jobs for entry in offences_of(job)]
        recoveries = {identity for job in jobs for identity in _recoveries_of(job)}
        confirmed = {(node, _identity(offence), offence.fault) for node, offence in offences}

        def holds(node: str, offence: NodeOffence) -> bool:
            return _identity(offence) not in recoveries or (node, _identity(offence), offence.fault) in confirmed

        kept = {node: tuple(x for x in known if holds(node, x)) for node, known in self.by_node.items()}
        return replace(self, by_node=kept).with_offences(offences, now)

    def with_offences(self, new: Iterable[tuple[str, NodeOffence]], now: float) -> "Memory":
        """With these offenses, and without those that have expired by now."""
        merged = {node: {_identity(offence): offence for offence in known} for node, known in self.by_node.items()}
        for node, offence in new:
            merged.setdefault(node, {}).setdefault(_identity(offence), offence)
        kept = {node: tuple(_kept(offences.values(), now)) for node, offences in merged.items()}
        worst = sorted((node for node in kept if kept[node]), key=lambda node: (-score(kept[node], now), node))[
            :MAX_NODES
        ]
        return replace(self, by_node={node: kept[node] for node in sorted(worst)})

    def merged(self, stored: "Memory", now: float) -> "Memory":
        """With the offenses of a stored memory."""
        offences = [(node, offence) for node, known in stored.by_node.items() for offence in known]
        return self.with_offences(offences, now)


NO_MEMORY = Memory({})


def offences_of(job: JobRecoveries) -> Iterator[tuple[str, NodeOffence]]:
    """Node and offense of each recovery that counts."""
    for entry in job.recoveries:
        node, reason = entry.cause.node, entry.cause.message[:REASON_CHARACTERS]
        is_planned = entry.reason.startswith((SWAP_REASON, DRILL_REASON))
        if entry.fault in _WEIGHTS and _NODE.fullmatch(node) and not is_planned:
            yield node, NodeOffence(parse_time(entry.detected_at), job.uid, job.name, entry.fault, reason)


def _recoveries_of(job: JobRecoveries) -> Iterator[tuple[str, float]]:
    """All recoveries in status, also those that do not count."""
    for entry in job.recoveries:
        yield job.uid, parse_time(entry.detected_at)


def encode_memory(memory: Memory) -> dict[str, str]:
    """As the data of a ConfigMap: a JSON list for each node. The oldest offenses are left out if there is no room."""
    texts = {node: [_encode_offence(offence) for offence in known] for node, known in memory.by_node.items()}
    surplus = sum(_size(node) + 2 + sum(map(_size, known)) for node, known in texts.items()) - MAX_BYTES
    oldest = ((offence.at, node) for node, known in memory.by_node.items() for offence in known)
    for _, node in sorted(oldest) if surplus > 0 else ():
        if surplus <= 0:
            break
        surplus -= _size(texts[node].pop(0))
    return {node: f"[{', '.join(known)}]" for node, known in texts.items() if known}


def _encode_offence(offence: NodeOffence) -> str:
    values = [offence.at, offence.job_uid, offence.job, offence.fault.value, offence.reason]
    return json.dumps(values, ensure_ascii=False)


def _size(text: str) -> int:
    """With a separator."""
    return len(text.encode(errors="surrogatepass")) + 2


def decode_memory(data: Mapping[str, str]) -> Memory:
    """The memory in the data of a ConfigMap. Unreadable entries are ignored."""
    found = {}
    for node, text in data.items():
        try:
            entries = [NodeOffence(float(at), str(u), str(j), Fault(f), str(r)) for at, u, j, f, r in json.loads(text)]
        except (ValueError, TypeError, OverflowError, RecursionError):
            continue
        found[node] = tuple(sorted(entries))
    return Memory(found)


def find_offenders(memory: Memory, nodes: Mapping[str, Node], now: float) -> Offenders:
    """Among the nodes that exist."""
    for_all, by_namespace = dict[str, str](), dict[str, dict[str, str]]()
    for name, known in memory.by_node.items():
        node = nodes.get(name)
        if node is None:
            continue
        since = max(node.created_at, node.forgiven_at or 0.0)
        counting = [offence for offence in known if offence.at >= since]
        scores = {x: score(_of(counting, x), now) for x in {offence.namespace for offence in counting}}
        of_others = sum(min(counts, MAX_SCORE_OF_OTHERS) for counts in scores.values())
        if of_others >= OFFENDER_SCORE:
            for_all[name] = _describe(counting, "")
        for namespace, counts in scores.items():
            if of_others - min(counts, MAX_SCORE_OF_OTHERS) + counts >= OFFENDER_SCORE:
                by_namespace.setdefault(namespace, {})[name] = _describe(counting, namespace)
    return Offenders(for_all, by_namespace)


def score(offences: Iterable[NodeOffence], now: float) -> float:
    """The sum over jobs of the offense that counts most now."""
    by_job = dict[str, float]()
    for offence in offences:
        counts = _WEIGHTS[offence.fault] * 0.5 ** (max(0.0, now - offence.at) / HALF_LIFE_S)
        by_job[offence.job_uid] = max(by_job.get(offence.job_uid, 0.0), counts)
    return sum(by_job.values())


def _kept(offences: Iterable[NodeOffence], now: float) -> Iterator[NodeOffence]:
    fresh = [offence for offence in offences if -AHEAD_S <= now - offence.at <= FORGET_AFTER_S]
    # The newest offense of each job goes before the second one of any: no job can displace the offenses of others.
    of_job, ranked = Counter[str](), []
    for number, offence in enumerate(sorted(fresh, reverse=True)):
        ranked.append((of_job[offence.job_uid], number, offence))
        of_job[offence.job_uid] += 1
    yield from sorted(offence for _, _, offence in sorted(ranked)[:MAX_OFFENCES])


def _identity(offence: NodeOffence) -> tuple[str, float]:
    return offence.job_uid, offence.at


def _of(offences: Iterable[NodeOffence], namespace: str) -> list[NodeOffence]:
    return [offence for offence in offences if offence.namespace == namespace]


def _describe(offences: list[NodeOffence], namespace: str) -> str:
    """The description that jobs of that namespace see."""
    own_jobs = sorted({offence.job for offence in _of(offences, namespace)})
    others = len({offence.job_uid for offence in offences if offence.namespace != namespace})
    named = own_jobs[:MAX_NAMES] + (["…"] if len(own_jobs) > MAX_NAMES else [])
    if others:
        named.append("1 job of another namespace" if others == 1 else f"{others} jobs of other namespaces")
    times = "once" if len(offences) == 1 else f"{len(offences)} times"
    newest = offences[-1]
    reason = f": {newest.reason}" if newest.namespace == namespace else ""
    return f"failed {times} recently ({', '.join(named)}), the last time by {newest.fault.value}{reason}"
