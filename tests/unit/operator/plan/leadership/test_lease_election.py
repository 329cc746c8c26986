"""Leader election: one replica of a shard leads at a time, and another one soon after it is gone. No shard leads while
a shard of another layout does. Replicas share no clock, and any answer may be lost.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import pytest

from understudy_operator.plan.leadership.lease_election import (
    Lease,
    LeaseCandidate,
    LeaseTimes,
    ReadLease,
    ReadOtherLeases,
    Step,
    Wait,
    WriteLease,
)
from understudy_operator.plan.leadership.other_layouts import OtherLayouts
from understudy_operator.plan.leadership.shard import SINGLE_SHARD, Shard

READ_EVERY_S = 0.5
RETRY_S = 0.2

LEASE_S, GIVE_UP_S, RENEW_EVERY_S = 15.0, 10.0, 2.0
TIMES = LeaseTimes(LEASE_S, GIVE_UP_S, RENEW_EVERY_S)

#: A shorter wait may be lost in the rounding between the clocks of the server and a replica.
SHORTEST_S = 1e-6

T = TypeVar("T")
HERS = Lease("b", LEASE_S, "7", transitions=3)


def a_leader() -> LeaseCandidate:
    """A leader since 0.0, when it sent its write."""
    candidate = LeaseCandidate("a", TIMES)
    candidate.on_lease_read(None, 0.0)
    candidate.on_lease_written(Lease("a", LEASE_S, "1", "then"), sent_at=0.0, now=0.0)
    candidate.on_other_leases_read(is_one_held=False, now=0.0)
    return candidate


def waits(step: Step, for_s: float) -> bool:
    return isinstance(step, Wait) and abs(step.seconds - for_s) < 1e-9


def test_a_replica_that_finds_no_lease_creates_it_and_leads_after_the_answer():
    candidate = LeaseCandidate("a", TIMES)
    assert candidate.next(10.0) == ReadLease()
    candidate.on_lease_read(None, 10.0)
    assert candidate.next(10.0) == ReadOtherLeases()
    candidate.on_other_leases_read(is_one_held=False, now=10.0)
    assert candidate.next(10.0) == WriteLease(Lease("a", LEASE_S, ""), replaces=None)
    assert not candidate.leads(10.0)
    candidate.on_lease_written(Lease("a", LEASE_S, "1"), sent_at=10.0, now=10.1)
    assert candidate.next(10.1) == ReadOtherLeases()
    assert not candidate.leads(10.1)
    candidate.on_other_leases_read(is_one_held=False, now=10.2)
    assert candidate.leads(10.2)


def test_a_replica_does_not_acquire_its_lease_while_another_layout_holds_one():
    candidate = LeaseCandidate("a", TIMES)
    candidate.on_lease_read(None, 0.0)
    assert candidate.next(0.0) == ReadOtherLeases()
    candidate.on_other_leases_read(is_one_held=True, now=0.1)
    assert candidate.next(0.1) == Wait(READ_EVERY_S)
    # and it reads both again
    assert candidate.next(0.1 + READ_EVERY_S) == ReadLease()
    candidate.on_lease_read(None, 0.7)
    assert candidate.next(0.7) == ReadOtherLeases()


def test_a_replica_that_finds_another_layouts_lease_held_after_it_has_acquired_its_own_releases_it_without_leading():
    # given a replica that has acquired its Lease
    candidate = LeaseCandidate("a", TIMES)
    candidate.on_lease_read(None, 0.0)
    candidate.on_other_leases_read(is_one_held=False, now=0.0)
    candidate.on_lease_written(Lease("a", LEASE_S, "1"), sent_at=0.1, now=0.2)
    assert candidate.next(0.2) == ReadOtherLeases()

    # when a replica of another layout has acquired its Lease in the meantime
    candidate.on_other_leases_read(is_one_held=True, now=0.3)

    # then the replica never leads, and releases its Lease
    assert (candidate.leads(0.3), candidate.may_write_for_s(0.3)) == (False, 0.0)
    step = candidate.next(0.3)
    assert isinstance(step, WriteLease)
    assert (step.lease.holder, step.replaces) == ("", Lease("a", LEASE_S, "1"))
    candidate.on_lease_written(replace(step.lease, version="2"), sent_at=0.3, now=0.4)
    assert (candidate.leads(0.4), candidate.may_write_for_s(0.4)) == (False, 0.0)
    # and it retries after a pause that depends on its name: the other replica may have released its Lease, too
    assert waits(candidate.next(0.4), 0.9535)
    assert candidate.next(0.4 + 0.96) == ReadLease()


def test_a_holder_that_does_not_lead_yet_releases_its_lease_when_it_is_stopped():
    candidate = LeaseCandidate("a", TIMES)
    candidate.on_lease_read(None, 0.0)
    candidate.on_lease_written(Lease("a", LEASE_S, "1"), sent_at=0.1, now=0.2)
    released = candidate.release(0.3)
    assert released is not None
    assert released.lease.holder == ""


def test_a_renewal_that_was_answered_within_the_lease_duration_continues_the_leadership():
    # given a leader that has sent its last renewal at 0.0, and whose next one is answered just before the Lease expires
    candidate = a_leader()
    candidate.on_lease_written(Lease("a", LEASE_S, "2"), sent_at=9.0, now=14.9)
    # then it leads without another read
    assert candidate.leads(14.9)
    assert isinstance(candidate.next(14.9), WriteLease)


def test_a_renewal_that_was_answered_after_the_lease_duration_makes_no_leader_before_the_other_leases_were_read():
    # given a leader that has sent its last renewal at 0.0, and that is frozen while it renews
    candidate = a_leader()
    # when the answer arrives at a time at which a replica of another layout may have found the Lease expired
    candidate.on_lease_written(Lease("a", LEASE_S, "2"), sent_at=9.0, now=15.0)
    # then it may not write
    assert (candidate.leads(15.0), candidate.may_write_for_s(15.0)) == (False, 0.0)
    assert candidate.next(15.0) == ReadOtherLeases()
    candidate.on_other_leases_read(is_one_held=False, now=15.1)
    assert candidate.leads(15.1)


def test_a_leader_renews_in_time_and_keeps_its_acquire_time():
    candidate = a_leader()
    assert waits(candidate.next(0.1), RENEW_EVERY_S - 0.1)
    (step,) = [candidate.next(RENEW_EVERY_S)]
    assert isinstance(step, WriteLease)
    assert (step.lease.acquired, step.lease.transitions) == ("then", 0)


def test_a_leader_without_an_answer_reads_the_lease_and_steps_down_before_it_expires():
    candidate = a_leader()
    candidate.on_failure(2.0)
    assert waits(candidate.next(2.0), RETRY_S)
    assert candidate.next(2.0 + RETRY_S) == ReadLease()
    assert candidate.leads(GIVE_UP_S - 0.01)
    assert not candidate.leads(GIVE_UP_S)


def test_the_default_times_are_those_of_client_go():
    assert LeaseTimes() == LeaseTimes(15.0, 10.0, 2.0)


def test_a_running_reconcile_may_write_for_half_of_the_leases_remaining_time():
    candidate = a_leader()
    assert candidate.may_write_for_s(10.0) == 2.5  # this replica does not lead any more, and no other one leads
    assert candidate.may_write_for_s(12.6) == 0.0
    # but not once another replica is the holder
    candidate.on_lease_read(HERS, 10.5)
    assert candidate.may_write_for_s(10.5) == 0.0
    # and not once the lease is released
    giver = a_leader()
    giver.release(1.0)
    assert giver.may_write_for_s(1.0) == 0.0


def test_a_leaders_time_counts_from_its_request_and_not_from_the_answer():
    candidate = LeaseCandidate("a", TIMES)
    candidate.on_lease_read(None, 0.0)
    candidate.on_lease_written(Lease("a", LEASE_S, "1"), sent_at=5.0, now=6.0)
    assert candidate.leads_until == 5.0 + GIVE_UP_S


def test_a_leader_that_reads_another_name_stands_by_at_once():
    candidate = a_leader()
    candidate.on_failure(1.0)
    candidate.on_lease_read(HERS, 1.5)
    assert not candidate.leads(1.5)
    assert candidate.next(1.5) == Wait(READ_EVERY_S)


def test_another_replicas_lease_is_free_if_no_renewal_was_observed_for_its_duration():
    candidate = LeaseCandidate("a", TIMES)
    candidate.on_lease_read(HERS, 100.0)
    assert candidate.next(100.0) == Wait(READ_EVERY_S)
    candidate.on_lease_read(HERS, 114.9)
    assert waits(candidate.next(114.9), 0.1)  # not later than necessary
    candidate.on_lease_read(HERS, 115.0)
    assert candidate.next(115.0) == ReadOtherLeases()
    candidate.on_other_leases_read(is_one_held=False, now=115.0)
    step = candidate.next(115.0)
    assert isinstance(step, WriteLease)
    assert (step.replaces, step.lease.transitions) == (HERS, 4)


def test_each_renewal_restarts_the_wait():
    candidate = LeaseCandidate("a", TIMES)
    candidate.on_lease_read(HERS, 100.0)
    candidate.on_lease_read(replace(HERS, version="8"), 103.0)
    candidate.on_lease_read(replace(HERS, version="8"), 117.5)
    assert isinstance(candidate.next(117.5), Wait)


def test_a_released_lease_is_free_at_once():
    leader, other = a_leader(), LeaseCandidate("b", TIMES)
    given = leader.release(0.5)
    assert given is not None
    assert not leader.leads(0.5)
    other.on_lease_read(replace(given.lease, version="2"), 0.6)
    other.on_other_leases_read(is_one_held=False, now=0.6)
    assert isinstance(other.next(0.6), WriteLease)


def test_a_standby_replica_does_not_release_the_lease():
    candidate = LeaseCandidate("a", TIMES)
    candidate.on_lease_read(HERS, 0.0)
    assert candidate.release(1.0) is None


def test_the_next_read_finds_an_unanswered_write_which_is_repeated():
    candidate = LeaseCandidate("a", TIMES)
    candidate.on_lease_read(None, 0.0)
    candidate.on_failure(1.0)
    candidate.on_lease_read(Lease("a", LEASE_S, "5"), 1.2)
    candidate.on_other_leases_read(is_one_held=False, now=1.2)
    step = candidate.next(1.2)
    assert isinstance(step, WriteLease)
    assert step.lease.transitions == 0
    assert not candidate.leads(1.2)


@dataclass
class Server:
    """Keeps Leases. Calls take time in both directions, and some are executed without an answer."""

    rng: random.Random
    now: float = 0.0
    leases: dict[str, Lease] = field(default_factory=dict)
    lists: dict[str, str] = field(default_factory=dict)  # by Lease: the list of the replica that has written it
    reachable: dict[str, bool] = field(default_factory=dict)
    _versions: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _order: "itertools.count[int]" = field(default_factory=itertools.count)
    _due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)

    def at(self, when: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._due, (when, next(self._order), do))

    def run(self, until: float, check: Callable[[], None]) -> None:
        while self._due and self._due[0][0] <= until:
            self.now, _, do = heapq.heappop(self._due)
            do()
            check()
        self.now = until

    def put(self, name: str, listed: str, write: WriteLease) -> Lease | None:
        known = None if name not in self.leases else self.leases[name].version
        is_done = None if write.replaces is None else write.replaces.version
        if known != is_done:
            return None
        self.lists[name] = listed
        self.leases[name] = replace(write.lease, version=str(next(self._versions)))
        return self.leases[name]


@dataclass
class Replica:
    server: Server
    name: str
    ahead_s: float  # of its monotonic clock
    shard: Shard = SINGLE_SHARD
    alive: bool = True
    thaws_at: float = 0.0  # frozen until then
    candidate: LeaseCandidate = field(init=False)
    others: OtherLayouts = field(default_factory=OtherLayouts)

    def __post_init__(self) -> None:
        self.candidate = LeaseCandidate(self.name, TIMES)
        self.step()

    @property
    def now(self) -> float:
        return self.server.now + self.ahead_s

    @property
    def leads(self) -> bool:
        return self.alive and self.candidate.leads(self.now)

    @property
    def may_write(self) -> bool:
        return self.alive and self.candidate.may_write_for_s(self.now) > 0.0

    def step(self) -> None:
        if not self.alive:
            return
        match self.candidate.next(self.now):
            case Wait(for_s):
                self.server.at(self.server.now + max(for_s, SHORTEST_S), self.step)
            case ReadLease():
                self._call(lambda: self.server.leases.get(self.lease_name), self._on_read)
            case ReadOtherLeases():
                self._call(self.of_other_layouts, partial(self._on_others, self.now))
            case WriteLease() as write:
                self._call(
                    lambda: self.server.put(self.lease_name, self.shard.listed, write),
                    partial(self._on_written, self.now),
                )

    @property
    def lease_name(self) -> str:
        return self.shard.lease_name("operator")

    def of_other_layouts(self) -> dict[str, Lease]:
        return {
            name: lease
            for name, lease in self.server.leases.items()
            if self.shard.is_of_other_layout("operator", name, self.server.lists[name])
        }

    def _on_read(self, lease: Lease | None) -> None:
        self.candidate.on_lease_read(lease, self.now)

    def _on_others(self, sent_at: float, leases: dict[str, Lease]) -> None:
        is_one_held = bool(self.others.held_lease(leases, sent_at, self.now))
        self.candidate.on_other_leases_read(is_one_held=is_one_held, now=self.now)

    def _on_written(self, sent_at: float, lease: Lease | None) -> None:
        if lease is None:
            self.candidate.on_failure(self.now)
        else:
            self.candidate.on_lease_written(lease, sent_at, self.now)

    def _call(self, do: Callable[[], T], on_answer: Callable[[T], None]) -> None:
        rng, server = self.server.rng, self.server
        present, back = rng.choice([0.01, 0.05, 2.4]), rng.choice([0.01, 0.9])
        lost = not server.reachable.get(self.name, True)

        def arrive() -> None:
            if lost:
                return server.at(server.now + TIMES.call, fail)
            result = do()
            responses = rng.random() > 0.1 and present + back <= TIMES.call
            return server.at(server.now + back, (lambda: answer(result)) if responses else fail)

        def answer(result: T) -> None:
            if self.thaws_at > server.now:
                server.at(self.thaws_at, lambda: answer(result))
            elif self.alive:
                on_answer(result)
                self.step()

        def fail() -> None:
            if self.alive:
                self.candidate.on_failure(self.now)
                self.step()

        server.at(server.now + present, arrive)


@pytest.mark.parametrize("seed", range(30))
def test_with_lost_and_late_calls_at_most_one_replica_leads_and_soon_one_does(seed: int):
    rng = random.Random(seed)
    server = Server(rng)
    replicas = [Replica(server, name, rng.uniform(-1e6, 1e6)) for name in "abc"]

    def check() -> None:
        assert sum(replica.may_write for replica in replicas) <= 1

    for _ in range(20):
        for replica in replicas:
            server.reachable[replica.name] = rng.random() > 0.3
        server.run(server.now + rng.uniform(0.5, 40.0), check)
    server.reachable = {}
    server.run(server.now + 60.0, check)
    alive = [replica for replica in replicas if replica.leads]
    for gone in alive:
        gone.alive = False
        left = [replica for replica in replicas if replica.alive]
        died_at = server.now
        while not any(replica.leads for replica in left):
            server.run(server.now + 0.05, check)
            assert server.now - died_at < 45.0, f"seed {seed}"


#: One shard; two shards; and two shards with a list, in which each namespace has the other shard.
LISTED = "team-a=1,team-c=0"
LAYOUTS = [(Shard(0, 1),), (Shard(0, 2), Shard(1, 2)), (Shard(0, 2, LISTED), Shard(1, 2, LISTED))]


def owned_twice(replicas: list[Replica]) -> bool:
    """Whether a namespace has two replicas that may write. team-a is of shard 0 of 2, team-c of shard 1."""
    writers = [replica.shard for replica in replicas if replica.may_write and replica.thaws_at <= replica.server.now]
    return any(sum(shard.owns(namespace) for shard in writers) > 1 for namespace in ("team-a", "team-c"))


@pytest.mark.parametrize("seed", range(30))
def test_replicas_of_three_layouts_never_own_a_namespace_twice_and_the_layout_that_is_left_owns_all(seed: int):
    # given two replicas of each shard of each layout, whose calls are late or lost, and which are cut off and frozen
    rng = random.Random(seed)
    server = Server(rng)
    shards = [shard for layout in LAYOUTS for shard in layout * 2]
    replicas = [Replica(server, f"{name}", rng.uniform(-1e6, 1e6), shard) for name, shard in enumerate(shards)]

    def check() -> None:
        assert not owned_twice(replicas)

    for _ in range(20):
        for replica in replicas:
            server.reachable[replica.name] = rng.random() > 0.3
            if rng.random() < 0.2:
                replica.thaws_at = server.now + rng.uniform(1.0, 30.0)
        server.run(server.now + rng.uniform(0.5, 40.0), check)

    # when all layouts but one are removed
    server.reachable = {}
    left = rng.choice(LAYOUTS)
    for replica in replicas:
        replica.alive = replica.shard in left
    removed_at = server.now

    # then each namespace soon has one owner
    while {replica.shard for replica in replicas if replica.leads} != set(left):
        server.run(server.now + 0.1, check)
        assert server.now - removed_at < 120.0, f"seed {seed}"


def test_another_replica_leads_after_a_kill_once_the_lease_has_expired():
    for seed in range(20):
        server = Server(random.Random(seed))
        server.rng.choice = lambda given: given[0]  # type: ignore[method-assign,assignment]
        server.rng.random = lambda: 1.0  # type: ignore[method-assign]
        first = Replica(server, "a", 0.0)
        server.run(0.5, lambda: None)
        second = Replica(server, "b", 123.0)
        server.run(5.0 + random.Random(seed).random() * 2, lambda: None)
        assert first.leads
        first.alive = False
        died_at = server.now
        while not second.leads:
            server.run(server.now + 0.01, lambda: None)
        assert server.now - died_at <= 15.6
