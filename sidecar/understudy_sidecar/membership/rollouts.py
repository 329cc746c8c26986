"""What workers tell of the rollout servers that they update, and what follows from an update that failed.

Rules: a worker tells all that it knows of its replicas, in place of what it told before: the newest word of each rank
counts. An update lives as long as the round of its worker: what was Updating when that ends is Uncertain. A failed
update that is left to its worker (`update_retries` in a row are) is told and no more. With RestartJob one beyond that
is a fault of the world, and its end: no restart of workers makes the servers whole; what failurePolicy says of the job
does. With RestartRollouts the operator acts, on what the snapshot tells. What fails because a member leaves, or is
gone, is a consequence of that. Without a majority nothing ends: the job may go on under another coordinator.
"""

from dataclasses import replace

from understudy_protocol import membership as m
from understudy_protocol.enums import Fault, OnFailedUpdate
from understudy_protocol.recovery import Cause
from understudy_protocol.rollouts import Rollouts, UpdateFailure
from understudy_sidecar.membership import ending, faults
from understudy_sidecar.membership.coordinator_state import CoordinatorState, Phase, ReplicasReport
from understudy_sidecar.membership.roster import MemberRecord


def on_replicas(state: CoordinatorState, member: MemberRecord, replicas: m.Replicas) -> None:
    known = state.rollouts.pop(replicas.rank, None)
    if known is not None and known.replicas.token > replicas.token:
        state.rollouts[replicas.rank] = known  # a member that has come back brings what it knew
        return
    report = ReplicasReport(replicas, member.name, member.node)
    state.rollouts[replicas.rank] = report  # the newest is the last
    state.version += 1
    if replicas.failure is not None and (known is None or known.replicas.failure != replicas.failure):
        state.log(f"rank {replicas.rank} on {member.name}: {_message(replicas.failure)}")


def on_time(state: CoordinatorState, now: float) -> None:
    """Whether an update of the running round has failed that its worker may not try again."""
    if state.phase is not Phase.RUNNING or state.shape.on_failed_update is not OnFailedUpdate.RESTART_JOB:
        return
    if not state.has_majority():
        return  # the word is kept, and looked at again when a majority is back
    report = next((x for x in state.rollouts.values() if x.replicas.token == state.token and _is_final(state, x)), None)
    if report is None or faults.is_consequence(state, now):
        return
    assert report.replicas.failure is not None
    cause, why = _cause(report), reason(report.replicas.failure, state.shape.update_retries)
    faults.open_fault(state, Fault.WEIGHT_UPDATE, cause, now, why)
    ending.fail(state, f"{Fault.WEIGHT_UPDATE.value}: {cause.message}; {why}")


def view(state: CoordinatorState) -> Rollouts | None:
    """For the snapshot."""
    if not state.rollouts:
        return None
    reports = [_as_of_now(state, x.replicas) for x in state.rollouts.values()]
    failed = [x for x in state.rollouts.values() if x.replicas.failure is not None]
    newest = failed[-1] if failed else None
    return Rollouts(
        sum(x.fresh for x in reports),
        sum(x.updating for x in reports),
        sum(x.uncertain for x in reports),
        next((x.version for x in reversed(reports) if x.version), ""),
        None if newest is None else newest.replicas.failure,
        None if newest is None else _cause(newest),
    )


def reason(failure: UpdateFailure, retries: int) -> str:
    """Why it is not left to the worker any more."""
    allowed = "no retry is" if retries == 0 else f"{retries} {'retry is' if retries == 1 else 'retries are'}"
    in_a_row = "" if failure.in_a_row == 1 else f"{failure.in_a_row} updates in a row have failed, and "
    return f"{in_a_row}{allowed} allowed"


def _is_final(state: CoordinatorState, report: ReplicasReport) -> bool:
    failure = report.replicas.failure
    return failure is not None and failure.in_a_row > state.shape.update_retries


def _as_of_now(state: CoordinatorState, replicas: m.Replicas) -> m.Replicas:
    """Whoever was in an update when its round ended is in none now."""
    is_over = replicas.token < state.token or state.phase in (Phase.WAITING, Phase.CLOSED)
    return replace(replicas, updating=0, uncertain=replicas.uncertain + replicas.updating) if is_over else replicas


def _cause(report: ReplicasReport) -> Cause:
    failure = report.replicas.failure
    assert failure is not None
    return Cause(report.replicas.rank, report.pod, report.node, None, None, _message(failure))


def _message(failure: UpdateFailure) -> str:
    return f"the weights of version {failure.version} were not updated: {failure.message}"
