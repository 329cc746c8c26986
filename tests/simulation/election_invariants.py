"""Invariant 3: each elected coordinator has all configurations that were committed before, and at most one may be
followed.

Both use the stored state of pods, over the whole history, and not the belief of a coordinator: a partitioned
coordinator believes that it has a majority until enough heartbeats are missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations
from operator import is_

from tests.simulation.cluster import SimulatedCluster
from tests.simulation.network import reachable
from tests.simulation.pods import Pod
from tests.simulation.world import Rule, Violation
from understudy_protocol.enums import NO_CONFIG, ConfigVersion, Term
from understudy_protocol.hard_state import HardState
from understudy_sidecar.membership.coordinator import Coordinator
from understudy_sidecar.membership.member_state import MembershipState
from understudy_sidecar.membership.voter_config import Tally, VoterConfig

#: From when a majority can elect until it has elected. A turn through all standby coordinators takes at most 50 s.
ELECTS_WITHIN_S = 120.0


@dataclass
class ElectionInvariants:
    cluster: SimulatedCluster
    _hard_states: dict[str, HardState] = field(default_factory=dict)  # by pod uid
    _votes: dict[tuple[Term, str], set[str]] = field(default_factory=dict)  # uids that voted for this pod in this term
    _proposed_configs: dict[ConfigVersion, VoterConfig] = field(default_factory=dict)  # as they were proposed
    _before: dict[ConfigVersion, ConfigVersion] = field(default_factory=dict)  # by version: the configuration before it
    _counting: dict[int, set[ConfigVersion]] = field(default_factory=dict)  # committed for their coordinators, by epoch
    _leaders_seen: int = 0
    _followed: list[object] = field(default_factory=list)  # what the newest check of coordinators depended on
    _could_elect_since: float | None = None

    def check(self) -> None:
        self._note_hard_states()
        living: dict[Coordinator, VoterConfig] = {}
        for sidecar in self.cluster.leaders:
            coordinator = sidecar.coordinator
            if coordinator is None:
                continue
            self._note_voter_configs(coordinator)  # of a dead one too: its last proposal may be committed anyway
            if sidecar.alive:
                living[coordinator] = coordinator.state.voter_configs.newest
        self.a_majority_elects_each_leader()
        followed = [*living, *living.values()]
        if len(followed) != len(self._followed) or not all(map(is_, followed, self._followed)):
            self._followed = followed
            self.at_most_one_coordinator_may_be_followed(living)

    def _note_voter_configs(self, coordinator: Coordinator) -> None:
        configs = coordinator.state.voter_configs
        pending, committed = configs.pending, configs.committed
        if pending is not None and pending.version not in self._proposed_configs:
            self._proposed_configs[pending.version] = pending
            self._before[pending.version] = committed.version
        of_its_own = (committed.version.epoch, committed.version.term) == (configs.term.epoch, configs.term.number)
        if of_its_own:
            self._counting.setdefault(committed.version.epoch, set()).add(committed.version)

    def _note_hard_states(self) -> None:
        """No pod replaces its hard state by an older one."""
        for pod in self.cluster.pods:
            before, now = self._hard_states.get(pod.uid), pod.hard_state
            if now is before:
                continue
            if before is not None and (now.term < before.term or now.config_version < before.config_version):
                raise Violation(
                    Rule.HARD_STATES_NEVER_GO_BACK,
                    f"{pod.name} replaces its hard state by an older one: {before} -> {now}",
                )
            self._hard_states[pod.uid] = now
            self._followed = []
            if now.voted_for:
                self._votes.setdefault((now.term, now.voted_for), set()).add(pod.uid)

    def a_majority_elects_each_leader(self) -> None:
        """A majority has stored its vote for this pod; both majorities if the configuration was pending.

        Each configuration that a coordinator of an older term of the epoch committed is an ancestor of this one's.
        """
        for sidecar in self.cluster.leaders[self._leaders_seen :]:
            self._leaders_seen += 1
            coordinator = sidecar.coordinator
            if coordinator is None or coordinator.term.number == 1:
                continue
            term, committed = coordinator.term, coordinator.state.voter_configs.committed
            given = self._votes.get((term, sidecar.pod.uid), set())
            if not Tally(committed, given).has_majority():
                raise Violation(
                    Rule.A_MAJORITY_ELECTS, f"term {term} has the votes of {len(given)} pods under {committed}"
                )
            known = self._ancestors(committed.version)
            for version in self._counting.get(term.epoch, ()):
                if version.term < term.number and version not in known:
                    raise Violation(
                        Rule.VOTER_CONFIGS_ARE_INHERITED,
                        f"term {term} began without voter configuration {version}, which is committed",
                    )

    def _ancestors(self, version: ConfigVersion) -> set[ConfigVersion]:
        """This configuration, and all that were proposed before it."""
        found = {version}
        while (version := self._before.get(version, NO_CONFIG)) != NO_CONFIG:
            found.add(version)
        return found

    def at_most_one_coordinator_may_be_followed(self, coordinators: Iterable[Coordinator]) -> None:
        """In each epoch: no other one has a majority of voters that know no newer term."""
        able: dict[int, Coordinator] = {}
        for coordinator in coordinators:
            other = able.get(coordinator.term.epoch)
            if self._may_be_followed(coordinator):
                if other is not None:
                    raise Violation(
                        Rule.ONE_COORDINATOR_MAY_BE_FOLLOWED,
                        f"coordinators of {other.term} and {coordinator.term} may both be followed",
                    )
                able[coordinator.term.epoch] = coordinator

    def _may_be_followed(self, coordinator: Coordinator) -> bool:
        newest = coordinator.state.voter_configs.newest
        if not newest.exists:
            return True  # appointed, and no election is possible yet
        voters = newest.voters | newest.old_voters
        return Tally(newest, (uid for uid in voters if self._term_of(uid) <= coordinator.term)).has_majority()

    def a_majority_elects(self, now: float) -> None:
        """7. Members that are a majority, reach each other and have a standby coordinator among them elect one soon.

        This needs no operator. Call it every few seconds.
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
        """Whether there is no coordinator, and a majority of each possibly committed configuration could elect one."""
        if self.cluster.leader() is not None or self.cluster.closed():
            return False
        epoch = max((version.epoch for version in self._proposed_configs), default=0)
        committed = max(self._counting.get(epoch, ()), default=None)
        able = {pod.uid: pod for pod in self.cluster.pods if _can_vote(pod)}
        if committed is None or any(pod.hard_state.term.epoch != epoch for pod in able.values()):
            return False
        may_count = [x for x in self._proposed_configs.values() if x.version >= committed]
        if not all(Tally(voter_config, able).has_majority() for voter_config in may_count):
            return False
        named = {standby.pod_uid for pod in able.values() for standby in pod.hard_state.standby_coordinators}
        stand = [pod for pod in able.values() if pod.uid in named and pod.hard_state.leader_snapshot is not None]
        reach = all(reachable(a.machine, b.machine) for a, b in combinations(able.values(), 2))
        return bool(stand) and reach

    def _term_of(self, uid: str) -> Term:
        hard_state = self._hard_states.get(uid)
        return Term(0, 0) if hard_state is None else hard_state.term


def _can_vote(pod: Pod) -> bool:
    sidecar = pod.sidecar
    runs = (
        sidecar is not None
        and sidecar.alive
        and not sidecar.stopped
        and pod.machine.is_responding
        and not pod.volume_full
    )
    return runs and sidecar is not None and sidecar.member.state is MembershipState.DISCONNECTED
