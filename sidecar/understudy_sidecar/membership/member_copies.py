"""The copies of snapshots that this pod sends, keeps for others and fetches.

Rules: a plan counts for its round, and a newer one replaces it. The edge answers a new plan with the copies that the
pod keeps, once none of an older round arrives any more, and no fetch of an older round goes on. Started waits for that
answer, so no copy that it names is overwritten before the round has restored one. If a round was formed without this
member, its copies of older rounds do not count: the training went on without it. And once a round has its choice, only
the chosen snapshot, those that lead to it, and newer ones count, as in the launcher (snapshot_fence.py). A fetched
snapshot counts as the pod's own, also in later rounds, until a later round has its choice. The snapshot that it
overwrites does not count from the moment at which the fetch begins to write. After a drain, and before a leaving pod
ends, its newest snapshots are copied.
"""

from understudy_protocol import membership as m
from understudy_protocol.enums import RoundToken
from understudy_protocol.snapshots import FetchedStep, KeptSteps, SavedStep
from understudy_sidecar.membership import member_workers
from understudy_sidecar.membership.events import (
    CopiesPlanned,
    CopyFetched,
    CopyOverwrites,
    CopyStrideNeeded,
    FetchCopy,
    FlushCopies,
    PlanCopies,
    SnapshotCopied,
)
from understudy_sidecar.membership.member_state import MemberState


def on_assign(me: MemberState, assign: m.Assign) -> None:
    """A newer assignment."""
    copies, saved = me.copies, me.workers.saved
    if saved is not None and saved.choice is not None:
        copies.oldest, copies.restored = me.workers.token, saved.choice.saved
    if copies.missed == assign.token:
        copies.missed = copies.missed_before  # it was disconnected for a moment
    copies.token, copies.plan, copies.kept, copies.fetching = assign.token, assign.copies, None, None
    copies.flushing, copies.overwritten, copies.all_overwritten, copies.fetched = None, frozenset(), False, ()
    if assign.copies is not None:
        me.do(PlanCopies(assign.token, assign.group_rank, assign.copies))


def on_plan(me: MemberState, order: m.PlanCopies) -> None:
    copies = me.copies
    if order.token < copies.token or (
        order.token == copies.token and order.plan == copies.plan and copies.kept is None
    ):
        return
    if order.token > copies.token:
        copies.kept, copies.fetching = None, None
    has_ranks = member_workers.has_ranks(me, order.token)
    copies.token, copies.plan = order.token, order.plan
    me.do(PlanCopies(order.token, me.workers.group_rank if has_ranks else None, order.plan))


def on_welcome(me: MemberState, token: RoundToken) -> None:
    """token: the running or newest round. This member may have no part in it."""
    copies = me.copies
    if token > max(copies.token, me.workers.token, copies.missed):
        copies.missed_before, copies.missed = copies.missed, token
    if copies.stride > 1:
        me.send(m.CopyStride(copies.stride))


def on_event(
    me: MemberState, event: CopiesPlanned | CopyOverwrites | CopyFetched | CopyStrideNeeded | SnapshotCopied
) -> None:
    if isinstance(event, SnapshotCopied):
        me.copies.newest = event
        return
    if isinstance(event, CopyStrideNeeded):
        if event.stride != me.copies.stride:
            me.copies.stride = event.stride
            me.send(m.CopyStride(event.stride))
        return
    if isinstance(event, CopyOverwrites):
        _on_overwritten(me, (event.saved,))
        member_workers.on_copies(me)
        return
    _on_overwritten(me, event.overwritten)
    if event.token != me.copies.token:
        return
    match event:
        case CopiesPlanned():
            _on_planned(me, event)
        case CopyFetched():
            _on_fetched(me, event)


def on_fetch(me: MemberState, order: m.FetchCopy) -> None:
    copies, saved = me.copies, me.workers.saved
    if saved is not None and order.saved in saved.whole:
        me.send(m.CopyFetched(order.token, order.saved, whole=saved.whole))
    elif (copies.fetching is None or order.saved != copies.fetching.saved) and me.workers.group_rank is not None:
        copies.fetching = order
        me.do(FetchCopy(order.token, me.workers.group_rank, order.saved, order.holders))


def flush(me: MemberState) -> bool:
    """The workers have ended. Whether their snapshots may have to be copied first: then CopiesFlushed follows."""
    copies, token = me.copies, me.workers.token
    if copies.plan is None or not copies.plan.holders or copies.token != token:
        return False
    if copies.flushing != token:
        copies.flushing = token
        me.do(FlushCopies(token))
    return True


def on_flushed(me: MemberState, token: RoundToken) -> bool:
    """Whether the flush of this round was awaited: a newer round may have begun meanwhile."""
    is_awaited = me.copies.flushing == token
    if is_awaited:
        me.copies.flushing = None
    return is_awaited


def _on_planned(me: MemberState, event: CopiesPlanned) -> None:
    copies, is_new = me.copies, me.copies.kept is None
    if copies.kept is None:
        copies.kept = tuple(
            KeptSteps(x.group_rank, tuple(step for step in x.whole if _counts(me, step))) for x in event.kept
        )
    if not member_workers.has_ranks(me, event.token):
        me.send(m.CopiesKept(event.token, copies.kept))
    elif is_new:
        copies.fetched = event.fetched
        member_workers.on_copies(me)
        member_workers.report_start(me)


def _on_overwritten(me: MemberState, overwritten: tuple[SavedStep, ...] | None) -> None:
    if overwritten is None:
        me.copies.all_overwritten = True
    else:
        me.copies.overwritten |= {*overwritten}


def _counts(me: MemberState, step: SavedStep) -> bool:
    copies = me.copies
    is_of_training = step.token >= copies.oldest or step.leads_to(copies.restored)
    return is_of_training and step.token >= max(copies.missed, me.workers.replaced)


def _on_fetched(me: MemberState, event: CopyFetched) -> None:
    fetching = me.copies.fetching
    if fetching is None or fetching.saved != event.saved:
        return
    me.copies.fetching = None
    if not event.error:
        me.copies.fetched += (FetchedStep(event.token, event.saved),)
    member_workers.on_copies(me)
    whole = () if me.workers.saved is None else me.workers.saved.whole
    me.send(m.CopyFetched(event.token, event.saved, event.error, whole))
