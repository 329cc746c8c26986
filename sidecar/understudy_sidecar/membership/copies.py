"""Which members keep the copies of this round's snapshots: the plan of each member.

Rules: copy_placement.py decides. A member with ranks gets its plan with its Assign, and a waiting one, which may keep
copies too, with PlanCopies. A holder that is lost while the round runs is replaced at once: the members that this
concerns get PlanCopies. A new coordinator learns the placement from the Joins, so copies stay where they are.
"""

from collections.abc import Iterable, Sequence

from understudy_protocol import membership as m
from understudy_protocol.snapshots import CopyHolder, CopyOwner, CopyPlan
from understudy_sidecar.membership.coordinator_state import CoordinatorState
from understudy_sidecar.membership.copy_placement import Site, place_copies
from understudy_sidecar.membership.roster import MemberRecord
from understudy_sidecar.membership.round_state import Phase


def plan_round(state: CoordinatorState, active: Sequence[MemberRecord]) -> dict[str, CopyPlan]:
    """The plans of a round that is being formed, by uid; empty if the job wants no copies."""
    if not state.shape.snapshot_copies:
        return {}
    members = _place(state, active)
    plans = _plans(state, members)
    _send(state, plans, members[len(active) :])
    return plans


def adopt(state: CoordinatorState) -> None:
    """The round of the previous coordinator continues."""
    if state.shape.snapshot_copies:
        state.copies.holders = _holders_of_joins(state)
        _replace_missing(state)
        unknown = [member for member in state.roster.active_members() if member.kept is None]
        _send(state, _plans(state, unknown), unknown)


def on_time(state: CoordinatorState) -> None:
    """Replace holders that were lost while the round runs."""
    if state.shape.snapshot_copies and state.round.phase is Phase.RUNNING and _has_changed(state):
        _replace_missing(state)


def on_rejoined(state: CoordinatorState, member: MemberRecord) -> None:
    """It may have missed a change."""
    if state.shape.snapshot_copies and state.round.phase is Phase.RUNNING and state.copies.holders:
        _send(state, _plans(state, [member]), [member])


def holders_without_ranks(state: CoordinatorState) -> list[MemberRecord]:
    """The waiting members, which may keep copies."""
    return state.roster.waiting_members() if state.shape.snapshot_copies else []


def _has_changed(state: CoordinatorState) -> bool:
    return state.copies.removals != state.roster.removals


def _replace_missing(state: CoordinatorState) -> None:
    roster, wanted = state.roster, state.shape.snapshot_copies
    before, active = state.copies.holders, roster.active_members()
    state.copies.removals = roster.removals
    held = [[uid for uid in before.get(rank, ()) if uid in roster.members] for rank in range(len(active))]
    if all(len(uids) >= min(wanted, len(roster.connected) - 1) for uids in held):
        return
    members = _place(state, active)
    after = state.copies.holders
    changed = {active[rank].uid for rank in after if after[rank] != before.get(rank, ())}
    changed |= {uid for rank in after for uid in {*after[rank]} ^ {*before.get(rank, ())}}
    affected = [member for member in members if member.uid in changed]
    _send(state, _plans(state, affected), affected)


def _place(state: CoordinatorState, active: Sequence[MemberRecord]) -> list[MemberRecord]:
    """Place the copies anew. Return all members that have a plan, those with ranks first."""
    copies, roster = state.copies, state.roster
    previous = copies.holders or _holders_of_joins(state)
    members = [*active, *holders_without_ranks(state)]
    placed = place_copies(
        [_site(state, member) for member in active],
        [_site(state, member) for member in members if member.uid not in roster.leaving],
        [previous.get(rank, ()) for rank in range(len(active))],
        state.shape.snapshot_copies,
    )
    copies.holders, copies.removals = dict(enumerate(placed)), roster.removals
    copies.owners = {}
    for rank, uids in enumerate(placed):
        for uid in uids:
            copies.owners[uid] = (*copies.owners.get(uid, ()), CopyOwner(rank, active[rank].uid))
    return members


def _plans(state: CoordinatorState, members: Iterable[MemberRecord]) -> dict[str, CopyPlan]:
    copies, roster = state.copies, state.roster
    world_size = len(roster.holders) * state.shape.nproc_per_node
    plans = {}
    for member in members:
        uids = () if member.group_rank is None else copies.holders.get(member.group_rank, ())
        holders = tuple(CopyHolder(uid, roster.members[uid].join.ip) for uid in uids if uid in roster.members)
        plans[member.uid] = CopyPlan(world_size, holders, copies.owners.get(member.uid, ()))
    return plans


def _send(state: CoordinatorState, plans: dict[str, CopyPlan], members: Iterable[MemberRecord]) -> None:
    for member in members:
        state.send(member, m.PlanCopies(state.round.token, plans[member.uid]))


def _holders_of_joins(state: CoordinatorState) -> dict[int, tuple[str, ...]]:
    """Of the previous coordinator."""
    found: dict[int, tuple[str, ...]] = {}
    for member in state.roster.members.values():
        for kept in member.kept or ():
            found[kept.group_rank] = (*found.get(kept.group_rank, ()), member.uid)
    return found


def _site(state: CoordinatorState, member: MemberRecord) -> Site:
    return Site(member.uid, member.node, state.domain_of(member), member.group_rank is not None)
