"""Which snapshot a round restores: the newest one that every rank has, in its own pod or as a copy in another one.

Rules: a member reports its snapshots, and the copies that it keeps, with its Started, when no worker of an older round
is left to overwrite them. Waiting members report their copies as well: the choice waits for them, for HOLDERS_WAIT_S
after the last member with ranks. Then the coordinator chooses. Members that do not have the chosen snapshot fetch it
(FetchCopy), and then all get the choice: their workers wait for it in load(). If a copy cannot be fetched, it does not
count, and the coordinator chooses again when all fetches have ended: each one overwrites a snapshot. No member reports
each save, so snapshots cost no message a step. A snapshot is named by the round that saved it and by its step, because
two rounds may save the same step with different content.

Only the history of the training counts: the snapshot that the newest round with a choice has restored, the older ones
of the round that has saved it, and the snapshots that the newest round with a choice or a later one has saved. A round
that was replaced may have saved more while it was cut off, but a newer round has stepped since, or has restored
something else. Each round has a choice before it steps: if the choice of the newest round that has stepped is not
known, no snapshot of an earlier round counts. Neither does one if it is not known whether the newest round has stepped,
because none of its pods has joined. A coordinator that adopts a round adopts its choice if any member has received one,
and otherwise chooses. If the rounds after SUSPECT_RESTORES restores in a row have failed within SUSPECT_STEPS steps by
a fault of a worker, the snapshots may be the cause: the next round restores an older snapshot on storage, or the
script's own checkpoint. All work per message is O(1).
"""

from collections.abc import Iterable

from understudy_protocol import membership as m
from understudy_protocol.enums import NO_ROUND, Tier, WorkersState
from understudy_protocol.snapshots import CopyHolder, KeptSteps, RestoreChoice, SavedStep, SavedSteps
from understudy_sidecar.membership import copies
from understudy_sidecar.membership.coordinator_state import CoordinatorState, FoundSnapshot
from understudy_sidecar.membership.recoveries import WORKER_FAULTS
from understudy_sidecar.membership.roster import MemberRecord
from understudy_sidecar.membership.round_state import RoundPhase

SUSPECT_RESTORES = 2
SUSPECT_STEPS = 3
MAX_NAMED_PODS = 3
#: A pod has two slots for each rank; a longer report is not read to its end.
MAX_REPORTED = 4
#: The choice does not wait longer than this for the copies of members without ranks.
HOLDERS_WAIT_S = 1.0
#: Of an error of a member, which may send any text.
MAX_ERROR_CHARS = 200


def begin(state: CoordinatorState, active: Iterable[MemberRecord]) -> None:
    """These members have got their assignments of a new round."""
    restores = state.restores
    _learn_choices(state)
    has_snapshots = state.shape.snapshots
    restores.unreported = {x.uid for x in active} if has_snapshots else set()
    restores.holders = {x.uid for x in copies.holders_without_ranks(state)} if has_snapshots else set()
    restores.found, restores.newest_made = {}, None
    restores.target, restores.fetching, restores.errors, restores.is_decided = None, {}, [], False
    restores.choice, restores.holders_until = None, None


def adopt(state: CoordinatorState, active: Iterable[MemberRecord]) -> None:
    """The round of the previous coordinator continues with these members."""
    members = list(active)
    begin(state, members)
    waiting = copies.holders_without_ranks(state)
    state.restores.holders = set()
    choices = [x.saved.choice for x in members if x.saved is not None and x.saved.choice is not None]
    if choices and state.shape.snapshots:
        state.restores.choice = choices[0]
    for member in waiting:
        _add_copies(state, member, member.kept or ())
    for member in members:
        on_report(state, member, member.saved, member.kept, started=member.workers is not WorkersState.STARTING)
    _record(state)
    copies.adopt(state)


def restore_choice(state: CoordinatorState, leader_snapshot: m.LeaderSnapshot) -> None:
    """The newest choice that the previous coordinator knew: the rounds since may have ended without one."""
    state.restores.decided, state.restores.restored = leader_snapshot.chose, leader_snapshot.restored


def on_report(
    state: CoordinatorState,
    member: MemberRecord,
    saved: SavedSteps | None,
    kept: tuple[KeptSteps, ...] | None,
    *,
    started: bool,
) -> None:
    """A member's snapshots for the running round. started: its workers run, so None is its whole report. kept: None if
    the member sends another Started once it knows its copies.
    """
    restores = state.restores
    if saved is not None and saved.newest_made is not None:
        restores.newest_made = max(saved.newest_made, restores.newest_made or saved.newest_made)
    if not state.shape.snapshots or (saved is None and not started):
        return
    report = saved or SavedSteps(())
    if restores.choice is not None and report.choice is None:
        state.send(member, m.Restore(state.round.token, restores.choice))
    elif member.uid in restores.fetching:
        _ask_to_fetch(state, member)
    is_whole = kept is not None or not state.shape.snapshot_copies
    if member.uid not in restores.unreported or member.group_rank is None or not is_whole:
        return
    restores.unreported.discard(member.uid)
    for saved_step in report.whole[-MAX_REPORTED:]:
        _found(state, saved_step).own.add(member.group_rank)
    _add_copies(state, member, kept or ())
    _on_reported(state)


def on_copies_kept(state: CoordinatorState, member: MemberRecord, message: m.CopiesKept) -> None:
    """A waiting member's copies."""
    is_current = state.round.phase is RoundPhase.RUNNING and message.token == state.round.token
    if not is_current or member.uid not in state.restores.holders:
        return
    state.restores.holders.discard(member.uid)
    _add_copies(state, member, message.kept)
    _on_reported(state)


def on_copy_fetched(state: CoordinatorState, member: MemberRecord, message: m.CopyFetched) -> None:
    restores = state.restores
    rank = restores.fetching.get(member.uid)
    if message.saved != restores.target or rank is None:
        return
    del restores.fetching[member.uid]
    left = message.whole[-MAX_REPORTED:]
    for found in restores.found.values():
        if found.saved not in left:
            found.own.discard(rank)
    if message.error:
        restores.errors.append(f"{member.name}: {message.error[:MAX_ERROR_CHARS]}")
        state.log(f"a copy of step {message.saved.step} could not be fetched: {restores.errors[-1]}")
        del _found(state, message.saved).copied[rank]
    else:
        _found(state, message.saved).own.add(rank)
    if restores.fetching:
        return
    if _lacking(state, message.saved):
        _choose(state)
    else:
        _decide(state, RestoreChoice(restores.target, from_copies=True))


def on_time(state: CoordinatorState, now: float) -> None:
    """Choose without the members that have not reported their copies in time."""
    until = state.restores.holders_until
    if until is not None and now >= until and state.round.phase is RoundPhase.RUNNING:
        state.restores.holders.clear()
        _on_reported(state)


def deadline(state: CoordinatorState) -> float | None:
    return state.restores.holders_until if state.round.phase is RoundPhase.RUNNING else None


def _add_copies(state: CoordinatorState, member: MemberRecord, kept: tuple[KeptSteps, ...]) -> None:
    for copy in kept[: copies.MOST_OWNERS * state.shape.snapshot_copies]:
        if 0 <= copy.group_rank < len(state.roster.holders):
            for saved in copy.whole[-MAX_REPORTED:]:
                _found(state, saved).copied.setdefault(copy.group_rank, []).append(member.uid)


def _found(state: CoordinatorState, saved: SavedStep) -> FoundSnapshot:
    """There are thousands of reports, and hashing a SavedStep takes several times as long as hashing its numbers."""
    key = (saved.token.epoch, saved.token.term, saved.token.round, saved.step)
    found = state.restores.found.get(key)
    if found is None:
        found = state.restores.found[key] = FoundSnapshot(saved)
    return found


def _on_reported(state: CoordinatorState) -> None:
    restores = state.restores
    if restores.unreported or restores.choice is not None or restores.fetching:
        return
    if restores.holders & state.roster.connected:
        restores.holders_until = restores.holders_until or state.now + HOLDERS_WAIT_S
        return
    restores.holders_until = None
    _choose(state)


def _choose(state: CoordinatorState) -> None:
    restores = state.restores
    least = _least_round(state)
    newest = _newest(x for x in _common(state) if x.token.round >= least and _is_of_the_training(state, x))
    if not restores.is_decided:
        restores.is_decided = True
        restores.suspicions = restores.suspicions + 1 if _is_suspect(state, newest) else 0
    if restores.suspicions >= SUSPECT_RESTORES:
        reason = f"{SUSPECT_RESTORES} rounds in a row have failed within {SUSPECT_STEPS} steps of a restored snapshot"
        restores.suspicions = 0
        suspect = None if restores.restored is None else restores.restored.step
        _decide(state, RestoreChoice(None, f"{reason}: it may be the cause", before_step=suspect))
        return
    restores.target, restores.fetching = newest, {} if newest is None else _lacking(state, newest)
    if newest is None:
        _decide(state, RestoreChoice(None, _why_none(state)))
    elif not restores.fetching:
        _decide(state, RestoreChoice(newest))
    for uid in restores.fetching:
        _ask_to_fetch(state, state.roster.members[uid])


def _ask_to_fetch(state: CoordinatorState, member: MemberRecord) -> None:
    saved, roster = state.restores.target, state.roster
    assert saved is not None, "members fetch only a snapshot that was chosen"
    uids = _found(state, saved).copied[state.restores.fetching[member.uid]]
    nearest = sorted((uid for uid in uids if uid in roster.members), key=lambda uid: uid != member.uid)
    holders = tuple(CopyHolder(uid, roster.members[uid].join.ip) for uid in nearest)
    state.send(member, m.FetchCopy(state.round.token, saved, holders))


def _decide(state: CoordinatorState, choice: RestoreChoice) -> None:
    restores = state.restores
    restores.fetching, restores.holders_until = {}, None
    restores.choice, restores.restored, restores.decided = choice, choice.saved, state.round.token
    _record(state)
    members = [state.roster.members[uid] for uid in state.roster.holders if uid is not None]
    state.broadcast((x.link for x in members if x.link is not None), m.Restore(state.round.token, choice))
    chosen = choice.saved
    what = f"step {chosen.step} of round {chosen.token}" if chosen else f"no snapshot: {choice.reason}"
    state.log(f"round {state.round.token} restores {what}")
    state.notify_observers()


def _common(state: CoordinatorState) -> list[SavedStep]:
    """The snapshots that all ranks have somewhere."""
    size = len(state.roster.holders)
    return [found.saved for found in state.restores.found.values() if len(found.ranks) == size]


def _lacking(state: CoordinatorState, saved: SavedStep) -> dict[str, int]:
    """The members that do not have this snapshot of their ranks, with their group ranks."""
    own = _found(state, saved).own
    return {uid: rank for rank, uid in enumerate(state.roster.holders) if uid is not None and rank not in own}


def _newest(found: Iterable[SavedStep]) -> SavedStep | None:
    return max(found, default=None)


def _learn_choices(state: CoordinatorState) -> None:
    """Of rounds of earlier coordinators, from the Joins of their members. A round has stepped only after its choice."""
    restores = state.restores
    for member in state.roster.members.values():
        choice = None if member.saved is None else member.saved.choice
        if choice is not None and member.join.token > restores.decided:
            restores.decided, restores.restored = member.join.token, choice.saved


def _is_of_the_training(state: CoordinatorState, saved: SavedStep) -> bool:
    decided, stepped = state.restores.decided, state.round.stepped
    is_of_newest = saved.token >= decided and saved.token >= stepped
    return is_of_newest or (decided >= stepped and saved.leads_to(state.restores.restored))


def _least_round(state: CoordinatorState) -> int:
    """No snapshot of a round with a lower number counts: the newest round may have stepped since."""
    newest = state.round.newest_known
    is_known = state.restores.decided.round >= newest or state.knows_newest_round()
    return NO_ROUND.round if is_known else newest


def _record(state: CoordinatorState) -> None:
    """Add the choice to the recoveries that this round ends."""
    choice, newest, lost_steps = state.restores.choice, state.restores.newest_made, None
    if choice is None:
        return
    if choice.saved is not None and newest is not None:
        lost_steps = max(0, newest.step - choice.saved.step)
    tier = Tier.PEER if choice.from_copies else Tier.MEMORY
    tier = Tier.STORAGE if choice.saved is None else tier
    state.recovery_log.on_restore(state.round.token.round, tier, choice.reason, lost_steps)


def _is_suspect(state: CoordinatorState, newest: SavedStep | None) -> bool:
    """Whether the round before has restored a snapshot, and a worker failed soon after. It may have saved no other one,
    because only one of `every` steps is saved: the steps that it has made count, too.
    """
    before, made = state.restores.restored, state.restores.newest_made
    if before is None or newest is None or newest.step - before.step >= SUSPECT_STEPS:
        return False
    if made is not None and made.token >= state.restores.decided and made.step - before.step >= SUSPECT_STEPS:
        return False
    recovered = [x for x in state.recovery_log.open if x.round == state.round.token.round]
    return any(x.fault in WORKER_FAULTS for x in recovered)


def _why_none(state: CoordinatorState) -> str:
    restores = state.restores
    if restores.errors:
        return f"copies could not be fetched: {'; '.join(restores.errors[:MAX_NAMED_PODS])}"
    if not restores.found:
        return "no pod has a snapshot"
    names = _without_any(state)
    of_them = "snapshot and no copy" if state.shape.snapshot_copies else "snapshot"
    if len(names) == 1:
        return f"{names[0]} has no {of_them} of its ranks"
    if names:
        shown = ", ".join(sorted(names)[:MAX_NAMED_PODS]) + (", …" if len(names) > MAX_NAMED_PODS else "")
        return f"{len(names)} pods have no {of_them} of their ranks: {shown}"
    if _common(state):
        return "the snapshots are of a round that another one has replaced"
    return "the pods have no snapshot of the same step"


def _without_any(state: CoordinatorState) -> list[str]:
    """The names of the pods for whose ranks no pod has a snapshot."""
    known = set().union(*(found.ranks for found in state.restores.found.values()))
    return [member.name for rank, member in enumerate(state.roster.active_members()) if rank not in known]
