"""A new coordinator of a job that already trained: it rebuilds its state from the claims in its members' Joins.

Rules: the newest round that any member was in is the previous one; claims of older rounds are ignored. If all ranks of
the previous round are claimed and their workers train, the round continues without a restart. If all are claimed and
some have failed, the same members form the next round. All claims are of an older round if the previous coordinator
formed a newer one, and no pod of that round has joined. The coordinator waits REBUILD_S for missing members. Once all
expected members have joined (all voters except the previous coordinator's pod), it waits only RETURN_S, in which a
crashed sidecar returns, or not at all if the training has broken or stopped anyway. It has stopped if the machine of
the previous coordinator did not respond to any member that has joined, and a step is late in all of them that have
ranks. Then it does not wait for members without ranks either, if enough others have joined. For pods with ranks on the
previous coordinator's node it waits only DOUBT_S, unless a pod of this node has joined: a live member on that node
looks at the same machine, and leaves it as soon as the others. It never waits for a pod that has ended (as the operator
reports) or was evicted. A fault that the previous coordinator had reported is not
reported or charged again. If workers failed while there was no coordinator, it is unknown which failed first.
"""

from dataclasses import dataclass

from understudy_protocol import membership as m
from understudy_protocol.enums import NO_ROUND, Fault, RoundToken, WorkersState
from understudy_protocol.membership import RankHolder
from understudy_protocol.observer import Cause, Lost
from understudy_sidecar.membership import (
    escalation,
    faults,
    joining,
    leaving,
    restoring,
    round_progress,
    worker_faults,
)
from understudy_sidecar.membership.calling import FIRST_WAIT_S
from understudy_sidecar.membership.coordinator_state import CoordinatorState
from understudy_sidecar.membership.coordinator_watch import DOUBT_S
from understudy_sidecar.membership.first_failure import FailureReport, FirstFailure
from understudy_sidecar.membership.recoveries import WORKER_FAULTS
from understudy_sidecar.membership.roster import MemberRecord

#: Longer than a member stays in the pool of another candidate.
REBUILD_S = FIRST_WAIT_S + 2.0
RETURN_S = 5.0
NOT_JOINED = "it did not join the new coordinator"
DISCONNECTED_AGAIN = "it lost its connection to the new coordinator"
_ENDED = (WorkersState.IDLE, WorkersState.FAILED)
_AT_WORK = (WorkersState.STARTING, WorkersState.RUNNING, WorkersState.FINISHED)


@dataclass(frozen=True)
class PreviousRound:
    token: RoundToken  # NO_ROUND if no member claims a round
    size: int  # its members
    members: dict[int, MemberRecord]  # by group rank
    is_complete: bool  # every rank is claimed
    is_training: bool  # complete, and the workers of all claimed ranks run or have finished


def rebuild(state: CoordinatorState, now: float) -> None:
    """REBUILDING: adopt the previous round, or find its missing members."""
    if not _may_have_enough_members(state) and now < state.since + REBUILD_S:
        return
    previous = find_previous_round(state)
    if not previous.is_complete and now < _rebuild_deadline(state, previous):
        return
    _take_over(state, previous)
    state.notify_observers()
    if previous.is_training:
        _adopt(state, now)
        leaving.continue_drain(state, previous.token, now)
        return
    state.round.interrupt((x.uid for x in state.roster.members.values() if x.join.disconnected_s is None), now)
    leaving.continue_drain(state, previous.token, now)
    if not previous.is_complete:
        _replace_missing(state, previous, now)
        return
    if _continues_recovery(state, now):
        return
    members = previous.members.values()
    leaver = next((x for x in members if x.uid in state.roster.leaving), None)
    drained = next((x for x in members if x.join.drain_s is not None), None)
    stopped = next((x for x in members if x.workers is WorkersState.IDLE), None)
    for cause_of_all, text in (
        (leaver, "its pod was asked to end while the job had no coordinator"),
        (drained, "its workers were drained when the job lost its coordinator"),
        (stopped, "its workers were stopped while the job had no coordinator"),  # by its fence
    ):
        if cause_of_all is not None:  # the failures of its peers' workers are a consequence
            cause = faults.cause_of(state, cause_of_all, None, text)
            faults.open_fault(state, Fault.POD, cause, now, at=_disconnected_at(state, now))
            return
    member, failure = _first_failed(state, previous, now)
    text = failure.message if failure else "its workers ended while the job had no coordinator"
    cause = faults.cause_of(state, member, failure, text)
    state.fault_history.on_previous_round_failed(previous.token.round, now)
    worker_faults.open_worker_fault(state, Fault.PROCESS, member, cause, now, keep_reason=escalation.UNCERTAIN)


def _first_failed(
    state: CoordinatorState, previous: PreviousRound, now: float
) -> tuple[MemberRecord, m.WorkerFailed | None]:
    """The member whose worker failed first, by first_failure.py. The failures may be much older than the Joins that
    report them, whose order shows nothing: the earliest time counts as reported first.
    """
    failed = [x for x in previous.members.values() if x.workers is WorkersState.FAILED]
    reported = {x.uid: (x, failure) for x in failed if (failure := x.failure or x.join.failure) is not None}
    reports = [
        FailureReport(uid, faults.cause_of(state, x, failure, failure.message), min(failure.at, now))
        for uid, (x, failure) in reported.items()
    ]
    if not reports:
        return failed[0], None
    earliest, *others = sorted(reports, key=lambda report: report.at)
    failures = FirstFailure(earliest)
    for report in others:
        failures.add(report)
    return reported[failures.first.pod_uid]


def check_times(state: CoordinatorState) -> list[float]:
    """When the previous round may be adopted or interrupted without another event."""
    return [state.since + DOUBT_S, state.since + RETURN_S, state.since + REBUILD_S]


def _replace_missing(state: CoordinatorState, previous: PreviousRound, now: float) -> None:
    """Open one entry for each missing rank holder, unless the previous coordinator had reported its loss."""
    rank_holders, coordinator_uid = _known_rank_holders(state, previous)
    previous_uid, names = state.previous.coordinator_uid, _known_names(state, rank_holders)
    silent = _silent_uids(state, coordinator_uid)
    silent_nodes = {node for uid, (_, node) in names.items() if uid in silent and node}
    expected = state.voter_configs.committed.voters | {
        rank_holder.pod_uid for rank_holder in rank_holders if rank_holder.group_rank not in previous.members
    }
    if now < state.since + REBUILD_S:
        expected -= _dispensable(state, previous) - {previous_uid}
    for uid in sorted(expected - state.roster.members.keys()):
        name, node = names.get(uid, (uid, ""))
        fault = Fault.NODE if uid in silent or node in silent_nodes else Fault.POD
        state.losses.report(Lost(uid, name, node, fault, NOT_JOINED, now))
    # If the round after a fault was formed, the faulty pod was a member of it: its loss is another fault.
    known = {entry.cause.pod for entry in state.recovery_log.open if entry.strategy is None}
    absent = [
        rank_holder
        for rank_holder in rank_holders
        if rank_holder.pod_uid not in state.roster.members and rank_holder.pod_name not in known
    ]
    missing = [rank_holder for rank_holder in absent if rank_holder.group_rank not in previous.members]
    # If a pod is missing, a worker may have failed because of that: it is not charged.
    is_continued, at = _continues_recovery(state, now, may_charge=not missing), _disconnected_at(state, now)
    why, had_ranks = NOT_JOINED, ""
    if not missing and not is_continued and (missing := _disconnected_again(state, previous, rank_holders)):
        why = DISCONNECTED_AGAIN
    elif not missing and not is_continued and (missing := _earlier_rank_holders(state, previous)):
        assert state.previous.leader_snapshot is not None
        round_number = state.previous.leader_snapshot.token.round
        had_ranks = f"; it had these ranks in round {round_number}, and the newest round is unknown"
    for rank_holder in missing:
        has_coordinated = rank_holder.pod_uid in (coordinator_uid, previous_uid)
        coordinated = "it was the coordinator, and " if has_coordinated else ""
        rank = rank_holder.group_rank * state.shape.nproc_per_node
        cause = Cause(rank, rank_holder.pod_name, rank_holder.node, None, None, f"{coordinated}{why}{had_ranks}")
        fault = Fault.NODE if rank_holder.node in silent_nodes else Fault.POD
        worker_entry = state.recovery_log.newest_worker_fault()
        if (
            worker_entry is not None
            and worker_entry.strategy is None
            and not state.fault_history.is_counted(worker_entry.detected_at)
        ):
            state.recovery_log.revise(fault, cause, faults.LOST)  # that worker only failed because this pod was lost
            state.config_changes.send_snapshot_later(now)
        else:
            faults.open_fault(state, fault, cause, now, faults.LOST, at=at)
    if missing or is_continued:
        return
    name, node = ("", "") if previous_uid in state.roster.members else names.get(previous_uid, ("", ""))
    text = f"it was the coordinator, and {NOT_JOINED}; " if name else "the previous coordinator was lost; "
    cause = Cause(None, name, node, None, None, f"{text}which other pods of its round were lost is unknown")
    faults.open_fault(state, Fault.NODE if previous_uid in silent else Fault.POD, cause, now, at=at)


def _is_outdated(state: CoordinatorState, token: RoundToken) -> bool:
    """Whether the previous coordinator formed a newer round, and none of its pods has joined. It may have trained: a
    pod that has joined, and does not claim this round, shows that it did not.
    """
    known = state.previous.leader_snapshot
    if known is None or not known.rank_holders or token >= known.token:
        return False
    return not any(rank_holder.pod_uid in state.roster.members for rank_holder in known.rank_holders)


def _known_names(state: CoordinatorState, rank_holders: tuple[RankHolder, ...]) -> dict[str, tuple[str, str]]:
    """Name and node by pod uid, of these rank holders, those of the leader snapshot, and the previous coordinator."""
    snapshot = state.previous.leader_snapshot
    known = rank_holders if snapshot is None else (*snapshot.rank_holders, *rank_holders)
    names = {rank_holder.pod_uid: (rank_holder.pod_name, rank_holder.node) for rank_holder in known}
    if state.previous.coordinator_uid and snapshot is not None and snapshot.coordinator_pod:
        names.setdefault(state.previous.coordinator_uid, (snapshot.coordinator_pod, snapshot.coordinator_node))
    return names


def _known_rank_holders(state: CoordinatorState, previous: PreviousRound) -> tuple[tuple[RankHolder, ...], str]:
    """The previous round's rank holders, as far as they are known, and its coordinator's uid.

    If no pod claims a rank, all pods of the newest round that the previous coordinator or the operator knew are lost.
    """
    leader_snapshot = state.previous.leader_snapshot
    if leader_snapshot is not None and leader_snapshot.rank_holders:
        unclaimed = not previous.members and leader_snapshot.token.round >= state.round.token.round
        if unclaimed or leader_snapshot.token == previous.token:
            return leader_snapshot.rank_holders, leader_snapshot.coordinator_uid
    appointment = state.previous.appointment
    if appointment is None or appointment.at_least_round != state.round.token.round:
        return (), ""
    return appointment.rank_holders, appointment.coordinator_uid


def _disconnected_again(
    state: CoordinatorState, previous: PreviousRound, rank_holders: tuple[RankHolder, ...]
) -> list[RankHolder]:
    """The holders of the missing ranks that have joined this coordinator and are disconnected now."""
    members = state.roster.members
    missing = [
        rank_holder
        for rank_holder in rank_holders
        if rank_holder.group_rank not in previous.members and rank_holder.pod_uid in members
    ]
    return [rank_holder for rank_holder in missing if members[rank_holder.pod_uid].link is None]


def _earlier_rank_holders(state: CoordinatorState, previous: PreviousRound) -> list[RankHolder]:
    """The holders of the missing ranks in the newest leader snapshot that have not joined."""
    if state.previous.leader_snapshot is None or not previous.members:
        return []
    missing = [
        rank_holder
        for rank_holder in state.previous.leader_snapshot.rank_holders
        if rank_holder.group_rank not in previous.members
    ]
    reported = {entry.cause.pod for entry in state.recovery_log.open}
    gone = [x for x in missing if x.pod_uid not in state.roster.members and x.pod_name not in reported]
    return [rank_holder for rank_holder in gone if rank_holder.group_rank < previous.size]


def _silent_uids(state: CoordinatorState, coordinator_uid: str) -> set[str]:
    """The uids of the pods whose machines stopped responding, as the previous coordinator and its members report.

    The previous coordinator's pod is one of them if no member saw its kernel close a connection.
    """
    found = set() if state.previous.leader_snapshot is None else set(state.previous.leader_snapshot.silent_members)
    if _coordinator_is_silent(state):
        found.add(coordinator_uid or state.previous.coordinator_uid)
    return found


def _coordinator_is_silent(state: CoordinatorState) -> bool:
    joins = [x.join for x in state.roster.members.values() if x.join.disconnected_s is not None]
    return bool(joins) and all(join.disconnected_silently for join in joins)


def _disconnected_at(state: CoordinatorState, now: float) -> float:
    """When the first member lost the previous coordinator, by the duration in its Join.

    If no member had one, when the operator lost it.
    """
    members = state.roster.members.values()
    lost_s = None if state.previous.appointment is None else state.previous.appointment.coordinator_lost_s
    lost_at = now if lost_s is None else state.since - lost_s
    joins = (x.joined_at - x.join.disconnected_s for x in members if x.join.disconnected_s is not None)
    return min(joins, default=lost_at)


def _continues_recovery(state: CoordinatorState, now: float, *, may_charge: bool = True) -> bool:
    """Whether the previous coordinator had begun this recovery: it is one recovery, over both terms."""
    entry = state.recovery_log.without_round()
    if entry is None:
        return False
    state.round_check.request()
    state.log(f"continues a recovery of the previous coordinator: {entry.fault.value} of {entry.cause.pod}")
    active = {x.name: x for x in state.roster.active_members()}
    for waiting in [x for x in state.recovery_log.open if x.strategy is None and x.cause.pod not in active]:
        if waiting.reason not in state.fault_history.evicted.values():
            state.recovery_log.on_loss(waiting.cause.pod, faults.LOST)
    culprit = active.get(entry.cause.pod)
    if (
        may_charge
        and culprit is not None
        and entry.fault in WORKER_FAULTS
        and not state.fault_history.is_counted(entry.detected_at)
    ):
        escalation.count_fault(state, culprit, entry.cause, entry.detected_at, now, keep_reason=escalation.UNCERTAIN)
    return True


def _may_have_enough_members(state: CoordinatorState) -> bool:
    """A cheap first check: members join by the thousand. False only if neither the previous round can be complete, nor
    all expected members can have joined.
    """
    if len(state.roster.connected) >= (state.shape.min_actives or state.shape.actives):
        return True
    return len(state.roster.members) + len(_gone(state)) + len(state.previous.neighbors) >= len(_expected(state))


def _expected(state: CoordinatorState) -> frozenset[str]:
    """uids; empty: not known."""
    return state.previous.running_pods or state.voter_configs.committed.voters


def _gone(state: CoordinatorState) -> set[str]:
    """uids of pods that do not join any more."""
    return {state.previous.coordinator_uid, *state.previous.ended_pods, *state.fault_history.evicted}


def _rebuild_deadline(state: CoordinatorState, previous: PreviousRound) -> float:
    expected, gone = _expected(state), _gone(state)
    missing = expected - state.roster.members.keys() - gone - _dispensable(state, previous)
    if not expected or missing - _silent_neighbors(state, previous):
        return state.since + REBUILD_S
    if missing:
        return state.since + DOUBT_S
    if state.previous.running_pods:
        return state.since
    broken = any(x.workers in _ENDED for x in previous.members.values())
    return state.since + (0.0 if broken or _has_stopped(state, previous) else RETURN_S)


def _has_stopped(state: CoordinatorState, previous: PreviousRound) -> bool:
    """Whether the previous round makes no step without the previous coordinator's machine: no process returns there."""
    members = previous.members.values()
    return bool(members) and all(x.has_stopped for x in members) and _coordinator_is_silent(state)


def _silent_neighbors(state: CoordinatorState, previous: PreviousRound) -> frozenset[str]:
    """If the training has stopped with the previous coordinator's machine: the pods with ranks that were on it."""
    neighbors, members = state.previous.neighbors, state.roster.members.values()
    if not neighbors or not _has_stopped(state, previous):
        return frozenset()
    is_alive = any(member.node == state.previous.coordinator_node for member in members)
    return frozenset() if is_alive else neighbors


def _dispensable(state: CoordinatorState, previous: PreviousRound) -> frozenset[str]:
    """If the training has stopped: the voters without ranks, if there are enough other spares. Only their kernels end
    their connections to the previous coordinator, so they join a few seconds later.
    """
    rank_holders, _ = _known_rank_holders(state, previous)
    if len(rank_holders) != previous.size or not _has_stopped(state, previous):
        return frozenset()
    claimed = {member.uid for member in previous.members.values()}
    spares = [x for x in state.roster.waiting_members() if x.uid not in claimed]
    if len(spares) < previous.size - len(claimed):
        return frozenset()
    return state.voter_configs.committed.voters - {rank_holder.pod_uid for rank_holder in rank_holders}


def _take_over(state: CoordinatorState, previous: PreviousRound) -> None:
    roster = state.roster
    roster.resize(previous.size)
    for rank, member in previous.members.items():
        roster.assign_rank(member, rank, state.domain_of(member))
    # The members know a running round by its token; another coordinator may have used a higher one.
    known = state.previous.leader_snapshot
    tokens = (previous.token, state.round.token, NO_ROUND if known is None else known.token)
    newest = max(tokens, key=lambda token: (token.round, token))
    state.round.take_over(previous.token if previous.is_training else newest, previous.size)
    for member in roster.waiting_members():
        if member.join.group_rank is not None:
            joining.send_standby(state, member, member.join.token)
    newest_begun = previous.token if previous.is_complete else state.round.token
    state.recovery_log.on_round_continued(newest_begun.round)


def _adopt(state: CoordinatorState, now: float) -> None:
    state.round.adopt(state.since)
    state.expect_step(now)
    state.on_members_changed(now)
    state.log(f"round {state.round.token} of the previous coordinator continues")
    for member in state.roster.active_members():
        if member.workers is WorkersState.FINISHED:
            round_progress.on_finished(state, member)
        elif member.workers is WorkersState.STARTING:
            state.roster.expect_start(member)
    restoring.adopt(state, state.roster.active_members())


def find_previous_round(state: CoordinatorState) -> PreviousRound:
    """The round that the connected members come from."""
    actives = state.shape.actives  # its size if no member reports one
    claims = [x for x in state.roster.members.values() if x.join.group_rank is not None and x.link is not None]
    token = max((x.join.token for x in claims), default=NO_ROUND)
    if _is_outdated(state, token):
        claims, token = [], NO_ROUND
    newest = [x for x in claims if x.join.token == token]
    size = max((x.join.group_world_size for x in newest), default=0) or actives
    by_rank = {x.join.group_rank: x for x in newest if x.join.group_rank is not None and x.join.group_rank < size}
    is_complete = len(by_rank) == size
    return PreviousRound(
        token, size, by_rank, is_complete, is_complete and all(x.workers in _AT_WORK for x in by_rank.values())
    )
