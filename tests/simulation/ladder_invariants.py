"""Invariant 8 of docs/contributors/design.md: budgets are kept; no rank costs two pods; no innocent pod is charged.

A worker that fails before anybody has told of the end of its peer's pod is charged at first: the sidecar that would
tell may hang, or its network be slow, and the next round waits for no doubt. So a charge is held against failures only
once it stands: until every active has acknowledged the round that follows, one of them may still prove to have been
lost, or to have left, before. But who may be cut off itself charges nothing: what it takes for a failure may be the
end of a round that a newer office has replaced, and an heir would carry the charge there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.simulation.cluster import SimulatedCluster
from tests.simulation.sidecars import SimulatedSidecar
from tests.simulation.world import Rule, Violation
from understudy_protocol.recovery import Offence
from understudy_sidecar.membership.coordinator import Coordinator
from understudy_sidecar.membership.coordinator_state import CoordinatorState, Phase
from understudy_sidecar.membership.recoveries import WORKER_FAULTS


@dataclass
class LadderInvariants:
    cluster: SimulatedCluster
    _evicted: set[str] = field(default_factory=set)  # uids
    _charges: set[float] = field(default_factory=set)  # that somebody has made, by time: others inherit them
    #: By coordinator: since when it knows of each charge, by the time of the charge.
    _known_since: dict[Coordinator, dict[float, float]] = field(default_factory=dict)
    _cut_off: set[SimulatedSidecar] = field(default_factory=set)  # that had no majority when they were looked at last

    def check(self) -> None:
        for sidecar in self.cluster.offices:
            coordinator = sidecar.coordinator
            if coordinator is None:
                continue
            state = coordinator.state
            offences = state.offences.in_window(state.now)
            self.budgets_are_kept(coordinator, offences)
            self.nothing_is_charged_without_a_majority(sidecar, state, offences)
            evicted = [offence for offence in offences if offence.caused_eviction]
            if len({offence.rank for offence in evicted}) < len(evicted):
                raise Violation(Rule.A_RANK_COSTS_ONE_POD, f"a rank costs two pods: {evicted}")
            if sum(not offence.is_charged for offence in evicted) > 1:
                raise Violation(
                    Rule.ONE_POD_BEYOND_THE_BUDGET, f"more than one pod is given up with the budget spent: {evicted}"
                )
            for uid in state.offences.evicted.keys() - self._evicted:
                self._evicted.add(uid)
                self.no_innocent_pod_is_evicted(uid, state.offences.evicted[uid])

    def budgets_are_kept(self, coordinator: Coordinator, offences: list[Offence]) -> None:
        """What a coordinator hears of only later, from a member of a former one, was not in its budget."""
        cluster, charges = self.cluster, [offence.at for offence in offences if offence.is_charged]
        charged = len(charges)
        known_since = self._known_since.setdefault(coordinator, {})
        for at in charges:
            known_since.setdefault(at, cluster.world.now)
        newest = max(charges, default=0.0)
        counted = [at for at in charges if known_since[at] <= known_since[newest]]
        if len(counted) > cluster.setup.max_in_place:
            raise Violation(
                Rule.THE_BUDGET_IS_KEPT, f"{charged} restarts are charged to a budget of {cluster.setup.max_in_place}"
            )
        failures = len(cluster.worker_faults) + cluster.training.stale_saves
        may_hang = cluster.step_timeout_s or cluster.setup.start_timeout_s
        if charged <= failures or may_hang:  # what breaks otherwise may hang, and costs as much
            return
        stand = sum(offence.is_charged for offence in offences if not _may_be_taken_back(coordinator.state, offence))
        if stand > failures:
            raise Violation(
                Rule.ONLY_FAILURES_ARE_CHARGED, f"{stand} restarts are charged, and only {failures} workers failed"
            )

    def nothing_is_charged_without_a_majority(
        self, sidecar: SimulatedSidecar, state: CoordinatorState, offences: Iterable[Offence]
    ) -> None:
        """Where it had none before the event, nor has one after it. (A loss in the same event may have cost it.)"""
        new = {offence.at for offence in offences if offence.is_charged and not offence.caused_eviction} - self._charges
        self._charges |= new
        cut_off = not state.has_majority()
        if new and cut_off and (state.check_quorum is not None or sidecar in self._cut_off):
            raise Violation(
                Rule.CHARGES_NEED_A_MAJORITY,
                f"{sidecar.pod.name} charges a restart, and may be the one that is cut off",
            )
        (self._cut_off.add if cut_off else self._cut_off.discard)(sidecar)

    def no_innocent_pod_is_evicted(self, uid: str, reason: str) -> None:
        pod = next(pod for pod in self.cluster.pods if pod.uid == uid)
        guilty = self.cluster.culprits | self.cluster.training.stale_savers
        if (
            pod.machine.hardware_finding
            or pod.machine.leaving_reason
            or reason.startswith("its workers have not started")
        ):
            return
        if any(x.launcher is not None and x.launcher.stopped for x in self.cluster.pods):
            return  # what a worker of that pod has done is not known
        if pod.name not in guilty and not self.cluster.clocks_differ:
            raise Violation(
                Rule.NO_INNOCENT_POD_IS_EVICTED,
                f"{pod.name} is given up ({reason}), and none of its workers has failed by itself",
            )


def _may_be_taken_back(state: CoordinatorState, offence: Offence) -> bool:
    """Its recovery lasts and blames a worker, and not all actives are known to follow the round that mends it."""
    blames = any(entry.detected_at == offence.at and entry.fault in WORKER_FAULTS for entry in state.recovery_log.open)
    return blames and (state.phase is Phase.WAITING or bool(state.roster.unacked))
