"""One job's data plane as the operator sees it: the coordinator, the rank holders, the lost members, the close.

A coordinator is appointed and never elected (there is no voter configuration): so the operator has to replace each lost
one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.simulation_operator.api_server import Raw
from tests.simulation_operator.clockwork import EPOCH
from tests.simulation_operator.cluster import Cluster
from understudy_operator.plan.facts.observed import Coordination
from understudy_operator.plan.facts.pod_answers import NO_ANSWERS, PodAnswer, PodAnswers
from understudy_operator.plan.intents import Follow
from understudy_protocol import pod as names
from understudy_protocol.enums import CloseReason, Fault, RoundToken, Strategy, WorkersState
from understudy_protocol.membership import Close
from understudy_protocol.observer import Appoint, End, Lost, MemberView, Snapshot
from understudy_protocol.recovery import Cause, Recovery

SUCCEEDED = Close(CloseReason.SUCCEEDED, "all workers of all members exited 0")
SUSPENDED = Close(CloseReason.SUSPENDED, "the job is suspended")
LOST_KEPT = 20
RECOVERIES_KEPT = 10
TICK_S = 0.5


@dataclass
class Training:
    cluster: Cluster
    job_uid: str
    actives: int
    coordinator_uid: str = ""
    epoch: int = 0
    round: int = -1
    rank_holders: dict[int, str] = field(default_factory=dict)  # rank -> pod uid
    closed: Close | None = None
    ends_at: float = float("inf")
    links: list[Link] = field(default_factory=list)
    snapshot: Snapshot | None = None
    since: float = 0.0
    unreachable: set[str] = field(default_factory=set)  # pod uids: they run, and the coordinator has lost them
    returned: dict[str, float] = field(default_factory=dict)  # uids of those that have rejoined, and since when
    earlier: set[str] = field(default_factory=set)  # uids of the pods of earlier attempts, whose key is not valid now
    _members: dict[str, Raw] = field(default_factory=dict)
    _lost: list[Lost] = field(default_factory=list)
    _recoveries: list[Recovery] = field(default_factory=list)

    @property
    def now(self) -> float:
        return EPOCH + self.cluster.server.now()

    def appoint(self, pod_uid: str, appoint: Appoint) -> None:
        if appoint.epoch > self.epoch and pod_uid in self._running():
            self.epoch, self.round = appoint.epoch, max(self.round, appoint.at_least_round)
            self._set_coordinator(pod_uid)
            self.tick()

    def tick(self) -> None:
        """Time passes: the coordinator, if there is one, reacts."""
        running = self._running()
        if self.coordinator_uid not in running:
            if self.coordinator_uid:
                self._set_coordinator("")
            return
        if self.closed is None and self.now - EPOCH >= self.ends_at and len(self.rank_holders) == self.actives:
            self.closed = SUCCEEDED
        if self.closed is None:
            self._lose(running)
            self._assign_ranks(running)
        self._members = running
        result = self._make_snapshot()
        if result != self.snapshot:
            self.snapshot = result
            self._changed()

    def lose_line(self, pod_uid: str) -> None:
        self.unreachable.add(pod_uid)
        self.tick()

    def find_line(self, pod_uid: str, *, restarted: bool) -> None:
        """restarted: its sidecar is a new one, as its object shows."""
        self.unreachable.discard(pod_uid)
        if not restarted:
            self.returned[pod_uid] = self.now
        self.tick()

    def suspend(self) -> Close | None:
        """The operator requests a close; an earlier close counts. None: there is no coordinator."""
        self.tick()
        if self.coordinator_uid and self.closed is None:
            self.closed = SUSPENDED
        return self.closed if self.coordinator_uid else None

    def begin_attempt(self) -> None:
        """Status has ended the previous attempt: the state of its members does not count any more."""
        self.earlier |= {
            pod["metadata"]["uid"] for pod in self.cluster.server.of("pods", **{names.LABEL_JOB_UID: self.job_uid})
        }
        self.coordinator_uid, self.round, self.closed, self.snapshot = "", -1, None, None
        self.rank_holders, self._members, self._lost, self._recoveries = {}, {}, [], []

    def end(self) -> None:
        """All members have received the close."""
        for pod in self._running().values():
            self.cluster.end(pod, self.closed)

    def has_rank(self, pod_uid: str) -> bool:
        return self.closed is None and pod_uid in self.rank_holders.values() and pod_uid in self._running()

    def coordination(self, since: float) -> Coordination:
        since = max(since, self.since)
        if self.coordinator_uid:
            return Coordination(self.snapshot, self.coordinator_uid, since)
        requests = {uid: PodAnswer("not the coordinator") for uid in self._running()}
        return Coordination(self.snapshot, "", since, PodAnswers(requests, since) if requests else NO_ANSWERS)

    def _set_coordinator(self, pod_uid: str) -> None:
        self.coordinator_uid, self.since = pod_uid, self.now
        self._changed()

    def _lose(self, running: dict[str, Raw]) -> None:
        for uid, pod in self._members.items():
            if uid not in running:
                node = pod["spec"]["nodeName"]
                fault = Fault.NODE if node in self.cluster.down else Fault.POD
                self._lost.append(Lost(uid, pod["metadata"]["name"], node, fault, "it is gone", self.now))
                if uid in self.rank_holders.values():
                    cause = Cause(None, pod["metadata"]["name"], node, None, None, "it is gone")
                    self._recoveries.append(Recovery(self.round + 1, fault, None, cause, self.now, None))
                    self.rank_holders = {
                        rank: with_ranks for rank, with_ranks in self.rank_holders.items() if with_ranks != uid
                    }
        self._recoveries = self._recoveries[-RECOVERIES_KEPT:]
        self._lost = [lost for lost in self._lost if lost.pod_uid not in running][-LOST_KEPT:]

    def _assign_ranks(self, running: dict[str, Raw]) -> None:
        if self.round < 0:
            by_index = {index: uid for uid, pod in running.items() if (index := index_of(pod)) is not None}
            if len(by_index) == self.actives:
                self.rank_holders, self.round = by_index, 0
            return
        vacant = [rank for rank in range(self.actives) if self.rank_holders.get(rank) not in running]
        waiting = [uid for uid in running if uid not in self.rank_holders.values()]
        if vacant and len(waiting) >= len(vacant):
            self.rank_holders |= dict(zip(vacant, waiting, strict=False))
            self.round += 1
            self._recoveries = [
                recovery
                if recovery.resumed_at is not None
                else replace(recovery, strategy=Strategy.SPARE_SWAP, resumed_at=self.now)
                for recovery in self._recoveries
            ]

    def _make_snapshot(self) -> Snapshot:
        ranks = {uid: rank for rank, uid in self.rank_holders.items()}
        members = tuple(_member(pod, ranks.get(uid)) for uid, pod in self._members.items())
        vacant = [rank for rank in range(self.actives) if self.rank_holders.get(rank) not in self._members]
        waits = f"{len(vacant)} of {self.actives} pods" if vacant else ""
        token, recoveries = RoundToken(self.epoch, 1, self.round), tuple(self._recoveries)
        return Snapshot(
            token, self.coordinator_uid, members, tuple(self._lost), recoveries, {}, None, waits, self.closed
        )

    def _running(self) -> dict[str, Raw]:
        return {
            str(pod["metadata"]["uid"]): pod for pod in self.cluster.running(self.job_uid) if self._is_reachable(pod)
        }

    def _is_reachable(self, pod: Raw) -> bool:
        """Whether the coordinator can reach it, and it has the key of this attempt: a claimed spare needs its order
        first.
        """
        metadata = pod["metadata"]
        if metadata["uid"] in self.unreachable or metadata["uid"] in self.earlier:
            return False
        if names.ANNOTATION_WARM_POOL_UID not in metadata.get("annotations", {}):
            return True
        return self.cluster.adopted.get(metadata["uid"]) == self.job_uid

    def _changed(self) -> None:
        for link in self.links:
            link.on_change()


class Link:
    """Replaces apply/coordinator_link.py: a line that finds the coordinator at once."""

    def __init__(
        self,
        training: Training | None,
        before: Coordination,
        on_change: Callable[[], None],
        on_call: Callable[[str], None],
    ) -> None:
        """on_call(pod_uid)."""
        self._training, self._before, self.on_change, self._on_call = training, before, on_change, on_call
        self._since = before.since if training is None else training.now
        self._appointed = 0  # the newest epoch of an appointment
        self.has_ended = False
        if training is not None:
            training.links.append(self)

    @property
    def coordination(self) -> Coordination:
        if self._training is None:
            return replace(self._before, since=self._since)
        return self._training.coordination(self._since)

    def follow(self, follow: Follow) -> None:
        for callee in (*follow.first, *follow.others):
            self._on_call(callee.pod_uid)
            if callee.appoint is not None and self._training is not None:
                if callee.appoint.epoch > self._appointed:  # as in search.py: the search for it starts now
                    self._appointed, self._since = callee.appoint.epoch, self._training.now
                self._training.appoint(callee.pod_uid, callee.appoint)

    async def end(self, end: End) -> Close | None:
        if self._training is None or end.reason is not CloseReason.SUSPENDED:
            return None  # the garbage collector ends them
        return self._training.suspend()

    async def close(self) -> None:
        if self._training is not None and self in self._training.links:
            self._training.links.remove(self)


def index_of(pod: Raw) -> int | None:
    variables = {entry["name"]: entry.get("value") for entry in pod["spec"]["initContainers"][0]["env"]}
    result = variables.get(names.ENV_INDEX)  # a pool's spare has none
    return int(result) if result else None


def _member(pod: Raw, rank: int | None) -> MemberView:
    workers = WorkersState.IDLE if rank is None else WorkersState.RUNNING
    metadata = pod["metadata"]
    return MemberView(metadata["uid"], metadata["name"], pod["spec"]["nodeName"], index_of(pod), rank, workers)
