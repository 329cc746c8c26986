"""Forms rounds: which members must be connected, which take the vacant ranks, and one assignment to each.

Rules: a round has all declared ranks. An elastic job that finds no spare within its spare timeout continues with the
members that it has (at least its minimum), and has all ranks again at the next round for which there are members. No
round is formed while a rank holder is disconnected or leaving, without a majority of the voters (the first round:
without an operator), during the backoff after failed starts (backoff.py), or before a pending step of the ladder is
decided (escalation.py).
"""

import math
from dataclasses import dataclass

from understudy_protocol import membership as m
from understudy_protocol.addresses import split_port
from understudy_protocol.enums import NO_ROUND, RoundToken, Strategy, WorkersState
from understudy_sidecar.membership import config_change, copies, joining, leaving, restoring
from understudy_sidecar.membership.coordinator_state import CoordinatorState
from understudy_sidecar.membership.placement import Placement, RankCandidate, place
from understudy_sidecar.membership.roster import MemberRecord
from understudy_sidecar.membership.round_state import RoundPhase

#: How long the first round waits for the pods that were created for its ranks before spares may take them.
FIRST_ROUND_PATIENCE_S = 30.0
MAX_NAMED_PODS = 5
#: A pod whose workers have not started after this time is lost. Longer than a launcher takes to load its zygote.
START_LIMIT_S = 240.0
#: If all pods start late (their file system did not respond), the others may start this much later than the first one.
LATER_START_S = 60.0


@dataclass(frozen=True)
class Missing:
    """Why no round can be formed now."""

    ranks: tuple[int, ...]
    absent_pods: tuple[str, ...]  # names of actives that are disconnected or leaving
    has_majority: bool


def try_form(state: CoordinatorState, now: float) -> bool:
    """WAITING: form the next round if every rank can be filled."""
    if not _has_enough_members(state) or leaving.waits_for_saves(state, now) or state.backoff.is_waiting(now):
        return False
    if state.pending.step is not None or now < state.round.gathers_until:
        return False
    missing, placement = _find_members(state, now)
    if missing.absent_pods or not missing.has_majority:
        return False
    if missing.ranks and not _may_shrink(state, len(missing.ranks), now):
        return False
    _form_round(state, placement, now)
    return True


def check_times(state: CoordinatorState) -> list[float]:
    """When a round may be formed without another event."""
    times = [state.since + FIRST_ROUND_PATIENCE_S] if state.round.is_first else []
    times += [at for at in (shrinks_at(state),) if at is not None]
    times += [state.round.gathers_until, state.backoff.ends_at, *state.nodes.expiries()]
    return times + ([state.draining.until] if state.draining is not None else [])


def wait_reason(state: CoordinatorState) -> str:
    """The reason why the next round waits, for users; empty while a round runs."""
    if state.round.phase is RoundPhase.REBUILDING:
        return "the members of the previous coordinator's round"
    if state.round.phase is RoundPhase.RUNNING:
        return _start_wait_reason(state)
    if state.round.phase is not RoundPhase.WAITING:
        return ""
    missing, _ = _find_members(state, state.now)
    parts = []
    if missing.ranks:
        shown = ", ".join(map(str, missing.ranks[:MAX_NAMED_PODS])) + (
            ", …" if len(missing.ranks) > MAX_NAMED_PODS else ""
        )
        parts.append(f"{len(missing.ranks)} of {state.shape.actives} pods (group ranks {shown})")
    if missing.absent_pods:
        parts.append("the end or return of " + ", ".join(missing.absent_pods[:MAX_NAMED_PODS]))
    if leaving.waits_for_saves(state, state.now):
        parts.append("members that are saving")
    if not missing.has_majority:
        parts.append("a majority of the voters")
    if state.backoff.is_waiting(state.now):
        parts.append(state.backoff.reason)
    if (step := state.pending.step) is not None:
        parts.append(f"answers of {len(step.unanswered)} members before {step.action}")
    return " and ".join(parts)


def _start_wait_reason(state: CoordinatorState) -> str:
    if not state.roster.starting or state.round.start_due is not None:
        return ""
    late = [x.name for x in state.roster.active_members() if x.uid in state.roster.starting]
    shown = ", ".join(late[:MAX_NAMED_PODS]) + (", …" if len(late) > MAX_NAMED_PODS else "")
    return f"the start of the workers of {shown}"


def lose_late_starters(state: CoordinatorState, now: float) -> None:
    """Replace pods whose workers start late, unless no pod of several has started: then new pods would not help."""
    if now < start_expires(state) or not state.has_majority():
        return
    late = [x for x in state.roster.active_members() if x.uid in state.roster.starting]
    alone = len(state.roster.holders) == 1
    if len(late) == len(state.roster.holders) and not alone:
        return
    leaving.replace_pods(state, late, f"its workers have not started within {START_LIMIT_S:g} s", now)


def start_expires(state: CoordinatorState) -> float:
    """When members whose workers have not started are lost. With a startTimeout, hangs.py decides about them."""
    waits = state.round.phase is RoundPhase.RUNNING and state.roster.starting and not state.shape.start_timeout_s
    if not waits:
        return math.inf
    first_at = state.round.first_started_at
    limit = state.round.formed_at + START_LIMIT_S
    return limit if first_at is None else max(limit, first_at + LATER_START_S)


def shrinks_at(state: CoordinatorState) -> float | None:
    """When an elastic job stops waiting for spares."""
    if state.round.phase is not RoundPhase.WAITING or not state.shape.min_actives:
        return None
    since = state.since + FIRST_ROUND_PATIENCE_S if state.round.is_first else state.round.vacant_since
    return None if since is None else since + state.shape.spare_timeout_s


def _has_enough_members(state: CoordinatorState) -> bool:
    """A cheap first check: members join by the thousand."""
    return len(state.roster.connected) >= (state.shape.min_actives or state.shape.actives)


def _find_members(state: CoordinatorState, now: float) -> tuple[Missing, Placement]:
    roster = state.roster
    if len(roster.holders) < state.shape.actives:
        roster.resize(state.shape.actives)  # a job that has shrunk may grow again
    allowed = not state.round.is_first or now >= state.since + FIRST_ROUND_PATIENCE_S
    waiting = [_rank_candidate(state, member) for member in roster.waiting_members()]
    placement = place(roster.vacant_ranks(), waiting, spares_allowed=allowed, domains=roster.domains)
    absent = tuple(x.name for x in roster.active_members() if x.link is None or x.uid in roster.leaving)
    return Missing(placement.missing, absent, state.has_majority()), placement


def _rank_candidate(state: CoordinatorState, member: MemberRecord) -> RankCandidate:
    is_fit, node_stays = not state.hardware_finding(member.node), not state.reason_to_leave(member)
    was_lost_recently = state.losses.was_lost_recently(member.uid, state.now)
    return RankCandidate(member.uid, member.join.index, state.domain_of(member), is_fit, node_stays, was_lost_recently)


def _may_shrink(state: CoordinatorState, missing: int, now: float) -> bool:
    size = state.shape.actives - missing
    if not state.shape.min_actives or size < state.shape.min_actives:
        return False
    due = shrinks_at(state)
    return size == state.round.size or (due is not None and now >= due)


def _form_round(state: CoordinatorState, placement: Placement, now: float) -> None:
    roster = state.roster
    strategy, restarted_in_place = (
        _strategy(state, placement.taken),
        {member.name for member in roster.active_members()},
    )
    reason, vacant_until = _recovery_reason(state, strategy, placement), _vacant_until(state, placement, now)
    for rank, uid in placement.taken.items():
        member = roster.members[uid]
        roster.assign_rank(member, rank, state.domain_of(member))
    if placement.missing:
        roster.compact(state.shape.actives - len(placement.missing))
    size = len(roster.holders)
    state.round.form(RoundToken(state.term.epoch, state.term.number, state.round.number + 1), size, now)
    state.expect_step(now)
    state.recovery_log.on_round(
        state.round.token.round, strategy, reason, restarted_in_place, vacant_until, state.round.stepped.round
    )
    state.backoff.on_round(now)
    state.steps.new_round()
    state.silence.new_round(size, now)
    leaving.on_round(state)
    _assign(state)
    for member in roster.members.values():
        joining.stand_by(state, member)
    config_change.report_round(state, now)
    state.on_members_changed(now)
    suffix = f" ({strategy.value})" if state.recovery_log.open else ""
    state.log(f"round {state.round.token}{suffix}: {size} members, world size {size * state.shape.nproc_per_node}")


def _strategy(state: CoordinatorState, taken: dict[int, str]) -> Strategy:
    """A job that shrinks restarts in place: its lost pods are not replaced."""
    if not taken:
        return Strategy.IN_PLACE
    return (
        Strategy.SPARE_SWAP if all(member.join.warm for member in _joined_late(state, taken)) else Strategy.POD_RECREATE
    )


def _joined_late(state: CoordinatorState, taken: dict[int, str]) -> list[MemberRecord]:
    """The new rank holders that were not connected when their ranks became vacant."""
    joined, since = (state.roster.members[uid] for uid in taken.values()), state.round.vacant_since
    return [x for x in joined if x.uid in state.round.newcomers or (since is not None and x.joined_at > since)]


def _recovery_reason(state: CoordinatorState, strategy: Strategy, placement: Placement) -> str:
    """An addition to a recovery's reason when its round is formed."""
    if strategy is Strategy.POD_RECREATE:
        return "no spare was available"
    if _joined_late(state, placement.taken):
        return "a warm spare was claimed from the pool"
    if placement.missing and state.recovery_log.open:
        return f"no pod was available for its ranks within {state.shape.spare_timeout_s:g} s"
    return ""


def _vacant_until(state: CoordinatorState, placement: Placement, now: float) -> float | None:
    """When the last pod that takes a vacant rank joined, or the job stopped waiting for one; None: all were there."""
    if placement.missing:
        return now
    return max((x.joined_at for x in _joined_late(state, placement.taken)), default=None)


def _assign(state: CoordinatorState) -> None:
    nproc = state.shape.nproc_per_node
    active = state.roster.active_members()
    master, world = active[0], len(active) * nproc
    # A member that does not know of such a store would serve its own, with other keys.
    store = master.store_port if all(x.store_port is not None for x in active) else None
    master_ip, _ = split_port(master.join.ip)
    port, agent_store = (store, True) if store else (master.master_port, False)
    master.store_port = 0 if agent_store else master.store_port  # a store is used for one round
    reason = state.recovery_log.open[-1].cause.message if state.recovery_log.open else "first round"
    plans = copies.plan_round(state, active)
    for rank, member in enumerate(active):
        member.workers = WorkersState.STARTING
        place = (rank, len(active), rank * nproc, world, master_ip, port, reason, agent_store)
        member.assign = m.Assign(state.round.token, *place, plans.get(member.uid))
        state.send(member, member.assign)
    state.roster.begin_round(active)
    is_known = state.round.stepped != NO_ROUND and state.knows_newest_round()
    state.roster.set_measuring(x.uid for x in active if is_known and x.stepped == state.round.stepped)
    restoring.begin(state, active)
