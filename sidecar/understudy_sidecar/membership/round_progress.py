"""The progress of the running round: acknowledged, started, stepped, finished; and the recoveries that it ends.

Rules: the first step of a round ends its recoveries. A pod that also made the last step before the round measures the
pause; if no such pod is left, any first step ends them, and the pause of the training is unknown. If the script has
never reported a step, the start of all workers ends them. All work per message is O(1).
"""

from collections.abc import Sequence

from understudy_protocol import membership as m
from understudy_protocol.enums import NO_ROUND, CloseReason, RoundToken, WorkersState
from understudy_protocol.observer import Recovery, SlowRank, SnapshotTime, StepProgress
from understudy_protocol.snapshots import SnapshotAge
from understudy_sidecar.membership import ending
from understudy_sidecar.membership.coordinator_state import CoordinatorState
from understudy_sidecar.membership.roster import MemberRecord
from understudy_sidecar.membership.round_state import RoundPhase
from understudy_sidecar.membership.slow_ranks import make_report

#: A round whose workers have run for this long did not fail at its start, even if the script reports no steps.
STARTED_WELL_S = 60.0


def on_acked(state: CoordinatorState, member: MemberRecord) -> None:
    """The member has acknowledged its assignment of the running round."""
    if state.roster.on_acked(member.uid):
        state.silence.all_acked()


def on_started(state: CoordinatorState, member: MemberRecord, now: float) -> None:
    state.notify_observers()
    member.workers = WorkersState.RUNNING
    state.round.on_member_started(now)
    if state.roster.on_started(member.uid):
        state.round.on_started(now)
        if state.round.stepped == NO_ROUND:
            _on_recovered(state, state.recovery_log.on_running(now), now)


def on_step(state: CoordinatorState, member: MemberRecord, progress: m.Progress, now: float) -> None:
    state.hangs.on_step(member.uid)
    if member.workers is WorkersState.STARTING:
        member.workers = WorkersState.RUNNING
        state.round.on_member_started(now)
        state.roster.on_started(member.uid)
        state.notify_observers()
    state.backoff.on_step()
    state.steps.on_step(progress.median_step_s, now)
    before, round_before = state.progress, state.round.stepped
    snapshot, copied = _saved(progress.snapshot, now), _saved(progress.copied, now)
    state.progress = StepProgress(progress.step, progress.total, now, progress.is_counted, snapshot, copied)
    if state.round.on_step(now):
        _on_first_step(state, _newest_before(state, before, round_before), state.progress)
        # Without it, a standby whose pod is not in the round would take an earlier step for the last one.
        state.config_changes.send_snapshot_later(now)
    if not progress.is_counted and state.recovery_log.on_progress(state.round.token.round, progress.step, now):
        state.notify_observers()
    member.stepped = state.round.token
    if not state.recovery_log.awaits_step(state.round.token.round):
        return
    measured = progress.pause_s if member.uid in state.roster.measuring else None
    if measured is not None or not state.roster.measuring:
        first_at = max(state.round.formed_at, now - max(0.0, progress.since_first_s))
        _on_recovered(state, state.recovery_log.on_step(state.round.token.round, first_at, measured), now)


def _saved(snapshot: SnapshotAge | None, now: float) -> SnapshotTime | None:
    return None if snapshot is None else SnapshotTime(snapshot.step, now - snapshot.age_s)


def _newest_before(state: CoordinatorState, progress: StepProgress | None, token: RoundToken) -> int | None:
    """The newest step before this round; None: not known, or counted. progress: as this coordinator knows it. token: of
    the round that made it.

    Progress is reported four times a second, so the pods know newer steps, and a new coordinator knows no progress.
    """
    if progress is not None and progress.is_counted:
        return None
    steps = [] if progress is None else [progress.step]
    reported = state.restores.newest_made
    if reported is not None and reported.token == token:
        steps.append(reported.step)
    return max(steps, default=None)


def _on_first_step(state: CoordinatorState, before: int | None, first: StepProgress) -> None:
    """Which steps were lost. before: the newest step before this round; None: not known."""
    if first.is_counted:
        state.recovery_log.begin_repeating(None)
        return
    if before is not None:
        state.recovery_log.on_first_step(state.round.token.round, max(0, before - first.step + 1))
    state.recovery_log.begin_repeating(first.step)


def on_collectives(state: CoordinatorState, member: MemberRecord, times: m.CollectiveTimes, now: float) -> None:
    """Compare the ranks (slow_ranks.py)."""
    nproc, watch = state.shape.nproc_per_node, state.slow_ranks
    report = make_report(times.step_ns, times.collectives, times.delays_ns)
    if state.shape.slow_rank_percent <= 100 or report is None or not 0 <= times.local_rank < nproc:
        return
    assert member.group_rank is not None, "it is in the round"
    before = watch.found
    ranks, rank = state.round.size * nproc, member.group_rank * nproc + times.local_rank
    if not watch.add(times.token, times.window, rank, report, ranks, state.shape.slow_rank_percent, now):
        return
    state.notify_observers()
    if (before and before.rank) != (watch.found and watch.found.rank):
        ends = "no rank is slow any more"
        state.log(ends if watch.found is None else f"rank {watch.found.rank} is slow: see the condition SlowRank")


def slow_rank(state: CoordinatorState) -> SlowRank | None:
    """The rank for which the others wait."""
    watch, nproc = state.slow_ranks, state.shape.nproc_per_node
    if watch.found is None or watch.token != state.round.token or state.round.phase is not RoundPhase.RUNNING:
        return None
    found = watch.found
    member = next((x for x in state.roster.active_members() if x.group_rank == found.rank // nproc), None)
    if member is None:
        return None
    return SlowRank(found.rank, member.name, member.node, found.percent, found.late_ns / 1e9, watch.since)


def on_finished(state: CoordinatorState, member: MemberRecord) -> None:
    state.notify_observers()
    member.workers = WorkersState.FINISHED
    state.roster.on_finished(member)
    if state.draining is not None:
        state.draining.on_ended(member.uid)


def on_time(state: CoordinatorState, now: float) -> None:
    round_ = state.round
    if round_.start_due is not None and now >= round_.start_due:
        round_.on_start_due()
        state.notify_observers()
    if round_.started_at is not None and now >= round_.started_at + STARTED_WELL_S:
        state.backoff.on_long_run()
        round_.on_long_run()
    if ending.have_all_succeeded(state):
        _on_recovered(state, state.recovery_log.on_running(now), now)
        ending.decide(state, CloseReason.SUCCEEDED, "all workers of all members exited 0")


def deadline(state: CoordinatorState) -> float | None:
    round_ = state.round
    if round_.phase is not RoundPhase.RUNNING:
        return None
    if round_.started_at is None:
        return round_.start_due
    well_at = round_.started_at + STARTED_WELL_S
    return well_at if round_.start_due is None else min(well_at, round_.start_due)


def _on_recovered(state: CoordinatorState, done: Sequence[Recovery], now: float) -> None:
    for entry in done:
        strategy = entry.strategy.value if entry.strategy is not None else "nothing"
        end = f"all workers were running {now - entry.detected_at:.2f} s after the fault"
        if entry.pause_s is not None:
            end = f"training paused for {entry.pause_s:.2f} s"
        elif entry.resumed_at is not None:
            end = f"the first step ended {entry.resumed_at - entry.detected_at:.2f} s after the fault"
        state.log(f"recovered from {entry.fault.value} by {strategy}, round {entry.round}: {end}")
    if done:
        state.notify_observers()
        state.config_changes.send_snapshot_later(now)
