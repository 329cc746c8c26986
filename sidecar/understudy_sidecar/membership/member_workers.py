"""The workers of this pod: the round that they belong to, their reports, and the fence.

Rules: messages are ordered by their token: the member drops those of other rounds than its newest, except for the
exceptions of workers that a newer round has replaced. Each member sends the first step of a round. Only the member of
rank 0 sends the later steps: O(1) for the coordinator. A step after a reported hang, or after a Join of a stopped
training, is sent too: it cancels that report. If no coordinator has renewed the lease for the fence time, the launcher
stops the workers.
"""

from dataclasses import replace

from understudy_protocol import launcher as l
from understudy_protocol import membership as m
from understudy_protocol.enums import NO_ROUND, NO_TERM, RoundToken, Term, WorkersState
from understudy_protocol.snapshots import SavedSteps, SnapshotAge
from understudy_sidecar.membership import member_link
from understudy_sidecar.membership.member_state import MembershipState, MemberState


def on_hello(me: MemberState, hello: l.LauncherHello) -> None:
    workers = me.workers
    if hello.token > workers.token:  # a restarted sidecar learns here which round runs
        workers.token, workers.group_rank = hello.token, hello.group_rank
    if hello.token == workers.token:  # not if its rank was given away since
        workers.state = hello.workers
    workers.master_port, workers.store_port = hello.master_port, hello.store_port
    workers.stepped, workers.fetched_since = hello.stepped, hello.fetched_since
    _on_hello_saved(me, hello)
    if workers.fork_fallback_reason:  # the launcher reports it again after its hello
        _on_fork_fallback(me, "")


def on_launcher_down(me: MemberState) -> None:
    me.workers.state = WorkersState.IDLE


def on_message(me: MemberState, message: object, now: float) -> None:
    """A message of the launcher about its workers."""
    workers = me.workers
    match message:
        case l.ForkFallback(reason):
            _on_fork_fallback(me, reason)
        case l.Learned() | l.SnapshotsStored():
            _on_pod_info(me, message)
        case l.NextPort(port, store_port):
            workers.master_port, workers.store_port = port, store_port
            me.send(m.Port(port, store_port))
        case l.WorkersStarted(token, saved, fetched_since) if token == workers.token:
            workers.state, workers.fetched_since = WorkersState.RUNNING, fetched_since
            workers.saved = _restorable(me, saved)
            report_start(me)
        case l.WorkersFinished(token) if token == workers.token:
            workers.state = WorkersState.FINISHED
            me.send(m.Finished(token))
        case l.WorkersDrained(token) if token == workers.token:
            if workers.state is not WorkersState.FINISHED:
                workers.state = WorkersState.IDLE
        case l.WorkerExited(token, local_rank, exit_code, signal, text, at, traceback) if token == workers.token:
            _on_failure(me, m.WorkerFailed(token, local_rank, exit_code, signal, text, at, traceback), now)
        case l.Stepped() if message.token == workers.token:
            _on_step(me, message, now)
        case l.CollectiveTimes(token, local_rank, window, step_ns, entered, delays_ns) if token == workers.token:
            me.send(m.CollectiveTimes(token, local_rank, window, step_ns, entered, delays_ns))
        case l.Hung(token, local_rank, step, at, silent_s) if token == workers.token:
            workers.hang_is_reported = True
            me.send(m.Hung(token, local_rank, step, at, silent_s))
        case _:
            pass  # of a round that is over


def on_raised(me: MemberState, raised: l.WorkerRaised) -> None:
    """Also of a worker that a newer round replaces."""
    at = me.now - raised.age_s
    report = m.WorkerRaised(raised.token, raised.local_rank, raised.message, raised.age_s, raised.traceback, at)
    if raised.token == me.workers.token and me.workers.raised is None:
        me.workers.raised = report, me.now
    if raised.token <= me.workers.token:
        me.send(report)


def report_start(me: MemberState) -> None:
    """Send Started, once the copies that this pod keeps are known too: a Join before that does not report them."""
    workers, copies = me.workers, me.copies
    if workers.state is WorkersState.RUNNING and (copies.plan is None or copies.kept is not None):
        me.send(m.Started(workers.token, workers.saved, copies.kept or ()))


def on_copies(me: MemberState) -> None:
    """The edge has reported the snapshots that fetches have overwritten."""
    me.workers.saved = _restorable(me, me.workers.saved)


def on_replicas(me: MemberState, replicas: m.Replicas) -> None:
    """A worker reports the rollout servers that it updates."""
    if replicas.token != me.workers.token:
        me.log(f"ignored a report about rollouts from a worker of round {replicas.token}")
        return
    me.workers.replicas[replicas.rank] = replicas
    me.send(replicas)


def on_joined(me: MemberState) -> None:
    """Send what the Join does not report."""
    for replicas in me.workers.replicas.values():
        me.answer(replicas)
    if me.workers.raised is not None:  # the previous coordinator may have been lost before it had this report
        raised, at = me.workers.raised
        me.send(replace(raised, age_s=raised.age_s + me.now - at))
    if me.workers.fork_fallback_reason:
        me.send(m.ForkFallback(me.workers.fork_fallback_reason))
    _send_learned(me)


def offer_store(me: MemberState, term: Term) -> None:
    """Each coordinator gets a new store: two coordinators that do not know of each other may give two rounds the same
    number.
    """
    workers = me.workers
    if term == workers.store_term:
        me.send(m.Port(workers.master_port, workers.store_port))  # the Join does not report it
    elif workers.store_term is not None or me.link.joined_term != NO_TERM:
        workers.store_port = 0
        me.order(l.RenewStore())
    workers.store_term = term


def on_assign(me: MemberState, assign: m.Assign) -> None:
    workers = me.workers
    if assign.token < workers.token:
        me.log(f"ignored an assignment of round {assign.token}: round {workers.token} is newer")
        return
    if assign.token > workers.token:
        workers.token, workers.group_rank, workers.saved = assign.token, assign.group_rank, None
        workers.group_world_size, workers.state, workers.failure = assign.group_world_size, WorkersState.STARTING, None
        workers.drained_until = workers.raised = None
        workers.steps.new_round()
        if assign.agent_store and assign.group_rank == 0:
            workers.store_port = 0  # a store is used for one round
        me.order(_start(assign))
        me.launcher.devices.on_workers(me.now)
        me.log(f"round {assign.token}: group rank {assign.group_rank} ({assign.reason})")
    me.answer(m.Ack(assign.token))


def on_drain(me: MemberState, drain: m.Drain, now: float) -> None:
    me.workers.drained_until = now + drain.grace_s
    me.order(l.DrainWorkers(drain.token, drain.grace_s))


def on_restore(me: MemberState, restore: m.Restore) -> None:
    """The coordinator's choice for the newest round of this pod."""
    workers = me.workers
    if workers.saved is not None and workers.saved.choice is None:
        workers.saved = replace(workers.saved, choice=restore.choice)
        me.order(l.Restore(restore.token, restore.choice))


def on_standby(me: MemberState, token: RoundToken) -> None:
    me.workers.replaced = max(me.workers.replaced, token)
    me.workers.group_rank, me.workers.failure = None, None
    stop(me, "their round is over, and the pod waits as a spare")


def has_ranks(me: MemberState, token: RoundToken) -> bool:
    """Whether this round is the pod's newest, and it has ranks in it."""
    return token == me.workers.token and me.workers.group_rank is not None


def fenced_at(me: MemberState) -> float | None:
    """When the workers have to stop unless the lease is renewed; None if no time is set, or none train."""
    is_training = me.workers.state in (WorkersState.STARTING, WorkersState.RUNNING)
    is_member = me.end.closed is None and me.state in (MembershipState.DISCONNECTED, MembershipState.JOINED)
    has_fence = is_training and is_member and me.identity.fence_s > 0
    return me.lease.renewed_at + me.identity.fence_s if has_fence else None


def fence(me: MemberState, now: float) -> None:
    if fenced_at(me) is not None and now - me.lease.renewed_at >= me.identity.fence_s:
        stop(me, f"no coordinator has renewed the lease for {now - me.lease.renewed_at:.0f} s")


def _on_hello_saved(me: MemberState, hello: l.LauncherHello) -> None:
    """The launcher may have missed a Restore while it was disconnected."""
    known = me.workers.saved
    if hello.token != me.workers.token:
        return
    if hello.saved is not None and hello.saved.choice is None and known is not None and known.choice is not None:
        me.order(l.Restore(hello.token, known.choice))
    else:
        me.workers.saved = _restorable(me, hello.saved)


def _restorable(me: MemberState, saved: SavedSteps | None) -> SavedSteps | None:
    """The snapshots that this pod can restore: its own and the fetched ones that count. Excluded are snapshots that
    fetches have overwritten, and snapshots of rounds after which the training went on without this pod: a later
    coordinator may not know of the round that replaced them.
    """
    if saved is None:
        return None
    copies, since = me.copies, me.workers.fetched_since
    whole = {*saved.whole, *(x.saved for x in copies.fetched if NO_ROUND < since <= x.token)}
    whole = set() if copies.all_overwritten else whole - copies.overwritten
    return replace(saved, whole=tuple(sorted(step for step in whole if step.token >= me.workers.replaced)))


def _on_failure(me: MemberState, failure: m.WorkerFailed, now: float) -> None:
    me.workers.state = WorkersState.FAILED
    me.workers.failure = me.workers.failure or failure
    me.launcher.devices.on_workers(now)
    member_link.on_fault_sent(me, now)
    me.send(failure)


def stepped_s(me: MemberState, token: RoundToken, now: float) -> float | None:
    """The seconds since this pod's workers reported a step of that round; None if they have not."""
    last = me.workers.steps.last_step_at
    return None if last is None or me.workers.stepped != token else now - last


def _on_step(me: MemberState, report: l.Stepped, now: float) -> None:
    workers = me.workers
    workers.stepped = report.token
    workers.steps.on_step(report.median_step_s, now)
    is_first = workers.first_step_sent < report.token
    if is_first or workers.group_rank == 0 or workers.hang_is_reported or me.link.joined_stopped:
        workers.first_step_sent, workers.hang_is_reported = report.token, False
        member_link.on_step_sent(me)
        me.send(
            m.Progress(
                report.token,
                report.step,
                report.total,
                report.median_step_s,
                report.at,
                report.pause_s,
                report.is_counted,
                report.since_first_s,
                report.snapshot,
                _copied(me, now),
            )
        )


def _copied(me: MemberState, now: float) -> SnapshotAge | None:
    """Only of the running round: the pods that kept the copies of an earlier one may be lost."""
    copied = me.copies.newest
    if copied is None or copied.saved.token != me.workers.token:
        return None
    return SnapshotAge(copied.saved.step, max(0.0, now - copied.saved_at))


def _on_fork_fallback(me: MemberState, reason: str) -> None:
    me.workers.fork_fallback_reason = reason
    me.send(m.ForkFallback(reason))


def _on_pod_info(me: MemberState, message: l.Learned | l.SnapshotsStored) -> None:
    match message:
        case l.Learned(modules):
            me.workers.learned_modules = modules
            _send_learned(me)
        case l.SnapshotsStored():
            me.workers.stored = message


def _send_learned(me: MemberState) -> None:
    """One pod is enough: the workers of all ranks import the same, and rank 0 perhaps more."""
    if me.workers.learned_modules and me.workers.group_rank == 0:
        me.send(m.Learned(me.workers.learned_modules))


def stop(me: MemberState, reason: str) -> None:
    """Do nothing if none runs."""
    if me.workers.state is WorkersState.IDLE:
        return
    me.workers.state = WorkersState.IDLE
    me.order(l.StopWorkers(reason))
    me.log(f"stops its workers: {reason}")


def _start(assign: m.Assign) -> l.StartWorkers:
    return l.StartWorkers(
        assign.token,
        assign.group_rank,
        assign.group_world_size,
        assign.rank_offset,
        assign.world_size,
        assign.master_addr,
        assign.master_port,
        assign.agent_store,
    )
