"""Evictions: a member is removed, its launcher exits, and the operator replaces its pod.

Rules: an evicted member that joins again gets Evicted again, also from the next coordinator, which gets the history. A
coordinator whose own pod is evicted first transfers its leadership, with its leader snapshot.
"""

from understudy_protocol import membership as m
from understudy_protocol.enums import Fault
from understudy_protocol.observer import Lost
from understudy_protocol.recovery import History
from understudy_sidecar.membership import config_change, leaving
from understudy_sidecar.membership.coordinator_state import CoordinatorState
from understudy_sidecar.membership.events import Hangup, Send
from understudy_sidecar.membership.roster import MemberRecord
from understudy_sidecar.membership.round_state import RoundPhase


def evict(state: CoordinatorState, member: MemberRecord, reason: str, now: float) -> None:
    """Remove the member: its launcher exits, and its pod is replaced."""
    state.log(f"{member.name} on {member.node} is replaced: {reason}")
    state.fault_history.record_eviction(member.uid, reason)
    own = member.uid == state.pod_uid
    if own:
        config_change.send_leader_snapshot(state)
    state.send(member, m.Evicted(state.term, reason))
    state.hang_up(member.link, "its pod is replaced")
    _report_lost(state, member.join, reason, now)
    state.roster.remove(member)
    state.on_members_changed(now)
    state.config_changes.send_snapshot_later(now)
    if own:
        leaving.transfer_leadership(state, f"its pod is replaced: {reason}")


def reject_evicted(state: CoordinatorState, link: int, join: m.Join, now: float) -> bool:
    """Whether the joining pod was evicted before; if so, send it Evicted again."""
    reason = state.fault_history.evicted.get(join.pod_uid)
    if reason is None or state.ending.close is not None:
        return False
    state.do(Send(link, m.Evicted(state.term, reason)), Hangup(link, "its pod is replaced"))
    _report_lost(state, join, reason, now)
    return True


def restore_history(state: CoordinatorState, history: History, now: float) -> None:
    """Restore a previous coordinator's history from a member's Join."""
    if not state.fault_history.restore(history):
        return
    # The operator may not know of the first round.
    if state.round.phase is RoundPhase.REBUILDING or state.round.is_first:
        state.recovery_log.restore(history.open)
        state.recovery_log.restore_ended(history.ended)
        state.backoff.restore(history.failed_starts)
    for uid in history.evicted.keys() & state.roster.members.keys():
        evict(state, state.roster.members[uid], history.evicted[uid], now)
    state.config_changes.send_snapshot_later(now)


def _report_lost(state: CoordinatorState, join: m.Join, reason: str, now: float) -> None:
    """Only once: the operator waits from the first report on, and a pod with a stuck launcher connects repeatedly."""
    if join.pod_uid not in state.losses.by_uid:
        lost = Lost(join.pod_uid, join.pod_name, join.node, Fault.PROCESS, f"replaced: {reason}", now)
        state.losses.report(lost)
        state.notify_observers()
