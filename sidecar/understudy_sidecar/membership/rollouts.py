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
from understudy_protocol.recovery import Cause
from understudy_protocol.rollouts import Rollouts, UpdateFailure
from understudy_protocol.words import Fault, OnFailedUpdate
from understudy_sidecar.membership import ending, faults
from understudy_sidecar.membership.desk import Desk, ReplicasTold, State
from understudy_sidecar.membership.roster import Member


def on_replicas(desk: Desk, member: Member, replicas: m.Replicas) -> None:
    known = desk.rollouts.pop(replicas.rank, None)
    if known is not None and known.replicas.token > replicas.token:
        desk.rollouts[replicas.rank] = known  # a member that has come back brings what it knew
        return
    told = ReplicasTold(replicas, member.name, member.node)
    desk.rollouts[replicas.rank] = told  # the newest is the last
    desk.version += 1
    if replicas.failure is not None and (known is None or known.replicas.failure != replicas.failure):
        desk.say(f"rank {replicas.rank} on {member.name}: {_message(replicas.failure)}")


def on_time(desk: Desk, now: float) -> None:
    """Whether an update of the running round has failed that its worker may not try again."""
    if desk.state is not State.RUNNING or desk.shape.on_failed_update is not OnFailedUpdate.RESTART_JOB:
        return
    if not desk.has_majority():
        return  # the word is kept, and looked at again when a majority is back
    told = next((x for x in desk.rollouts.values() if x.replicas.token == desk.token and _is_final(desk, x)), None)
    if told is None or faults.is_consequence(desk, now):
        return
    assert told.replicas.failure is not None
    cause, why = _cause(told), reason(told.replicas.failure, desk.shape.update_retries)
    faults.open_fault(desk, Fault.WEIGHT_UPDATE, cause, now, why)
    ending.fail(desk, f"{Fault.WEIGHT_UPDATE.value}: {cause.message}; {why}")


def view(desk: Desk) -> Rollouts | None:
    """For the snapshot."""
    if not desk.rollouts:
        return None
    told = [_of_its_round(desk, x.replicas) for x in desk.rollouts.values()]
    failed = [x for x in desk.rollouts.values() if x.replicas.failure is not None]
    newest = failed[-1] if failed else None
    return Rollouts(
        sum(x.fresh for x in told),
        sum(x.updating for x in told),
        sum(x.uncertain for x in told),
        next((x.version for x in reversed(told) if x.version), ""),
        None if newest is None else newest.replicas.failure,
        None if newest is None else _cause(newest),
    )


def reason(failure: UpdateFailure, retries: int) -> str:
    """Why it is not left to the worker any more."""
    allowed = "no retry is" if retries == 0 else f"{retries} {'retry is' if retries == 1 else 'retries are'}"
    in_a_row = "" if failure.in_a_row == 1 else f"{failure.in_a_row} updates in a row have failed, and "
    return f"{in_a_row}{allowed} allowed"


def _is_final(desk: Desk, told: ReplicasTold) -> bool:
    failure = told.replicas.failure
    return failure is not None and failure.in_a_row > desk.shape.update_retries


def _of_its_round(desk: Desk, told: m.Replicas) -> m.Replicas:
    """Whoever was in an update when its round ended is in none now."""
    over = told.token < desk.token or desk.state in (State.WAITING, State.CLOSED)
    return replace(told, updating=0, uncertain=told.uncertain + told.updating) if over else told


def _cause(told: ReplicasTold) -> Cause:
    failure = told.replicas.failure
    assert failure is not None
    return Cause(told.replicas.rank, told.pod, told.node, None, None, _message(failure))


def _message(failure: UpdateFailure) -> str:
    return f"the weights of version {failure.version} were not updated: {failure.message}"
