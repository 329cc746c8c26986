"""Mutations: deliberate bugs, each a small change of one rule. The simulation must find every one of them.

A mutation is a context manager that breaks the code while it is open. The simulation has found it if one of the rules
in `breaks` is violated. `seeds` is the number of seeds to try: usually one of the first dozen finds it; a rule that
matters only in rare schedules needs more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

from tests.simulation import test_scenarios, test_schedules, test_snapshots
from tests.simulation.sidecars import SimulatedSidecar
from tests.simulation.training import Numbers
from tests.simulation.world import Rule
from understudy_launcher.supervise import Supervisor
from understudy_operator.plan.status import goodput
from understudy_protocol import launcher as l
from understudy_protocol import membership as m
from understudy_protocol.enums import CLOSE_EXIT_CODES, CloseReason, Fault
from understudy_protocol.goodput import Part
from understudy_protocol.observer import StepProgress
from understudy_protocol.recovery import CountedFault, Recovery
from understudy_protocol.snapshots import SavedStep
from understudy_sidecar.membership import (
    backoff,
    config_change,
    copies,
    escalation,
    events,
    faults,
    hangs,
    joining,
    ladder,
    leaving,
    member_copies,
    member_launcher,
    member_link,
    member_workers,
    quorum,
    rebuilding,
    restoring,
    rollouts,
    round_progress,
    rounds,
    voter_config,
)
from understudy_sidecar.membership.backoff import Backoff
from understudy_sidecar.membership.calling import Calls
from understudy_sidecar.membership.coordinator import Coordinator
from understudy_sidecar.membership.coordinator_state import CoordinatorState, ReplicasReport
from understudy_sidecar.membership.core import Core, CoreEffect
from understudy_sidecar.membership.first_failure import FirstFailure
from understudy_sidecar.membership.liveness import LauncherWatch
from understudy_sidecar.membership.losses import Losses
from understudy_sidecar.membership.pending import PendingDecisions
from understudy_sidecar.membership.rebuilding import PreviousRound
from understudy_sidecar.membership.recoveries import MAX_RECOVERIES, RecoveryLog
from understudy_sidecar.membership.roster import MemberRecord as Record
from understudy_sidecar.membership.roster import Roster
from understudy_sidecar.membership.silence import SilenceWatch
from understudy_sidecar.membership.stall import HangDetection
from understudy_sidecar.membership.voter import Voter
from understudy_sidecar.membership.voter_config import Tally

Open = Callable[[], Any]


@dataclass(frozen=True)
class Mutation:
    """breaks: the rules that it violates; other violations do not show that the simulation checks these.

    kinds: faults without which it makes no difference. Schedules that lack one of them are skipped.
    """

    name: str
    breaks: tuple[Rule, ...]
    open: Open
    seeds: int = 300
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScheduledMutation:
    """A mutation that random schedules rarely find: this scenario of test_scenarios.py or test_schedules.py fails."""

    name: str
    open: Open
    scenario: Callable[[], None]


def _patch(target: Any, name: str, broken: Any) -> Open:
    return lambda: mock.patch.object(target, name, broken)


_next_hosts = Calls.next


def _no_host_again(
    self: Calls, standbys: tuple[m.StandbyCoordinator, ...], own_ip: str, named: str = "", followed: str = ""
) -> tuple[tuple[str, ...], float]:
    """As Calls.next, but without the hosts of this turn that were called before, if any other is left."""
    hosts, wait_s = _next_hosts(self, standbys, own_ip, named, followed)
    before = set(self._order[: 0 if self._last is None else self._last + 1]) - {named}
    return tuple(host for host in hosts if host not in before) or hosts, wait_s


def _nothing(*_: object) -> None:
    """Replaces a reaction."""


def _is_never_counted(*values: Any) -> StepProgress:
    """As if the script had reported these numbers."""
    return replace(StepProgress(*values), is_counted=False)


_is_behind = goodput._is_behind


def _is_behind_by_any_number(account: goodput._Account, facts: goodput._Facts) -> bool | None:
    return bool(_is_behind(account, facts))


def _enter_and_forget(self: goodput._Account, part: Part | None, at: float) -> None:
    self._part, self._since = part, at


def _grant_anything(self: Voter, request: m.RequestVote) -> bool:
    self.hard_state = replace(self.hard_state, term=max(self.hard_state.term, request.term), voted_for=request.pod_uid)
    return True


def _half_is_enough(voters: Any) -> int:
    return len(voters) // 2


def _one_vote_is_enough(self: Tally) -> bool:
    return any(uid in self.voter_config.voters for uid in self)


def _propose_again(state: CoordinatorState) -> None:
    if proposed := state.voter_configs.next_voters(state.roster.members):
        config_change._propose(state, proposed)


@contextmanager
def _changes_are_superseded() -> Iterator[None]:
    """A coordinator replaces its pending configuration, and does not repeat the one that elected it."""
    propose = voter_config.VoterConfigs.propose

    def next_voters(self: voter_config.VoterConfigs, voters: Any) -> frozenset[str]:
        wanted = frozenset(voters)
        return wanted if wanted != self.newest.voters else frozenset()

    def superseding(self: voter_config.VoterConfigs, voters: Any) -> voter_config.VoterConfig:
        self.pending = None
        return propose(self, voters)

    with (
        mock.patch.object(voter_config.VoterConfigs, "next_voters", next_voters),
        mock.patch.object(voter_config.VoterConfigs, "propose", superseding),
        mock.patch.object(config_change, "_resend_pending", lambda state, pending: _propose_again(state)),
    ):
        yield


def _change_at_once(self: voter_config.VoterConfigs, voters: Any) -> frozenset[str]:
    """A new coordinator proposes a change without repeating its configuration first."""
    wanted = frozenset(voters)
    return frozenset() if self.pending is not None or wanted == self.committed.voters else wanted


def _always(self: Any) -> bool:
    return True


_place_again = copies._place_again


def _place_again_in_secret(state: CoordinatorState) -> set[str]:
    _place_again(state)
    return set()


def _never(*_: object) -> bool:
    return False


@contextmanager
def _each_snapshot_is_common() -> Iterator[None]:
    """A snapshot that one pod has is taken for that of all."""

    def common(state: CoordinatorState) -> list[SavedStep]:
        return [x.saved for x in state.restores.found.values() if x.own]

    with (
        mock.patch.object(restoring, "_common", common),
        mock.patch.object(restoring, "_lacking", return_value={}),
    ):
        yield


on_copy_fetched = restoring.on_copy_fetched


def _as_if_fetched(state: CoordinatorState, member: Record, message: m.CopyFetched) -> None:
    on_copy_fetched(state, member, replace(message, error=""))


def _replace_nameless(state: CoordinatorState, previous: PreviousRound, now: float) -> None:
    """As if no standby coordinator got the rank holders."""
    state.previous = replace(state.previous, leader_snapshot=None, appointment=None)
    replace_missing(state, previous, now)


replace_missing = rebuilding._replace_missing


@contextmanager
def _hard_states_are_forgotten() -> Iterator[None]:
    """A restarted sidecar has no hard state."""
    do = SimulatedSidecar._do

    def forgetful(self: SimulatedSidecar, effect: CoreEffect) -> None:
        if not isinstance(effect, events.RecordHardState):
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


def _lose_and_forget(
    state: CoordinatorState, member: Record, fault: Fault, reason: str, now: float, **_: object
) -> None:
    """The rank of a lost member is not vacant."""
    state.roster.disconnect(member)
    state.on_members_changed(now)


def _resume_without_missed_assignment(
    state: CoordinatorState, member: Record, link: int, join: m.Join, now: float
) -> None:
    state.roster.reconnect(member, link)
    member.join, member.last_heard = join, now
    joining.send_welcome(state, member)


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
    """Every round assigns all ranks again, in order of arrival, without a message to members that keep theirs."""
    form = rounds._assign

    def shuffle(state: CoordinatorState) -> None:
        form(state)
        active = state.roster.active_members()
        if len(active) > 1 and state.round.token.round > 0:
            first, second = active[0], active[1]
            assert second.assign is not None
            wrong = replace(second.assign, group_rank=0, rank_offset=0)
            state.send(second, replace(wrong, token=wrong.token.next_round()))
            assert first.assign is not None

    with mock.patch.object(rounds, "_assign", shuffle):
        yield


def _adopt_without_looking(state: CoordinatorState, now: float) -> None:
    state.round.adopt(now)


def _climb_without_a_budget(case: ladder.FaultCase, limits: ladder.BudgetLimits) -> ladder.LadderDecision:
    return ladder.choose_step(replace(case, charged_restarts=0), limits)


def _climb_whatever_the_rank_did(case: ladder.FaultCase, limits: ladder.BudgetLimits) -> ladder.LadderDecision:
    return ladder.choose_step(replace(case, rank_had_another_pod=False, budget_spent_on_pod=False), limits)


decide_in_time = escalation.on_time


def _give_up_without_asking(state: CoordinatorState, now: float) -> None:
    """The coordinator takes the first reported failure for the first one."""
    state.pending.end_wait_for_answers()
    decide_in_time(state, now)


@contextmanager
def _a_minority_counts() -> Iterator[None]:
    """As if every coordinator had a majority."""
    count = escalation.count_fault

    def counting(*args: Any, **given: Any) -> None:
        with mock.patch.object(CoordinatorState, "has_majority", _always):
            count(*args, **given)

    with mock.patch.object(escalation, "count_fault", counting):
        yield


@contextmanager
def _each_leave_costs_a_restart() -> Iterator[None]:
    """As if the workers that end with a deleted pod had failed."""
    gone = leaving.on_gone

    def charging(state: CoordinatorState, member: Record, message: m.Gone, now: float) -> None:
        state.fault_history.add(CountedFault(now, member.uid, member.group_rank))
        gone(state, member, message, now)

    with mock.patch.object(leaving, "on_gone", charging):
        yield


def _any_failure_is_final(state: CoordinatorState, report: ReplicasReport) -> bool:
    return report.replicas.failure is not None


@contextmanager
def _drain_nobody() -> Iterator[None]:
    """The coordinator never waits for leaving members, and never loses them. Swaps drain as usual."""
    drain = leaving.drain

    def forgetting(state: CoordinatorState, grace_s: float, now: float) -> None:
        if state.swaps.begun:
            drain(state, grace_s, now)
        else:
            state.roster.leaving.clear()

    with mock.patch.object(leaving, "drain", forgetting):
        yield


def _only_of_the_running_round(self: Coordinator, member: Record, message: Any, now: float) -> None:
    if self.state.is_current(member, message.token):
        on_phase(self, member, message, now)


on_phase = Coordinator._on_phase


def _any_pause(self: RecoveryLog, round_number: int, at: float, pause_s: float | None = None) -> list[Recovery]:
    """The time since the fault was detected, as if a pod had measured it."""
    done = stepped(self, round_number, at)
    self._done = deque(
        [replace(x, pause_s=(x.resumed_at or at) - x.detected_at) for x in self._done], maxlen=MAX_RECOVERIES
    )
    return done


stepped = RecoveryLog.on_step

MUTATIONS = (
    Mutation(
        "a pause is computed by the coordinator", (Rule.PAUSES_ARE_TRUE,), _patch(RecoveryLog, "on_step", _any_pause)
    ),
    Mutation(
        "a member votes for every candidate",
        (Rule.A_MAJORITY_ELECTS, Rule.ONE_COORDINATOR_MAY_BE_FOLLOWED),
        _patch(Voter, "grant_vote", _grant_anything),
        3000,
    ),
    Mutation(
        "half of the voters elect",
        (Rule.ONE_COORDINATOR_MAY_BE_FOLLOWED, Rule.VOTER_CONFIGS_ARE_INHERITED),
        _patch(voter_config, "majority", _half_is_enough),
        3000,
    ),
    Mutation(
        "one vote elects",
        (Rule.ONE_COORDINATOR_MAY_BE_FOLLOWED, Rule.VOTER_CONFIGS_ARE_INHERITED),
        _patch(Tally, "has_majority", _one_vote_is_enough),
        1000,
    ),
    Mutation("a restarted sidecar has no hard state", (Rule.A_MAJORITY_ELECTS,), _hard_states_are_forgotten, 1000),
    Mutation(
        "rounds are formed without a majority",
        (Rule.A_ROUND_NEEDS_A_MAJORITY,),
        _patch(CoordinatorState, "has_majority", _always),
        3000,
    ),
    Mutation(
        "the first member to finish ends the job", (Rule.A_SUCCESS_MADE_ALL_STEPS,), _the_first_to_finish_ends_the_job
    ),
    Mutation("a failed job exits 0", (Rule.ONLY_A_SUCCESS_EXITS_0,), _exit_0_on_failure),
    Mutation(
        "a lost member keeps its rank",
        (Rule.A_FAULT_IS_FOLLOWED_BY_A_STEP,),
        _patch(faults, "lose_member", _lose_and_forget),
    ),
    Mutation(
        "a member that rejoins does not get its assignment",
        (Rule.A_FAULT_IS_FOLLOWED_BY_A_STEP,),
        _patch(joining, "_resume", _resume_without_missed_assignment),
        1000,
    ),
    Mutation(
        "a deadline of silence is ignored", (Rule.NO_BUSY_LOOP,), _patch(SilenceWatch, "find_lost", _nobody_is_silent)
    ),
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
        _patch(rebuilding, "rebuild", _adopt_without_looking),
    ),
    Mutation(
        "a member that leaves is ignored",
        (Rule.NO_INNOCENT_POD_IS_EVICTED, Rule.NO_INNOCENT_WORKER_IS_BLAMED, Rule.ONLY_FAILURES_ARE_CHARGED),
        _drain_nobody,
        3000,
        ("pod deleted",),
    ),
    Mutation(
        "reports of hung workers are ignored",
        (Rule.A_FAULT_IS_FOLLOWED_BY_A_STEP,),
        _patch(hangs, "on_hung", lambda state, member, hung, now: None),
        3000,
        ("worker hangs",),
    ),
    Mutation(
        "a missing first step is ignored",
        (Rule.A_FAULT_IS_FOLLOWED_BY_A_STEP,),
        _patch(HangDetection, "expect_step", _nothing),
    ),
    Mutation(
        "the budget of restarts has no end",
        (Rule.THE_BUDGET_IS_KEPT,),
        _patch(escalation, "choose_step", _climb_without_a_budget),
    ),
    Mutation(
        "a rank may cost any number of pods",
        (Rule.A_RANK_COSTS_ONE_POD, Rule.ONE_POD_BEYOND_THE_BUDGET),
        _patch(escalation, "choose_step", _climb_whatever_the_rank_did),
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
        "no failed update may be retried",
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
        _patch(member_launcher, "on_unkillable", _nothing),
        3000,
        ("worker unkillable",),
    ),
    Mutation(
        "a hard state that cannot be stored is ignored",
        (Rule.A_MAJORITY_ELECTS,),
        _patch(Core, "_on_store_failed", _nothing),
        3000,
        ("state volume full",),
    ),
    Mutation(
        "a start has no time limit",
        (Rule.A_FAULT_IS_FOLLOWED_BY_A_STEP,),
        _patch(rounds, "lose_late_starters", _nothing),
        3000,
        ("start never comes",),
    ),
    Mutation(
        "lost pods have no names in a new term",
        (Rule.A_LOST_POD_HAS_A_NAME,),
        _patch(rebuilding, "_replace_missing", _replace_nameless),
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
        "each pod's newest snapshot is taken for that of all",
        (Rule.A_ROUND_RESTORES_ONE_SNAPSHOT,),
        _each_snapshot_is_common,
    ),
    Mutation(
        "no pod fetches a copy",
        (Rule.A_ROUND_RESTORES_ONE_SNAPSHOT,),
        _patch(restoring, "_lacking", lambda state, saved: {}),
    ),
    Mutation(
        "copies do not count",
        (Rule.THE_NEWEST_SNAPSHOT_IS_RESTORED,),
        _patch(restoring, "_add_copies", _nothing),
    ),
    Mutation(
        "new plans for copies are not sent while a round runs",
        (Rule.EACH_HOLDER_HAS_ITS_PLAN,),
        _patch(copies, "_place_again", _place_again_in_secret),
    ),
    Mutation(
        "a copy that could not be fetched counts",
        (Rule.A_ROUND_RESTORES_ONE_SNAPSHOT,),
        _patch(restoring, "on_copy_fetched", _as_if_fetched),
        2000,
    ),
    Mutation(
        "the oldest common snapshot is restored",
        (Rule.THE_NEWEST_SNAPSHOT_IS_RESTORED,),
        _patch(restoring, "_newest", lambda found: min(found, default=None)),
    ),
    Mutation(
        "a part of the job's time is forgotten",
        (Rule.PARTS_ARE_THE_WALL_TIME,),
        _patch(goodput._Account, "enter", _enter_and_forget),
    ),
    Mutation(
        "pauses count as productive",
        (Rule.PRODUCTIVE_TIME_HAS_STEPS,),
        _patch(goodput, "_add_pause", _nothing),
    ),
    Mutation(
        "steps that are counted are compared with those before the round",
        (Rule.COUNTED_STEPS_ARE_NOT_COMPARED,),
        _patch(round_progress, "StepProgress", _is_never_counted),
    ),
    Mutation(
        "a coordinator never steps down",
        (Rule.A_FAULT_IS_FOLLOWED_BY_A_STEP,),
        _patch(quorum, "step_down_if_not_followed", _nothing),
        3000,
    ),
)

SCHEDULED = (
    ScheduledMutation(
        "a pod is evicted before the other pods have answered",
        _patch(escalation, "on_time", _give_up_without_asking),
        test_scenarios.test_no_pod_is_replaced_before_the_other_pods_have_answered,
    ),
    ScheduledMutation(
        "a pod that lost its ranks keeps its snapshots",
        _patch(member_workers, "_restorable", lambda me, saved: saved),
        test_snapshots.test_pods_that_were_cut_off_and_come_back_do_not_bring_a_state_that_the_training_has_left,
    ),
    ScheduledMutation(
        "only the restored snapshot counts, and no older one of its round",
        _patch(SavedStep, "leads_to", lambda self, restored: self == restored),
        test_snapshots.test_a_damaged_snapshot_of_a_step_without_copies_costs_a_few_steps,
    ),
    ScheduledMutation(
        "repeated steps count as new ones",
        _patch(goodput, "_repeats_after", lambda account, facts, pause: False),
        partial(test_scenarios.test_steps_that_are_made_again_do_not_count_as_new_ones, Numbers.SCRIPT),
    ),
    ScheduledMutation(
        "counted steps are known to be new",
        _patch(goodput, "_is_behind", _is_behind_by_any_number),
        partial(test_scenarios.test_steps_that_are_made_again_do_not_count_as_new_ones, Numbers.ROUND),
    ),
    ScheduledMutation(
        "a drain ends without a flush",
        _patch(member_copies, "flush", _never),
        partial(test_snapshots.test_a_pod_that_leaves_hands_over_its_newest_snapshot, "SIGTERM"),
    ),
    ScheduledMutation(
        "each pod copies the saves that its link permits",
        _patch(copies, "valid_stride", lambda stride: 1),
        partial(test_snapshots.test_pods_with_slow_and_with_fast_links_have_copies_of_the_same_steps, True),
    ),
    ScheduledMutation(
        "a new coordinator does not wait for a flush",
        _patch(member_link, "_workers_state", lambda me: me.workers.state),
        partial(
            test_snapshots.test_the_next_coordinator_waits_until_a_pod_that_leaves_has_handed_over_its_newest_snapshot,
            "drain",
            2,
        ),
    ),
    ScheduledMutation(
        "a pending change is superseded",
        _changes_are_superseded,
        test_schedules.test_a_pending_change_that_all_pods_stored_allows_one_coordinator,
    ),
    ScheduledMutation(
        "a new coordinator changes its voters at once",
        _patch(voter_config.VoterConfigs, "next_voters", _change_at_once),
        test_schedules.test_a_pending_change_that_some_pods_did_not_store_allows_one_coordinator,
    ),
    ScheduledMutation(
        "rounds follow without a limit",
        _patch(Backoff, "is_waiting", _never),
        test_schedules.test_a_worker_that_fails_after_each_first_step_does_not_cost_a_round_a_second,
    ),
    ScheduledMutation(
        "losses at the start of rounds have no backoff",
        _patch(backoff, "FREE_LOSSES", 1000),
        test_schedules.test_a_pod_that_is_lost_at_the_start_of_each_round_costs_a_few_rounds_only,
    ),
    ScheduledMutation(
        "an acknowledgement counts only while its round runs",
        _patch(Coordinator, "_on_phase", _only_of_the_running_round),
        test_schedules.test_a_pod_that_is_lost_at_the_start_of_each_round_costs_a_few_rounds_only,
    ),
    ScheduledMutation(
        "a member that was lost comes back without backoff",
        _patch(Losses, "was_lost_recently", _never),
        test_schedules.test_a_pod_that_was_lost_is_not_preferred_to_a_spare_although_it_was_created_for_the_rank,
    ),
    ScheduledMutation(
        "the failure that is reported first is blamed",
        _patch(FirstFailure, "add", _never),
        test_schedules.test_the_worker_that_failed_first_is_blamed_although_another_one_is_reported_before,
    ),
    ScheduledMutation(
        "an exception counts only at the end of its process",
        _patch(PendingDecisions, "on_raised", _nothing),
        partial(test_schedules.test_a_worker_whose_process_ends_long_after_its_exception_is_the_cause, True),
    ),
    ScheduledMutation(
        "no exception is read when a round replaces workers",
        _patch(escalation, "_revise_decided", _nothing),
        partial(test_schedules.test_a_worker_whose_process_ends_long_after_its_exception_is_the_cause, False),
    ),
)
