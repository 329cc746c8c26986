"""Deliberate bugs, each a small change of one rule: the simulation must find every one of them.

A mutation is a context manager that breaks the code while it is open. It is found if one of the rules that it breaks
is violated. `seeds` is where to look: the first that finds it is usually among the first dozen; a rule that only
matters in rare schedules is looked for longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from tests.simulation import test_schedules
from tests.simulation.sidecars import Sidecar as SimulatedSidecar
from tests.simulation.world import Rule
from understudy_launcher.supervise import Supervisor
from understudy_protocol import launcher as l
from understudy_protocol import membership as m
from understudy_protocol.recovery import Offence, Recovery
from understudy_protocol.words import CLOSE_EXIT_CODES, CloseReason, Fault
from understudy_sidecar.membership import (
    backoff,
    electorate,
    escalation,
    events,
    faults,
    hangs,
    joining,
    ladder,
    leaving,
    rollouts,
    rounds,
    settling,
    succession,
)
from understudy_sidecar.membership.backoff import Backoff
from understudy_sidecar.membership.calling import Calls
from understudy_sidecar.membership.coordinator import Coordinator
from understudy_sidecar.membership.core import Core, CoreEffect
from understudy_sidecar.membership.desk import Desk, ReplicasTold, State
from understudy_sidecar.membership.electorate import Tally
from understudy_sidecar.membership.first_failure import FirstFailure
from understudy_sidecar.membership.former_round import FormerRound
from understudy_sidecar.membership.launcher_watch import LauncherWatch
from understudy_sidecar.membership.member import Member as MemberMachine
from understudy_sidecar.membership.recoveries import KEPT, RecoveryBook
from understudy_sidecar.membership.roster import Member as Record
from understudy_sidecar.membership.roster import Roster
from understudy_sidecar.membership.silence import SilenceWatch
from understudy_sidecar.membership.voter import Voter

Open = Callable[[], Any]


@dataclass(frozen=True)
class Mutation:
    """breaks: the rules that it violates; other violations are no evidence that the simulation checks them.

    kinds: the faults without which it makes no difference. Schedules that lack one of them are not run.
    """

    name: str
    breaks: tuple[Rule, ...]
    open: Open
    seeds: int = 300
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScheduledMutation:
    """One that random schedules hardly ever find: this scenario of test_scenarios.py or test_schedules.py fails."""

    name: str
    open: Open
    scenario: Callable[[], None]


def _patch(target: Any, name: str, broken: Any) -> Open:
    return lambda: mock.patch.object(target, name, broken)


_next_hosts = Calls.next


def _no_host_again(
    self: Calls, heirs: tuple[m.Heir, ...], own_ip: str, named: str = "", followed: str = ""
) -> tuple[tuple[str, ...], float]:
    """As Calls.next, but without the hosts of this turn that were called before, if any other is left."""
    hosts, wait_s = _next_hosts(self, heirs, own_ip, named, followed)
    before = set(self._order[: 0 if self._last is None else self._last + 1]) - {named}
    return tuple(host for host in hosts if host not in before) or hosts, wait_s


def _nothing(*_: object) -> None:
    """In place of what is done about something."""


def _grant_anything(self: Voter, candidacy: m.Candidacy) -> bool:
    self.vow = replace(self.vow, office=max(self.vow.office, candidacy.office), granted_to=candidacy.pod_uid)
    return True


def _half_is_enough(voters: Any) -> int:
    return len(voters) // 2


def _one_vote_is_enough(self: Tally) -> bool:
    return any(uid in self.electorate.voters for uid in self)


def _propose_again(desk: Desk) -> None:
    voters = [x.uid for x in desk.roster.members.values() if x.join.votes]
    if proposed := desk.keeper.next_voters(voters):
        succession._propose(desk, proposed)


@contextmanager
def _changes_are_superseded() -> Iterator[None]:
    """A coordinator replaces its pending electorate, and does not repeat the one that it was elected with."""
    propose = electorate.ElectorateKeeper.propose

    def next_voters(self: electorate.ElectorateKeeper, voters: Any) -> frozenset[str]:
        wanted = frozenset(voters)
        return wanted if wanted != self.newest.voters else frozenset()

    def superseding(self: electorate.ElectorateKeeper, voters: Any) -> electorate.Electorate:
        self.pending = None
        return propose(self, voters)

    with (
        mock.patch.object(electorate.ElectorateKeeper, "next_voters", next_voters),
        mock.patch.object(electorate.ElectorateKeeper, "propose", superseding),
        mock.patch.object(succession, "_send_pending", lambda desk, pending: _propose_again(desk)),
    ):
        yield


def _change_at_once(self: electorate.ElectorateKeeper, voters: Any) -> frozenset[str]:
    """A new coordinator proposes a change without repeating its electorate first."""
    wanted = frozenset(voters)
    return frozenset() if self.pending is not None or wanted == self.settled.voters else wanted


def _always(self: Any) -> bool:
    return True


def _never(*_: object) -> bool:
    return False


def _replace_nameless(desk: Desk, former: FormerRound, now: float) -> None:
    """As if no heir were told which pods hold ranks."""
    desk.former_estate = desk.appointment = None
    replace_missing(desk, former, now)


replace_missing = settling._replace_missing


@contextmanager
def _vows_are_forgotten() -> Iterator[None]:
    """A sidecar that is restarted knows nothing of what it has promised."""
    do = SimulatedSidecar._do

    def forgetful(self: SimulatedSidecar, effect: CoreEffect) -> None:
        if not isinstance(effect, events.RecordVow):
            do(self, effect)

    with mock.patch.object(SimulatedSidecar, "_do", forgetful):
        yield


@contextmanager
def _the_first_to_finish_ends_the_job() -> Iterator[None]:
    with mock.patch.object(Roster, "all_finished", lambda self: bool(self.finished)):
        yield


@contextmanager
def _exit_0_on_failure() -> Iterator[None]:
    with mock.patch.dict(CLOSE_EXIT_CODES, {CloseReason.FAILED: 0}):
        yield


def _lose_and_forget(desk: Desk, member: Record, fault: Fault, reason: str, now: float, **_: object) -> None:
    """The rank of a lost member is not vacant."""
    desk.roster.unlink(member)
    desk.members_changed(now)


def _resume_without_what_was_missed(desk: Desk, member: Record, link: int, join: m.Join, now: float) -> None:
    desk.roster.relink(member, link)
    member.join, member.last_heard = join, now
    joining.welcome(desk, member)


def _nobody_is_silent(self: SilenceWatch, *_: object) -> list[Any]:
    return []


@contextmanager
def _old_workers_live_on() -> Iterator[None]:
    start = Supervisor._on_start_workers

    def careless(self: Supervisor, order: l.StartWorkers, now: float) -> None:
        self._groups.left.clear()
        start(self, order, now)

    with mock.patch.object(Supervisor, "_on_start_workers", careless):
        yield


@contextmanager
def _survivors_are_moved() -> Iterator[None]:
    """Every round gives the ranks anew, by who came first, without telling those who keep theirs."""
    form = rounds._assign

    def shuffle(desk: Desk) -> None:
        form(desk)
        active = desk.roster.active()
        if len(active) > 1 and desk.token.round > 0:
            first, second = active[0], active[1]
            assert second.assign is not None
            wrong = replace(second.assign, group_rank=0, rank_offset=0)
            desk.send(second, replace(wrong, token=wrong.token.next_round()))
            assert first.assign is not None

    with mock.patch.object(rounds, "_assign", shuffle):
        yield


def _adopt_without_looking(desk: Desk, now: float) -> None:
    desk.state, desk.first = State.RUNNING, False


def _climb_without_a_budget(case: ladder.Case, limits: ladder.Limits) -> ladder.Step:
    return ladder.climb(replace(case, charged=0), limits)


def _climb_whatever_the_rank_did(case: ladder.Case, limits: ladder.Limits) -> ladder.Step:
    return ladder.climb(replace(case, rank_had_another_pod=False, last_pod_has_gone=False), limits)


decide_in_time = escalation.on_time


def _give_up_without_asking(desk: Desk, now: float) -> None:
    """The coordinator takes the first failure that is reported for the first that happened."""
    if desk.dismissal is not None:
        desk.dismissal.pending.clear()
    decide_in_time(desk, now)


@contextmanager
def _a_minority_counts() -> Iterator[None]:
    """As if whoever takes itself for the coordinator were it."""
    count = escalation.count

    def counting(*args: Any, **given: Any) -> None:
        with mock.patch.object(Desk, "has_majority", _always):
            count(*args, **given)

    with mock.patch.object(escalation, "count", counting):
        yield


@contextmanager
def _each_leave_costs_a_restart() -> Iterator[None]:
    """As if the workers that end with a pod that is asked to had failed."""
    gone = leaving.on_gone

    def charging(desk: Desk, member: Record, message: m.Gone, now: float) -> None:
        desk.offences.add(Offence(now, member.uid, member.group_rank))
        gone(desk, member, message, now)

    with mock.patch.object(leaving, "on_gone", charging):
        yield


def _any_failure_is_final(desk: Desk, told: ReplicasTold) -> bool:
    return told.replicas.failure is not None


@contextmanager
def _drain_nobody() -> Iterator[None]:
    """Members that leave are never waited for, nor ever lost. Who is swapped is drained as ever."""
    drain = leaving.drain

    def forgetting(desk: Desk, grace_s: float, now: float) -> None:
        if desk.swaps:
            drain(desk, grace_s, now)
        else:
            desk.roster.leaving.clear()

    with mock.patch.object(leaving, "drain", forgetting):
        yield


def _only_of_the_running_round(self: Coordinator, member: Record, message: Any, now: float) -> None:
    if self.desk.is_current(member, message.token):
        on_phase(self, member, message, now)


on_phase = Coordinator._on_phase


def _any_pause(self: RecoveryBook, round_number: int, at: float, pause_s: float | None = None) -> list[Recovery]:
    """The time since the fault was detected, as if a pod had measured it."""
    done = stepped(self, round_number, at)
    self._done = deque([replace(x, pause_s=(x.resumed_at or at) - x.detected_at) for x in self._done], maxlen=KEPT)
    return done


stepped = RecoveryBook.stepped

MUTATIONS = (
    Mutation(
        "a pause is computed by the coordinator", (Rule.PAUSES_ARE_TRUE,), _patch(RecoveryBook, "stepped", _any_pause)
    ),
    Mutation(
        "a member grants an office to everybody who asks",
        (Rule.A_MAJORITY_ELECTS, Rule.ONE_COORDINATOR_MAY_BE_FOLLOWED),
        _patch(Voter, "grant", _grant_anything),
        3000,
    ),
    Mutation(
        "half of the electorate elects",
        (Rule.ONE_COORDINATOR_MAY_BE_FOLLOWED, Rule.ELECTORATES_ARE_INHERITED),
        _patch(electorate, "majority", _half_is_enough),
        3000,
    ),
    Mutation(
        "one vote elects",
        (Rule.ONE_COORDINATOR_MAY_BE_FOLLOWED, Rule.ELECTORATES_ARE_INHERITED),
        _patch(Tally, "carries", _one_vote_is_enough),
        1000,
    ),
    Mutation("vows are forgotten at a restart", (Rule.A_MAJORITY_ELECTS,), _vows_are_forgotten, 1000),
    Mutation(
        "rounds are formed without a majority",
        (Rule.A_ROUND_NEEDS_A_MAJORITY,),
        _patch(Desk, "has_majority", _always),
        3000,
    ),
    Mutation(
        "the first member to finish ends the job", (Rule.A_SUCCESS_MADE_ALL_STEPS,), _the_first_to_finish_ends_the_job
    ),
    Mutation("a failed job exits 0", (Rule.ONLY_A_SUCCESS_EXITS_0,), _exit_0_on_failure),
    Mutation(
        "a lost member keeps its rank", (Rule.A_FAULT_IS_FOLLOWED_BY_A_STEP,), _patch(faults, "lose", _lose_and_forget)
    ),
    Mutation(
        "who comes back is not told what it missed",
        (Rule.A_FAULT_IS_FOLLOWED_BY_A_STEP,),
        _patch(joining, "_resume", _resume_without_what_was_missed),
        1000,
    ),
    Mutation("a deadline of silence is ignored", (Rule.NO_BUSY_LOOP,), _patch(SilenceWatch, "lost", _nobody_is_silent)),
    Mutation(
        "old workers live on beside the new ones",
        (Rule.A_STALE_ROUND_ENDS, Rule.A_RANK_HAS_ONE_WORKER),
        _old_workers_live_on,
        3000,
    ),
    Mutation(
        "a rank is given twice", (Rule.A_ROUND_HAS_ONE_WORLD, Rule.A_GROUP_RANK_HAS_ONE_MEMBER), _survivors_are_moved
    ),
    Mutation(
        "a broken round is adopted",
        (Rule.A_FAULT_IS_FOLLOWED_BY_A_STEP,),
        _patch(settling, "settle", _adopt_without_looking),
    ),
    Mutation(
        "who leaves is forgotten",
        (Rule.NO_INNOCENT_POD_IS_EVICTED, Rule.NO_INNOCENT_WORKER_IS_BLAMED, Rule.ONLY_FAILURES_ARE_CHARGED),
        _drain_nobody,
        3000,
        ("pod deleted",),
    ),
    Mutation(
        "nobody is told that workers hang",
        (Rule.A_FAULT_IS_FOLLOWED_BY_A_STEP,),
        _patch(hangs, "on_hung", lambda desk, member, hung, now: None),
        3000,
        ("worker hangs",),
    ),
    Mutation(
        "nobody misses the first step of a round",
        (Rule.A_FAULT_IS_FOLLOWED_BY_A_STEP,),
        _patch(hangs, "expect_step", lambda desk, now: None),
    ),
    Mutation(
        "the budget of restarts has no end",
        (Rule.THE_BUDGET_IS_KEPT,),
        _patch(escalation, "climb", _climb_without_a_budget),
    ),
    Mutation(
        "a rank may cost any number of pods",
        (Rule.A_RANK_COSTS_ONE_POD, Rule.ONE_POD_BEYOND_THE_BUDGET),
        _patch(escalation, "climb", _climb_whatever_the_rank_did),
    ),
    Mutation(
        "who told first is given up unasked",
        (Rule.NO_INNOCENT_POD_IS_EVICTED,),
        _patch(escalation, "on_time", _give_up_without_asking),
        2000,
    ),
    Mutation(
        "restarts are charged without a majority",
        (Rule.CHARGES_NEED_A_MAJORITY,),
        _a_minority_counts,
        3000,
        ("coordinator's sidecar hangs",),
    ),
    Mutation("a pod that leaves costs a restart", (Rule.ONLY_FAILURES_ARE_CHARGED,), _each_leave_costs_a_restart),
    Mutation(
        "no failed update may be tried again",
        (Rule.A_FAILURE_HAS_SPENT_ITS_RETRIES,),
        _patch(rollouts, "_is_final", _any_failure_is_final),
        1000,
    ),
    Mutation(
        "a launcher that does not respond is kept",
        (Rule.A_FAULT_IS_FOLLOWED_BY_A_STEP,),
        _patch(LauncherWatch, "responds", lambda self, now: True),
        3000,
        ("launcher stops",),
    ),
    Mutation(
        "a worker that cannot be killed is ignored",
        (Rule.A_FAULT_IS_FOLLOWED_BY_A_STEP,),
        _patch(MemberMachine, "_on_unkillable", _nothing),
        3000,
        ("worker unkillable",),
    ),
    Mutation(
        "a vow that cannot be stored is ignored",
        (Rule.A_FAULT_IS_FOLLOWED_BY_A_STEP,),
        _patch(Core, "_on_store_failed", _nothing),
        30000,
        ("state volume full",),
    ),
    Mutation(
        "a start is waited for without end",
        (Rule.A_FAULT_IS_FOLLOWED_BY_A_STEP,),
        _patch(rounds, "lose_late_starters", _nothing),
        3000,
        ("start never comes",),
    ),
    Mutation(
        "lost pods have no names in a new term",
        (Rule.A_LOST_POD_HAS_A_NAME,),
        _patch(settling, "_replace_missing", _replace_nameless),
        3000,
    ),
    Mutation(
        "a member that has called the last host calls it again without end",
        (Rule.MEMBERS_ELECT_BY_THEMSELVES,),
        _patch(Calls, "next", _no_host_again),
        2000,
        ("operator down",),
    ),
    Mutation(
        "a coordinator never resigns",
        (Rule.A_FAULT_IS_FOLLOWED_BY_A_STEP,),
        _patch(Coordinator, "_resign_if_alone", lambda self, now: None),
        3000,
    ),
)

SCHEDULED = (
    ScheduledMutation(
        "a pending change is superseded",
        _changes_are_superseded,
        test_schedules.test_a_pending_change_that_everybody_stored_leaves_room_for_one_coordinator,
    ),
    ScheduledMutation(
        "a new coordinator changes its electorate at once",
        _patch(electorate.ElectorateKeeper, "next_voters", _change_at_once),
        test_schedules.test_a_pending_change_that_others_have_not_stored_leaves_room_for_one_coordinator,
    ),
    ScheduledMutation(
        "rounds follow without a limit",
        _patch(Backoff, "waits", _never),
        test_schedules.test_a_worker_that_fails_after_each_first_step_does_not_cost_a_round_a_second,
    ),
    ScheduledMutation(
        "losses at the start of rounds have no backoff",
        _patch(backoff, "LOSSES", 1000),
        test_schedules.test_a_pod_that_is_lost_at_the_start_of_each_round_costs_a_few_rounds_only,
    ),
    ScheduledMutation(
        "an acknowledgement counts only while its round runs",
        _patch(Coordinator, "_on_phase", _only_of_the_running_round),
        test_schedules.test_a_pod_that_is_lost_at_the_start_of_each_round_costs_a_few_rounds_only,
    ),
    ScheduledMutation(
        "a member that was lost comes back without backoff",
        _patch(Desk, "lately_lost", _never),
        test_schedules.test_a_pod_that_was_lost_is_not_preferred_to_a_spare_although_it_was_made_for_the_rank,
    ),
    ScheduledMutation(
        "the failure that is reported first is blamed",
        _patch(FirstFailure, "add", _never),
        test_schedules.test_the_worker_that_failed_first_is_blamed_although_another_one_is_reported_before,
    ),
)
