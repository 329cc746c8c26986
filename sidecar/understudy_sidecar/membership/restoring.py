"""Which snapshot a round restores: the newest one that every rank has.

Rules: a member reports its snapshots with its Started, when no worker of an older round is left to overwrite them. With
the last report the coordinator chooses, and sends the choice to all members: their workers wait for it in load(). No
member reports each save, so snapshots cost no message a step. A snapshot is named by the round that saved it and by its
step, because two rounds may save the same step with different content.

Only the history of the training counts: what the newest round with a choice has restored, and what this round or a
later one has saved. A round that was replaced may have saved more while it was cut off, but a newer round has stepped
since, or has restored something else. A coordinator that adopts a round adopts its choice if any member has received
one, and otherwise chooses. If the rounds after SUSPECT_RESTORES restores in a row have failed within SUSPECT_STEPS
steps by a fault of a worker, the snapshots may be the cause: the next round restores the script's own checkpoint. All
work per message is O(1).
"""

from collections.abc import Iterable

from understudy_protocol import membership as m
from understudy_protocol.enums import Tier, WorkersState
from understudy_protocol.snapshots import RestoreChoice, SavedStep, SavedSteps
from understudy_sidecar.membership.coordinator_state import CoordinatorState
from understudy_sidecar.membership.recoveries import WORKER_FAULTS
from understudy_sidecar.membership.roster import MemberRecord

SUSPECT_RESTORES = 2
SUSPECT_STEPS = 3
MAX_NAMED_PODS = 3
#: A pod has two slots for each rank; a longer report is not read to its end.
MAX_REPORTED = 4


def begin(state: CoordinatorState, active: Iterable[MemberRecord]) -> None:
    """These members have got their assignments of a new round."""
    restores = state.restores
    _learn_choices(state)
    restores.unreported = {x.uid for x in active} if state.shape.snapshots else set()
    restores.common, restores.without, restores.newest_step, restores.choice = None, [], None, None


def adopt(state: CoordinatorState, active: Iterable[MemberRecord]) -> None:
    """The round of the previous coordinator continues with these members."""
    members = list(active)
    begin(state, members)
    choices = [x.saved.choice for x in members if x.saved is not None and x.saved.choice is not None]
    if choices and state.shape.snapshots:
        state.restores.choice = choices[0]
    for member in members:
        on_report(state, member, member.saved, started=member.workers is not WorkersState.STARTING)
    _record(state)


def on_report(state: CoordinatorState, member: MemberRecord, saved: SavedSteps | None, *, started: bool) -> None:
    """A member's snapshots for the running round. started: its workers run, so None is its whole report."""
    restores = state.restores
    if not state.shape.snapshots or (saved is None and not started):
        return
    report = saved or SavedSteps(())
    if restores.choice is not None and report.choice is None:
        state.send(member, m.Restore(state.round.token, restores.choice))
    if member.uid not in restores.unreported:
        return
    restores.unreported.discard(member.uid)
    whole = frozenset(report.whole[-MAX_REPORTED:])
    restores.common = whole if restores.common is None else _common(restores.common, whole)
    if not whole:
        restores.without.append(member.name)
    if report.newest_step is not None:
        restores.newest_step = max(report.newest_step, restores.newest_step or 0)
    if not restores.unreported and restores.choice is None:
        _choose(state)


def on_first_step(state: CoordinatorState, step: int) -> None:
    """The round has made its first step: if it has restored no snapshot, this tells which steps were lost."""
    restores = state.restores
    if restores.choice is not None and restores.choice.saved is None and restores.newest_step is not None:
        state.recovery_log.set_lost_steps(state.round.token.round, max(0, restores.newest_step - step + 1))


def _choose(state: CoordinatorState) -> None:
    restores = state.restores
    newest = _newest(saved for saved in restores.common or () if _is_of_the_training(state, saved))
    restores.suspicions = restores.suspicions + 1 if _is_suspect(state, newest) else 0
    choice = RestoreChoice(newest, "" if newest is not None else _why_none(state))
    if restores.suspicions >= SUSPECT_RESTORES:
        reason = f"{SUSPECT_RESTORES} rounds in a row have failed within {SUSPECT_STEPS} steps of a restored snapshot"
        choice, restores.suspicions = RestoreChoice(None, f"{reason}: it may be the cause"), 0
    restores.choice, restores.restored, restores.decided = choice, choice.saved, state.round.token
    _record(state)
    members = [state.roster.members[uid] for uid in state.roster.holders if uid is not None]
    state.broadcast((x.link for x in members if x.link is not None), m.Restore(state.round.token, choice))
    chosen = choice.saved
    what = f"step {chosen.step} of round {chosen.token}" if chosen else f"no snapshot: {choice.reason}"
    state.log(f"round {state.round.token} restores {what}")
    state.notify_observers()


def _common(some: frozenset[SavedStep], others: frozenset[SavedStep]) -> frozenset[SavedStep]:
    return some & others


def _newest(found: Iterable[SavedStep]) -> SavedStep | None:
    return max(found, default=None)


def _learn_choices(state: CoordinatorState) -> None:
    """Of rounds of earlier coordinators, from the Joins of their members."""
    restores = state.restores
    for member in state.roster.members.values():
        choice = None if member.saved is None else member.saved.choice
        if choice is not None and member.join.token > restores.decided:
            restores.decided, restores.restored = member.join.token, choice.saved


def _is_of_the_training(state: CoordinatorState, saved: SavedStep) -> bool:
    is_of_newest = saved.token >= state.restores.decided and saved.token >= state.round.stepped
    return is_of_newest or saved == state.restores.restored


def _record(state: CoordinatorState) -> None:
    """Add the choice to the recoveries that this round ends."""
    choice, newest_step, lost_steps = state.restores.choice, state.restores.newest_step, None
    if choice is None:
        return
    if choice.saved is not None and newest_step is not None:
        lost_steps = max(0, newest_step - choice.saved.step)
    tier = Tier.STORAGE if choice.saved is None else Tier.MEMORY
    state.recovery_log.on_restore(state.round.token.round, tier, choice.reason, lost_steps)


def _is_suspect(state: CoordinatorState, newest: SavedStep | None) -> bool:
    """Whether the round before has restored a snapshot, and a worker failed soon after."""
    before = state.restores.restored
    if before is None or newest is None or newest.step - before.step >= SUSPECT_STEPS:
        return False
    recovered = [x for x in state.recovery_log.open if x.round == state.round.token.round]
    return any(x.fault in WORKER_FAULTS for x in recovered)


def _why_none(state: CoordinatorState) -> str:
    names = state.restores.without
    if len(names) == len(state.roster.active_members()):
        return "no pod has a snapshot"
    if len(names) == 1:
        return f"{names[0]} has no snapshot of its ranks"
    if names:
        shown = ", ".join(sorted(names)[:MAX_NAMED_PODS]) + (", …" if len(names) > MAX_NAMED_PODS else "")
        return f"{len(names)} pods have no snapshot of their ranks: {shown}"
    if state.restores.common:
        return "the snapshots are of a round that another one has replaced"
    return "the pods have no snapshot of the same step"
