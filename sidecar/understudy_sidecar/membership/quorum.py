"""Whether this coordinator is still followed: the check-quorum, and when it steps down without a majority.

Rules: a coordinator asks all members in three cases: its process was paused, it has lost silent members, or it is about
to close the job. Until a majority has answered, it decides nothing, and a closed connection is no loss: the member may
have called another coordinator, and may return. Without a majority the coordinator may itself be partitioned: it counts
no silent member as lost, and steps down after half the fence time. Without voters and observers it steps down after
STEP_DOWN_S.
"""

from understudy_protocol.enums import Fault
from understudy_sidecar.membership import faults
from understudy_sidecar.membership.coordinator_state import CheckQuorum, CoordinatorState
from understudy_sidecar.membership.roster import MemberRecord
from understudy_sidecar.membership.round_state import RoundPhase
from understudy_sidecar.membership.silence import SilentMember
from understudy_sidecar.membership.voter_config import Tally

#: Seconds for members to connect again to a coordinator that was paused, once a majority has confirmed it.
RETURN_S = 2.0
#: How long a coordinator without voters and observers waits before it assumes that it was replaced.
STEP_DOWN_S = 15.0
#: Without a majority, silence is examined at most once in this time: thousands of connections may end at the same time.
SILENCE_PAUSE_S = 0.1


def on_pause(state: CoordinatorState, late_s: float, now: float) -> None:
    """Members may have left, and messages that arrive now may be old: ping all members for a majority."""
    state.silence.restart_timeouts(state.roster, now)
    state.log(f"did not run for {late_s:.1f} s: asks all members whether they still follow it")
    start_check(state)


def start_check(state: CoordinatorState) -> None:
    heartbeat = state.send_heartbeat(state.roster.links())
    state.quorum.check = CheckQuorum(heartbeat, Tally(state.voter_configs.newest))


def on_answer(state: CoordinatorState, member: MemberRecord, heartbeat: int) -> bool:
    """The member has answered this heartbeat: whether the check-quorum has its majority."""
    check = state.quorum.check
    if check is None or heartbeat < check.heartbeat:
        return False
    check.responded.add(member.uid)
    return not check.responded.voter_config.exists or check.responded.has_majority()


def end_check(state: CoordinatorState, now: float) -> None:
    """A majority still follows: members that disconnected while this process was paused connect again."""
    state.quorum.check, state.quorum.reconnect_until = None, now + RETURN_S
    state.round_check.request()


def on_disconnected(state: CoordinatorState, member: MemberRecord) -> bool:
    """The member's connection has ended. False if no check-quorum runs, so that this is a loss."""
    if state.quorum.check is None:
        return False
    state.quorum.disconnected.add(member.uid)
    state.log(f"{member.name} on {member.node} is not connected any more: it may look for another coordinator")
    return True


def on_observers(state: CoordinatorState, observers: int) -> None:
    state.quorum.observers = observers
    state.round_check.request()  # the first round needs an operator


def lose_not_reconnected(state: CoordinatorState, now: float) -> None:
    """Lose the members that disconnected during a check-quorum and have not connected again."""
    quorum = state.quorum
    if not quorum.disconnected or quorum.check is not None or now < quorum.reconnect_until:
        return
    disconnected = [state.roster.members[uid] for uid in sorted(quorum.disconnected) if uid in state.roster.members]
    quorum.disconnected.clear()
    for member in disconnected:
        if member.link is None:
            faults.lose_member(state, member, Fault.POD, "its connection ended", now)


def examine_silence(state: CoordinatorState, now: float) -> None:
    if state.has_majority() or now >= state.quorum.examines_silence_at:
        is_stopped = state.round.phase is not RoundPhase.RUNNING
        if silent := state.silence.find_lost(state.roster, state.steps, is_stopped, now):
            lose_silent(state, silent, now)


def on_unreachable(state: CoordinatorState, links: frozenset[int], now: float) -> None:
    """The machines of these links acknowledge no packet. If so many that no majority is left, the network of this
    coordinator's own machine may be the cause.
    """
    if silent := state.silence.find_unreachable(state.roster, state.steps, links, now):
        voters = state.voter_configs.newest
        others = Tally(voters, state.roster.connected - {x.member.uid for x in silent})
        if not voters.exists or others.has_majority():
            lose_silent(state, silent, now)


def lose_silent(state: CoordinatorState, silent: list[SilentMember], now: float) -> None:
    """Count these members as lost, unless this coordinator itself may be partitioned."""
    if not state.has_majority():
        state.quorum.kept_silent, state.quorum.examines_silence_at = True, now + SILENCE_PAUSE_S
        state.silence.restart_timeouts(state.roster, now)
        return
    for entry in silent:
        faults.lose_member(state, entry.member, Fault.NODE, entry.reason, now)
    _confirm(state)


def is_consequence(state: CoordinatorState, now: float) -> bool:
    """Whether workers fail because a member leaves (the next round follows its end), or because one is silent.

    A member whose workers have all exited 0 causes no failure: no round follows its end.
    """
    if any(_is_at_work(state, uid) for uid in state.roster.leaving):
        return True
    suspects = [state.roster.members[uid] for uid in state.roster.suspects if _is_at_work(state, uid)]
    if not suspects or not state.has_majority():
        return False
    reason = "its connection went silent, and workers of other pods failed or hang"
    for suspect in suspects:
        faults.lose_member(state, suspect, Fault.NODE, reason, now)
    _confirm(state)
    return True


def _is_at_work(state: CoordinatorState, uid: str) -> bool:
    rank = state.roster.members[uid].group_rank
    return rank is not None and rank not in state.roster.finished


def _confirm(state: CoordinatorState) -> None:
    """Silent members were lost. Perhaps this coordinator itself is cut off, and the silence of the others is noticed a
    moment later: the next round waits for the answers of a majority.
    """
    if state.voter_configs.newest.exists and state.quorum.check is None:
        start_check(state)


def step_down_if_not_followed(state: CoordinatorState, now: float) -> None:
    quorum = state.quorum
    if not state.voter_configs.newest.exists:
        quorum.missing_since = None
        _report(state)
        is_unobserved = state.round.phase is not RoundPhase.RUNNING and not quorum.observers
        quorum.unobserved_since = (quorum.unobserved_since or now) if is_unobserved else None
        if quorum.unobserved_since is not None and now >= quorum.unobserved_since + STEP_DOWN_S:
            state.step_down(f"no round could be formed for {STEP_DOWN_S:g} s, and no operator is connected")
        return
    quorum.unobserved_since = None
    quorum.missing_since = None if state.has_majority() else quorum.missing_since or now
    _report(state)
    if quorum.missing_since is not None and now >= quorum.missing_since + _limit_s(state):
        state.step_down(f"fewer than a majority of its voters responded for {_limit_s(state):g} s")


def deadlines(state: CoordinatorState) -> list[float]:
    quorum, times = state.quorum, list[float]()
    if quorum.disconnected and quorum.check is None:
        times.append(quorum.reconnect_until)
    if quorum.unobserved_since is not None:
        times.append(quorum.unobserved_since + STEP_DOWN_S)
    if quorum.missing_since is not None:
        times.append(quorum.missing_since + _limit_s(state))
    return times


def _report(state: CoordinatorState) -> None:
    """Report to observers at once that this coordinator needs a majority and has none."""
    quorum = state.quorum
    if quorum.missing_since is None:
        quorum.kept_silent = False
    is_needed = state.round.phase is not RoundPhase.RUNNING or quorum.kept_silent
    is_lacking = is_needed and quorum.missing_since is not None and quorum.check is None
    if state.ending.decision is not None:  # members that have finished may be gone
        is_lacking = state.voter_configs.newest.exists and not state.roster.connected_voters.has_majority()
    if is_lacking != quorum.is_lacking:
        quorum.is_lacking = is_lacking
        state.notify_observers()


def _limit_s(state: CoordinatorState) -> float:
    return (state.shape.fence_s or 30.0) / 2
