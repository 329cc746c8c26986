"""Reports of workers about the rollout servers that they update, and the consequences of a failed update.

Rules: a report of a worker has all that it knows of its replicas; the newest report of each rank counts. An update ends
with the round of its worker: Updating replicas become Uncertain. A failed update that its worker may retry (up to
`update_retries` in a row) is only reported. One more failure depends on the job: with RestartJob it is a fault of the
world that ends the job, because no restart of workers repairs the servers, and failurePolicy decides about the job.
With RestartRollouts the operator acts on the snapshot. Failures while a member leaves or is lost are its consequence.
Without a majority nothing ends: the job may continue under another coordinator.
"""

from dataclasses import replace

from understudy_protocol import membership as m
from understudy_protocol.enums import CloseReason, Fault, OnFailedUpdate
from understudy_protocol.recovery import Cause
from understudy_protocol.rollouts import Rollouts, UpdateFailure
from understudy_sidecar.membership import ending, faults, quorum
from understudy_sidecar.membership.coordinator_state import CoordinatorState, ReplicasReport
from understudy_sidecar.membership.roster import MemberRecord
from understudy_sidecar.membership.round_state import RoundPhase


def on_replicas(state: CoordinatorState, member: MemberRecord, replicas: m.Replicas) -> None:
    known = state.rollouts.pop(replicas.rank, None)
    if known is not None and known.replicas.token > replicas.token:
        state.rollouts[replicas.rank] = known  # a member that has rejoined resends its state
        return
    report = ReplicasReport(replicas, member.name, member.node)
    state.rollouts[replicas.rank] = report  # the newest is the last
    state.notify_observers()
    if replicas.failure is not None and (known is None or known.replicas.failure != replicas.failure):
        state.log(f"rank {replicas.rank} on {member.name}: {_message(replicas.failure)}")


def on_time(state: CoordinatorState, now: float) -> None:
    """End the job if an update of the running round has failed finally."""
    if state.round.phase is not RoundPhase.RUNNING or state.shape.on_failed_update is not OnFailedUpdate.RESTART_JOB:
        return
    if not state.has_majority():
        return  # the report stays, and is checked again once there is a majority
    report = next(
        (x for x in state.rollouts.values() if x.replicas.token == state.round.token and _is_final(state, x)), None
    )
    if report is None or quorum.is_consequence(state, now):
        return
    assert report.replicas.failure is not None
    cause, why = _cause(report), reason(report.replicas.failure, state.shape.update_retries)
    faults.open_fault(state, Fault.WEIGHT_UPDATE, cause, now, why)
    ending.decide(state, CloseReason.FAILED, f"{Fault.WEIGHT_UPDATE.value}: {cause.message}; {why}")


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
    """Why the worker may not retry the update."""
    allowed = "no retry is" if retries == 0 else f"{retries} {'retry is' if retries == 1 else 'retries are'}"
    in_a_row = "" if failure.in_a_row == 1 else f"{failure.in_a_row} updates in a row have failed, and "
    return f"{in_a_row}{allowed} allowed"


def _is_final(state: CoordinatorState, report: ReplicasReport) -> bool:
    failure = report.replicas.failure
    return failure is not None and failure.in_a_row > state.shape.update_retries


def _as_of_now(state: CoordinatorState, replicas: m.Replicas) -> m.Replicas:
    """The counts as of now: a replica that was in an update when its round ended is Uncertain."""
    is_over = replicas.token < state.round.token or state.round.phase in (RoundPhase.WAITING, RoundPhase.CLOSED)
    return replace(replicas, updating=0, uncertain=replicas.uncertain + replicas.updating) if is_over else replicas


def _cause(report: ReplicasReport) -> Cause:
    failure = report.replicas.failure
    assert failure is not None
    return Cause(report.replicas.rank, report.pod, report.node, None, None, _message(failure))


def _message(failure: UpdateFailure) -> str:
    return f"the weights of version {failure.version} were not updated: {failure.message}"
