"""Invariant 8 of docs/contributors/design.md: budgets are kept; no rank costs two pods; no innocent pod is charged.

A worker that fails before the end of its peer's pod is reported is charged at first: the sidecar of that pod may hang,
or its network may be slow. So this check counts a charge only once it is final: until every active has acknowledged the
next round, one of them may still prove to have been lost, or to have left, before. But a coordinator that may be
partitioned itself charges nothing: the failure that it sees may be the end of a round that a newer coordinator has
replaced, and a standby coordinator would inherit the charge.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.simulation.cluster import SimulatedCluster
from tests.simulation.sidecars import SimulatedSidecar
from tests.simulation.world import Rule, Violation
from understudy_protocol.recovery import CountedFault
from understudy_sidecar.membership.coordinator import Coordinator
from understudy_sidecar.membership.coordinator_state import CoordinatorState
from understudy_sidecar.membership.recoveries import WORKER_FAULTS
from understudy_sidecar.membership.round_state import RoundPhase


@dataclass
class LadderInvariants:
    cluster: SimulatedCluster
    _evicted: set[str] = field(default_factory=set)  # uids
    _charges: set[float] = field(default_factory=set)  # by time, of any coordinator: others inherit them
    #: By the time of the charge: how many charges the coordinator that made it had then, with this one.
    _known_at: dict[float, int] = field(default_factory=dict)
    _cut_off: set[SimulatedSidecar] = field(default_factory=set)  # that had no majority at the last check

    def check(self) -> None:
        for sidecar in self.cluster.leaders:
            coordinator = sidecar.coordinator
            if coordinator is None:
                continue
            state = coordinator.state
            counted_faults = state.fault_history.in_window(state.now)
            if counted_faults:
                self.budgets_are_kept(coordinator, counted_faults)
                self.pods_are_evicted_within_the_budget(counted_faults)
            self.nothing_is_charged_without_a_majority(sidecar, state, counted_faults)
            for uid, reason in state.fault_history.evicted.items():
                if uid not in self._evicted:
                    self._evicted.add(uid)
                    self.no_innocent_pod_is_evicted(uid, reason)

    def pods_are_evicted_within_the_budget(self, counted_faults: Iterable[CountedFault]) -> None:
        evicted = [fault for fault in counted_faults if fault.caused_eviction]
        if len({fault.rank for fault in evicted}) < len(evicted):
            raise Violation(Rule.A_RANK_COSTS_ONE_POD, f"a rank costs two pods: {evicted}")
        if sum(not fault.is_charged for fault in evicted) > 1:
            raise Violation(
                Rule.ONE_POD_BEYOND_THE_BUDGET, f"more than one pod is evicted with the budget spent: {evicted}"
            )

    def budgets_are_kept(self, coordinator: Coordinator, counted_faults: list[CountedFault]) -> None:
        """At the moment of a charge. Later a coordinator may learn of other charges, and pass all of them on."""
        cluster, charges = self.cluster, [fault.at for fault in counted_faults if fault.is_charged]
        charged = len(charges)
        for at in charges:
            if self._known_at.setdefault(at, charged) > cluster.setup.max_in_place:
                raise Violation(
                    Rule.THE_BUDGET_IS_KEPT,
                    f"{charged} restarts are charged to a budget of {cluster.setup.max_in_place}",
                )
        failures = len(cluster.worker_faults) + cluster.training.stale_saves
        may_hang = cluster.step_timeout_s or cluster.setup.start_timeout_s
        if charged <= failures or may_hang:  # a hang may break a round too, and is charged
            return
        stand = sum(fault.is_charged for fault in counted_faults if not _may_be_taken_back(coordinator.state, fault))
        if stand > failures:
            raise Violation(
                Rule.ONLY_FAILURES_ARE_CHARGED, f"{stand} restarts are charged, and only {failures} workers failed"
            )

    def nothing_is_charged_without_a_majority(
        self, sidecar: SimulatedSidecar, state: CoordinatorState, counted_faults: Iterable[CountedFault]
    ) -> None:
        """If it had none before and after the event. (A loss in the same event may have caused that.)"""
        new = {fault.at for fault in counted_faults if fault.is_charged and not fault.caused_eviction} - self._charges
        self._charges |= new
        cut_off = not state.has_majority()
        if new and cut_off and (state.quorum.check is not None or sidecar in self._cut_off):
            raise Violation(
                Rule.CHARGES_NEED_A_MAJORITY,
                f"{sidecar.pod.name} charges a restart, and may itself be partitioned",
            )
        (self._cut_off.add if cut_off else self._cut_off.discard)(sidecar)

    def no_innocent_pod_is_evicted(self, uid: str, reason: str) -> None:
        pod = next(pod for pod in self.cluster.pods if pod.uid == uid)
        guilty = self.cluster.culprits | self.cluster.training.stale_savers
        if (
            pod.machine.hardware_finding
            or pod.machine.leaving_reason
            or pod.name in self.cluster.drained
            or reason.startswith("its workers have not started")
        ):
            return
        if any(x.launcher is not None and x.launcher.stopped for x in self.cluster.pods):
            return  # it is unknown whether a worker of that pod has failed
        if pod.name not in guilty and not self.cluster.clocks_differ:
            raise Violation(
                Rule.NO_INNOCENT_POD_IS_EVICTED,
                f"{pod.name} is evicted ({reason}), and none of its workers has failed by itself",
            )


def _may_be_taken_back(state: CoordinatorState, fault: CountedFault) -> bool:
    """Its recovery is open and blames a worker, and not all actives are known to be in the round that ends it."""
    blames = any(entry.detected_at == fault.at and entry.fault in WORKER_FAULTS for entry in state.recovery_log.open)
    return blames and (state.round.phase is RoundPhase.WAITING or bool(state.roster.unacked))
