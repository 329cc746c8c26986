"""The coordinator's state for observers (the operator, usually)."""

from understudy_protocol.enums import RoundToken, Strategy
from understudy_protocol.observer import ForkFallbacks, MemberView, Snapshot
from understudy_sidecar.membership import rollouts, round_progress, rounds
from understudy_sidecar.membership.coordinator_state import CoordinatorState


def take_snapshot(state: CoordinatorState) -> Snapshot:
    """O(members)."""
    members = tuple(
        MemberView(x.uid, x.name, x.node, x.join.index, x.group_rank, x.workers) for x in state.roster.members.values()
    )
    counts = state.recovery_log.counts
    return Snapshot(
        RoundToken(state.term.epoch, state.term.number, state.round.number),
        state.pod_uid,
        members,
        tuple(state.losses.by_uid.values()),
        state.recovery_log.newest(),
        {strategy.value: counts[strategy.value] for strategy in Strategy},
        state.progress,
        rounds.wait_reason(state),
        state.ending.close,
        state.round.size,
        tuple(standby.pod_uid for standby in state.config_changes.standbys),
        tuple(sorted(state.voter_configs.committed.voters)),
        rollouts.view(state),
        _fork_fallbacks(state),
        state.quorum.is_lacking,
        state.fault_history.restarts_left(state.now),
        state.round.stepping_since,
        round_progress.slow_rank(state),
    )


def _fork_fallbacks(state: CoordinatorState) -> ForkFallbacks | None:
    found = [x for x in state.roster.members.values() if x.starts_fresh]
    return ForkFallbacks(len(found), found[0].name, found[0].starts_fresh) if found else None
