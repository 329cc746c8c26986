"""Invariant 3: each elected coordinator has all electorates that counted before, and at most one may be followed.

Both are about what pods have stored, over the whole history, and not about what a coordinator believes: a coordinator
that is cut off believes in a majority until it has missed enough heartbeats.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations

from tests.simulation.cluster import SimulatedCluster
from tests.simulation.network import reachable
from tests.simulation.pods import Pod
from tests.simulation.world import Rule, Violation
from understudy_protocol.vow import Vow
from understudy_protocol.words import NO_ELECTORATE, ElectorateVersion, Office
from understudy_sidecar.membership.coordinator import Coordinator
from understudy_sidecar.membership.electorate import Electorate, Tally
from understudy_sidecar.membership.member import State

#: From when a majority can elect until it has. A turn through all standby coordinators takes at most 50 s.
ELECTS_WITHIN_S = 120.0


@dataclass
class ElectionInvariants:
    cluster: SimulatedCluster
    _vows: dict[str, Vow] = field(default_factory=dict)  # by pod uid
    _grants: dict[tuple[Office, str], set[str]] = field(default_factory=dict)  # uids that gave this office to this pod
    _electorates: dict[ElectorateVersion, Electorate] = field(default_factory=dict)  # as they were proposed
    _before: dict[ElectorateVersion, ElectorateVersion] = field(default_factory=dict)  # what each was proposed after
    _counting: dict[int, set[ElectorateVersion]] = field(default_factory=dict)  # for their coordinators, by epoch
    _offices_seen: int = 0
    _could_elect_since: float | None = None

    def check(self) -> None:
        self._note_vows()
        coordinators = {sidecar: sidecar.coordinator for sidecar in self.cluster.offices}
        for coordinator in coordinators.values():
            if coordinator is not None:  # what it proposed with its last message may count all the same
                self._note_electorates(coordinator)
        self.an_office_is_taken_by_a_majority()
        self.at_most_one_coordinator_may_be_followed([x for sidecar, x in coordinators.items() if x and sidecar.alive])

    def _note_electorates(self, coordinator: Coordinator) -> None:
        keeper = coordinator.desk.keeper
        pending, settled = keeper.pending, keeper.settled
        if pending is not None and pending.version not in self._electorates:
            self._electorates[pending.version] = pending
            self._before[pending.version] = settled.version
        of_its_own = (settled.version.epoch, settled.version.term) == (keeper.office.epoch, keeper.office.term)
        if of_its_own:
            self._counting.setdefault(settled.version.epoch, set()).add(settled.version)

    def _note_vows(self) -> None:
        """No pod takes back what it has promised."""
        for pod in self.cluster.pods:
            before, now = self._vows.get(pod.uid), pod.vow
            if now is before:
                continue
            if before is not None and (now.office < before.office or now.electorate < before.electorate):
                raise Violation(Rule.NO_VOW_IS_TAKEN_BACK, f"{pod.name} takes its vow back: {before} -> {now}")
            self._vows[pod.uid] = now
            if now.granted_to:
                self._grants.setdefault((now.office, now.granted_to), set()).add(pod.uid)

    def an_office_is_taken_by_a_majority(self) -> None:
        """A majority has stored that it gave the office to this pod; both majorities if its electorate was pending.

        And what counted for a coordinator of an older term of the epoch is among what this one was elected after.
        """
        for sidecar in self.cluster.offices[self._offices_seen :]:
            self._offices_seen += 1
            coordinator = sidecar.coordinator
            if coordinator is None or coordinator.office.term == 1:
                continue
            office, settled = coordinator.office, coordinator.desk.keeper.settled
            given = self._grants.get((office, sidecar.pod.uid), set())
            if not Tally(settled, given).carries():
                raise Violation(
                    Rule.A_MAJORITY_ELECTS, f"office {office} was given by {len(given)} pods under {settled}"
                )
            known = self._ancestors(settled.version)
            for version in self._counting.get(office.epoch, ()):
                if version.term < office.term and version not in known:
                    raise Violation(
                        Rule.ELECTORATES_ARE_INHERITED,
                        f"office {office} is taken without electorate {version}, which counts",
                    )

    def _ancestors(self, version: ElectorateVersion) -> set[ElectorateVersion]:
        """This electorate, and all that it was proposed after."""
        found = {version}
        while (version := self._before.get(version, NO_ELECTORATE)) != NO_ELECTORATE:
            found.add(version)
        return found

    def at_most_one_coordinator_may_be_followed(self, coordinators: list[Coordinator]) -> None:
        """Of each epoch: no other one has a majority of voters that know of no newer office."""
        able: dict[int, Coordinator] = {}
        for coordinator in coordinators:
            other = able.get(coordinator.office.epoch)
            if self._may_be_followed(coordinator):
                if other is not None:
                    raise Violation(
                        Rule.ONE_COORDINATOR_MAY_BE_FOLLOWED,
                        f"coordinators of {other.office} and {coordinator.office} may both be followed",
                    )
                able[coordinator.office.epoch] = coordinator

    def _may_be_followed(self, coordinator: Coordinator) -> bool:
        newest = coordinator.desk.keeper.newest
        if not newest.exists:
            return True  # appointed, and nobody can be elected yet
        voters = newest.voters | newest.former
        return Tally(newest, (uid for uid in voters if self._office_of(uid) <= coordinator.office)).carries()

    def a_majority_elects(self, now: float) -> None:
        """7. Members that are a majority, reach each other and have a standby coordinator among them elect one soon.

        It needs no operator. To be called every few seconds.
        """
        if not self._can_elect():
            self._could_elect_since = None
            return
        self._could_elect_since = self._could_elect_since or now
        if now - self._could_elect_since > ELECTS_WITHIN_S:
            raise Violation(
                Rule.MEMBERS_ELECT_BY_THEMSELVES,
                f"a majority has elected no coordinator for {now - self._could_elect_since:.0f} s",
            )

    def _can_elect(self) -> bool:
        """Whether no coordinator is there, and a majority of each electorate that may count could elect one."""
        if self.cluster.office() is not None or self.cluster.closed():
            return False
        epoch = max((version.epoch for version in self._electorates), default=0)
        settled = max(self._counting.get(epoch, ()), default=None)
        able = {pod.uid: pod for pod in self.cluster.pods if _can_vote(pod)}
        if settled is None or any(pod.vow.office.epoch != epoch for pod in able.values()):
            return False
        may_count = [x for x in self._electorates.values() if x.version >= settled]
        if not all(Tally(electorate, able).carries() for electorate in may_count):
            return False
        named = {heir.pod_uid for pod in able.values() for heir in pod.vow.heirs}
        stand = [pod for pod in able.values() if pod.uid in named and pod.vow.estate is not None]
        reach = all(reachable(a.machine, b.machine) for a, b in combinations(able.values(), 2))
        return bool(stand) and reach

    def _office_of(self, uid: str) -> Office:
        vow = self._vows.get(uid)
        return Office(0, 0) if vow is None else vow.office


def _can_vote(pod: Pod) -> bool:
    sidecar = pod.sidecar
    runs = sidecar is not None and sidecar.alive and not sidecar.stopped and pod.machine.answers and not pod.volume_full
    return runs and sidecar is not None and sidecar.member.state is State.APART
