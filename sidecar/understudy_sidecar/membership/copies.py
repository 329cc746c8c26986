"""Which members keep the copies of this round's snapshots: the plan of each member.

Rules: copy_placement.py decides. A member with ranks gets its plan with its Assign, and a waiting one, which may keep
copies too, with PlanCopies. While the round runs, the copies are placed again at once if a member is lost, and within
JOINS_S if others join: the members that this concerns get PlanCopies. A new coordinator learns the placement from the
Joins, so copies stay where they are. While the members stay the same, so do their plans. A round of the previous
coordinator that continues keeps its plans for HOLDERS_JOIN_S: a holder without ranks may join later than the members
with ranks. All plans have the same stride, the largest one that a member with ranks needs (copy_stride.py). While a
round runs, it grows at once, and falls at most once in LOWER_S.
"""

from collections.abc import Iterable, Sequence

from understudy_protocol import membership as m
from understudy_protocol.snapshots import CopyHolder, CopyOwner, CopyPlan
from understudy_sidecar.membership.coordinator_state import CoordinatorState
from understudy_sidecar.membership.copy_placement import Site, place_copies
from understudy_sidecar.membership.copy_stride import valid_stride
from understudy_sidecar.membership.roster import MemberRecord
from understudy_sidecar.membership.round_state import RoundPhase

HOLDERS_JOIN_S = 5.0
#: Several pods join soon after each other, and a placement of thousands of copies takes a tenth of a second.
JOINS_S = 1.0
LOWER_S = 60.0
#: A pod reports the owners in its plan, and the owners whose copies it has. Each of these two lists has at most as many
#: owners as the job wants copies.
MOST_OWNERS = 2


def plan_round(state: CoordinatorState, active: Sequence[MemberRecord]) -> dict[str, CopyPlan]:
    """The plans of a round that is being formed, by uid; empty if the job wants no copies."""
    if not state.shape.snapshot_copies:
        return {}
    _choose_stride(state, active)
    _send(state, [member.uid for member in _place(state, active)])
    return state.copies.plans


def adopt(state: CoordinatorState) -> None:
    """The round of the previous coordinator continues. Its workers wait for the choice, the choice waits for the
    reports of all members, and a member without a plan sends no report.
    """
    if state.shape.snapshot_copies:
        wait_s = 0.0 if state.restores.choice is None else HOLDERS_JOIN_S
        state.copies.holders, state.copies.place_at = {}, state.now + wait_s
        on_time(state)


def on_time(state: CoordinatorState) -> None:
    """Place the copies again after members were lost or have joined while the round runs."""
    copies = state.copies
    if not state.shape.snapshot_copies or state.round.phase is not RoundPhase.RUNNING:
        return
    if copies.holders and copies.checked != _membership(state):
        is_lost = copies.checked[0] != state.roster.removals
        at = state.now + (0.0 if is_lost else JOINS_S)
        copies.place_at = at if copies.place_at is None else min(at, copies.place_at)
    if copies.place_at is not None and state.now >= copies.place_at:
        _place_in_round(state)
    elif copies.lower_at is not None and state.now >= copies.lower_at:
        _change_stride(state)


def deadline(state: CoordinatorState) -> float | None:
    times = (state.copies.place_at, state.copies.lower_at)
    return min((x for x in times if x is not None), default=None) if state.round.phase is RoundPhase.RUNNING else None


def on_stride(state: CoordinatorState, member: MemberRecord, message: m.CopyStride) -> None:
    member.copy_stride = valid_stride(message.stride)
    copies = state.copies
    if member.group_rank is None or state.round.phase is not RoundPhase.RUNNING or not copies.holders:
        return  # the next plan has it
    if member.copy_stride > copies.stride:
        _change_stride(state)
    elif copies.lower_at is None and member.copy_stride < copies.stride:
        copies.lower_at = state.now + LOWER_S


def on_rejoined(state: CoordinatorState, member: MemberRecord) -> None:
    """It may have missed a change."""
    if state.shape.snapshot_copies and state.round.phase is RoundPhase.RUNNING and state.copies.holders:
        _send(state, [member.uid])


def holders_without_ranks(state: CoordinatorState) -> list[MemberRecord]:
    """The waiting members, which may keep copies."""
    return state.roster.waiting_members() if state.shape.snapshot_copies else []


def _choose_stride(state: CoordinatorState, active: Iterable[MemberRecord]) -> None:
    state.copies.stride = max((member.copy_stride for member in active), default=1)
    state.copies.lower_at = None


def _change_stride(state: CoordinatorState) -> None:
    active, before = state.roster.active_members(), state.copies.stride
    _choose_stride(state, active)
    if state.copies.stride != before:
        _send(state, _place_again(state) | {member.uid for member in active})


def _place_in_round(state: CoordinatorState) -> None:
    copies, unknown = state.copies, set[str]()
    if not copies.holders:
        copies.holders, active = _holders_of_joins(state), state.roster.active_members()
        _choose_stride(state, active)
        unknown = {member.uid for member in active if member.kept is None or copies.stride > 1}
    _send(state, _place_again(state) | unknown)


def _membership(state: CoordinatorState) -> tuple[int, int]:
    """It differs after each loss and each Join of another member."""
    return state.roster.removals, len(state.roster.members)


def _place_again(state: CoordinatorState) -> set[str]:
    """While a round runs. Return the uids of the members whose plans have changed. None if a rank has no member: its
    workers had ended before the member was lost, so its round ends soon.
    """
    before, active = state.copies.holders, state.roster.active_members()
    if len(active) < state.round.size:
        state.copies.checked, state.copies.place_at = _membership(state), None
        return set()
    _place(state, active)
    changed: set[str] = set()
    for rank, uids in state.copies.holders.items():
        differing = {*uids} ^ {*before.get(rank, ())}
        changed |= {active[rank].uid, *differing} if differing else set()
    return changed & state.copies.plans.keys()


def _place(state: CoordinatorState, active: Sequence[MemberRecord]) -> list[MemberRecord]:
    """Renew all plans, if the members have changed. Return those without ranks."""
    copies, roster, waiting = state.copies, state.roster, holders_without_ranks(state)
    members = [*active, *waiting]
    domains = [state.nodes.domain(member.node) for member in members]
    facts = ([member.join for member in members], domains, len(active), {*roster.leaving}, copies.stride)
    copies.checked, copies.place_at = _membership(state), None
    if facts != copies.facts:
        sites = [_site(state, member) for member in members]
        previous = copies.holders or _holders_of_joins(state)
        placed = place_copies(
            sites[: len(active)],
            [site for site in sites if site.uid not in roster.leaving],
            [previous.get(rank, ()) for rank in range(len(active))],
            state.shape.snapshot_copies,
        )
        copies.facts, copies.holders = facts, dict(enumerate(placed))
        copies.plans = _plans(members, placed, len(active) * state.shape.nproc_per_node, copies.stride)
    return waiting


def _plans(
    members: Sequence[MemberRecord], placed: Sequence[tuple[str, ...]], world_size: int, stride: int
) -> dict[str, CopyPlan]:
    """placed: the uids of the holders of each group rank. The members with ranks come first, by rank."""
    owners: dict[str, tuple[CopyOwner, ...]] = {}
    for rank, uids in enumerate(placed):
        for uid in uids:
            owners[uid] = (*owners.get(uid, ()), CopyOwner(rank, members[rank].uid))
    sites = {member.uid: CopyHolder(member.uid, member.join.ip) for member in members}
    return {
        member.uid: CopyPlan(
            world_size,
            tuple(sites[uid] for uid in placed[number]) if number < len(placed) else (),
            owners.get(member.uid, ()),
            stride,
        )
        for number, member in enumerate(members)
    }


def _send(state: CoordinatorState, uids: Iterable[str]) -> None:
    for uid in sorted(uids):
        if uid in state.copies.plans:
            state.send(state.roster.members[uid], m.PlanCopies(state.round.token, state.copies.plans[uid]))


def _holders_of_joins(state: CoordinatorState) -> dict[int, tuple[str, ...]]:
    """The holders in the plans of the previous coordinator, by group rank of the owner."""
    found: dict[int, tuple[str, ...]] = {}
    for member in state.roster.members.values():
        for kept in (member.kept or ())[: MOST_OWNERS * state.shape.snapshot_copies]:
            found[kept.group_rank] = (*found.get(kept.group_rank, ()), member.uid)
    return found


def _site(state: CoordinatorState, member: MemberRecord) -> Site:
    return Site(member.uid, member.node, state.domain_of(member), member.group_rank is not None)
