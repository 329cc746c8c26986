"""Which nodes have failed jobs before: a small memory over all jobs, with decay.

Rules: an offence is a recovery of some job's status whose cause was on the node; its job and time are what makes it
one, so the same status read twice, or by two operators, adds nothing. A cause that is revised (its coordinator finds
out whose end came first) takes the place of what was blamed before. A fault of the node itself counts 1. What a
worker did (Process, Hang) counts a half: it may be the script's. A pod that ended, was deleted, or was swapped before
anything failed counts nothing. Each halves within HALF_LIFE_S. Of each job only the offence that counts most is
counted, because its coordinator could report any number; status names a node only if the operator saw the pod there
(plan/stays.py). A node with OFFENDER_SCORE or
more is a repeat offender. For the jobs of a namespace, all faults of one other namespace count at most
MAX_SCORE_OF_OTHERS: kills in one namespace make no node avoided for the jobs of others. These jobs are counted, and
neither their names nor their words are shown. What happened before a node was made, or before somebody forgave it, does
not count: its name may stand for another machine, or it was mended. At most MAX_NODES nodes are kept, those that count
most, with their newest MAX_OFFENCES.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from understudy_operator.plan.message_limits import AHEAD_S
from understudy_operator.plan.observed import Node
from understudy_operator.plan.rfc3339 import parse_time
from understudy_protocol.enums import Fault
from understudy_protocol.recovery import SWAP_REASON

HALF_LIFE_S = 24 * 3600.0
#: Node faults of two jobs within a day: each halves in a day, so that two never reach 2.
OFFENDER_SCORE = 1.5
MAX_SCORE_OF_OTHERS = 1.0
MAX_OFFENCES = 6
MAX_NODES = 400
#: When an offence counts so little that it is forgotten: after seven half-lives.
FORGET_AFTER_S = 7 * HALF_LIFE_S
#: The name of a node, which is a key of a ConfigMap.
_NODE = re.compile("[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
REASON_CHARACTERS = 80
#: Jobs by name in the words of a node.
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
class Offenders:
    """The repeat offenders, and why in words."""

    for_all: Mapping[str, str]  # for jobs of namespaces of which no job has failed there
    by_namespace: Mapping[str, Mapping[str, str]]  # by namespace, for those of which one has

    def of(self, namespace: str) -> Mapping[str, str]:
        """For the jobs of a namespace."""
        own = self.by_namespace.get(namespace)
        return {**self.for_all, **own} if own else self.for_all

    @property
    def nodes(self) -> set[str]:
        return {*self.for_all, *(node for own in self.by_namespace.values() for node in own)}


@dataclass(frozen=True)
class Memory:
    """Offences by node, the oldest first; never more than the rules of the module keep.

    A time that is ahead of this clock by more than clocks differ is none: such an offence is not kept.
    """

    by_node: Mapping[str, tuple[NodeOffence, ...]]

    def after(self, jobs: Iterable[Mapping[str, Any]], now: float) -> "Memory":
        """What these raw jobs' statuses tell; of other recoveries what was known."""
        jobs = tuple(jobs)
        offences = [entry for job in jobs for entry in offences_of(job)]
        recoveries = {identity for job in jobs for identity in _recoveries_of(job)}
        confirmed = {(node, _identity(offence), offence.fault) for node, offence in offences}

        def holds(node: str, offence: NodeOffence) -> bool:
            return _identity(offence) not in recoveries or (node, _identity(offence), offence.fault) in confirmed

        kept = {node: tuple(x for x in known if holds(node, x)) for node, known in self.by_node.items()}
        return replace(self, by_node=kept).with_offences(offences, now)

    def with_offences(self, new: Iterable[tuple[str, NodeOffence]], now: float) -> "Memory":
        """After these, and without what has faded by now."""
        merged = {node: {_identity(offence): offence for offence in known} for node, known in self.by_node.items()}
        for node, offence in new:
            merged.setdefault(node, {}).setdefault(_identity(offence), offence)
        kept = {node: tuple(_kept(offences.values(), now)) for node, offences in merged.items()}
        worst = sorted((node for node in kept if kept[node]), key=lambda node: (-score(kept[node], now), node))[
            :MAX_NODES
        ]
        return replace(self, by_node={node: kept[node] for node in sorted(worst)})


NO_MEMORY = Memory({})


def offences_of(job: Mapping[str, Any]) -> Iterator[tuple[str, NodeOffence]]:
    """What the status of a raw TrainingJob tells: node and offence."""
    metadata = job["metadata"]
    for entry in job.get("status", {}).get("recoveries", ()):
        cause: Mapping[str, Any] = entry.get("cause", {})
        fault = next((fault for fault in _WEIGHTS if fault.value == entry.get("fault")), None)
        node = str(cause.get("node", ""))
        if fault is not None and _NODE.fullmatch(node) and entry.get("reason") != SWAP_REASON:
            reason = str(cause.get("message", ""))[:REASON_CHARACTERS]
            identity = (metadata["uid"], f"{metadata['namespace']}/{metadata['name']}")
            yield node, NodeOffence(parse_time(entry["detectedAt"]), *identity, fault, reason)


def _recoveries_of(job: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """All that it tells of, also those that count nothing."""
    for entry in job.get("status", {}).get("recoveries", ()):
        yield job["metadata"]["uid"], parse_time(entry["detectedAt"])


def encode_memory(memory: Memory) -> dict[str, str]:
    """As the data of a ConfigMap: a JSON list for each node."""
    return {
        node: json.dumps([[x.at, x.job_uid, x.job, x.fault.value, x.reason] for x in known], ensure_ascii=False)
        for node, known in memory.by_node.items()
    }


def decode_memory(data: Mapping[str, str]) -> Memory:
    """What was written. An entry that somebody has broken says nothing."""
    found = {}
    for node, text in data.items():
        try:
            entries = [NodeOffence(float(at), str(u), str(j), Fault(f), str(r)) for at, u, j, f, r in json.loads(text)]
        except (ValueError, TypeError, OverflowError, RecursionError):
            continue
        found[node] = tuple(sorted(entries))
    return Memory(found)


def find_offenders(memory: Memory, nodes: Mapping[str, Node], now: float) -> Offenders:
    """Among the nodes that there are."""
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
    """How much they count by now: of each job the offence that counts most."""
    by_job = dict[str, float]()
    for offence in offences:
        counts = _WEIGHTS[offence.fault] * 0.5 ** (max(0.0, now - offence.at) / HALF_LIFE_S)
        by_job[offence.job_uid] = max(by_job.get(offence.job_uid, 0.0), counts)
    return sum(by_job.values())


def _kept(offences: Iterable[NodeOffence], now: float) -> Iterator[NodeOffence]:
    fresh = [offence for offence in offences if -AHEAD_S <= now - offence.at <= FORGET_AFTER_S]
    # The newest of each job before a second one of any: no job can displace the offences of others.
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
    """For the jobs of that namespace."""
    own_jobs = sorted({offence.job for offence in _of(offences, namespace)})
    others = len({offence.job_uid for offence in offences if offence.namespace != namespace})
    named = own_jobs[:MAX_NAMES] + (["…"] if len(own_jobs) > MAX_NAMES else [])
    if others:
        named.append("1 job of another namespace" if others == 1 else f"{others} jobs of other namespaces")
    times = "once" if len(offences) == 1 else f"{len(offences)} times"
    newest = offences[-1]
    reason = f": {newest.reason}" if newest.namespace == namespace else ""
    return f"failed {times} recently ({', '.join(named)}), the last time by {newest.fault.value}{reason}"
