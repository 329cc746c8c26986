"""One weight update as a transaction: `async with WeightUpdate(replicas, trainer, version=…) as update:`.

Entering the block executes the steps up to the built group, the body transfers, and leaving the block executes the
other steps (`update_steps`). After any failure (an error, a time limit, a cancellation at any await) every step that
may have begun is undone before the error is raised: on all replicas in parallel, each undo even if others fail. Neither
a second cancellation nor the end of asyncio.run interrupts the undo. Each of its calls has the limit `timeouts.undo`.
The caller gets the first error, with later errors as notes.

A failed update is not rolled back. If the transfer had begun, the replicas' weights are Uncertain afterwards: they can
generate, but their admission stays closed until an update succeeds.
"""

import asyncio
import os
import uuid
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Callable, Optional, Union

from understudy_rollout.engine import Replica, Tensor, Trainer, missing_calls
from understudy_rollout.failures import (
    NothingTransferred,
    StepTimedOut,
    TransferCancelled,
    UpdateInProgress,
    UpdateNotOpen,
    describe,
    note,
)
from understudy_rollout.parallel_calls import Call, run_together, run_uninterrupted
from understudy_rollout.sender import Sender
from understudy_rollout.update_reports import JobLink, fence_of, link_of_this_process
from understudy_rollout.update_steps import ReplicaWeights, Step, Undo, UpdateProgress
from understudy_rollout.weights import Abandon, Begin, Commit, Fence, Group, version_of

TRAINER = "trainer"
ENGINE_CALLS = ("stop_generation", "finish", "flush_cache", "resume_generation")
KV_CALLS = ("release_kv", "resume_kv")
GROUP_CALLS = ("join_group", "receive", "leave_group")
ADMISSION_CALLS = ("close", "join", "confirm", "open", "abandon")
TRAINER_CALLS = ("open_group", "join_group", "send", "leave_group")
EndBlocked = Callable[[Replica, str], Awaitable[None]]


@dataclass(frozen=True)
class Timeouts:
    """In seconds, for the slowest replica. `undo`: for each call that undoes a step."""

    close: float = 60.0
    stop: float = 90.0
    release_kv: float = 60.0
    build_group: float = 120.0
    transfer: float = 600.0
    finalize: float = 120.0
    leave_group: float = 60.0
    resume_kv: float = 60.0
    flush_cache: float = 60.0
    resume: float = 60.0
    open: float = 30.0
    undo: float = 15.0


class WeightUpdate:
    """See the module. Without a trainer there is no group, and the body calls `load` in place of `transfer`.

    version: names the new weights, in printable ASCII; an int such as the step is converted to text. release_kv:
    whether the engines free the memory of their KV caches meanwhile. fence: (epoch, term, round) of the trainer, by
    which gateways reject a trainer that has been replaced; if unset, from UNDERSTUDY_ROUND. end_blocked: called with a
    replica that did not leave its group within its time, to end its server, because nothing else frees it. job: gets
    the reports of the update; if unset, the TrainingJob of this process, if any. The job also ends replicas that stay
    blocked if end_blocked is unset.
    """

    def __init__(
        self,
        replicas: Iterable[Replica],
        trainer: Optional[Trainer] = None,
        *,
        version: Union[str, int],
        release_kv: bool = True,
        fence: Optional[Fence] = None,
        timeouts: Timeouts = Timeouts(),
        end_blocked: Optional[EndBlocked] = None,
        job: Optional[JobLink] = None,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.version = version_of(version)
        self.replicas = tuple(replicas)
        names = [replica.name for replica in self.replicas]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"replicas: expected at least one, with unique names; got: {names}")
        if TRAINER in names:
            raise ValueError(f"replicas: the name {TRAINER!r} is reserved for the sender; rename the replica")
        self._check_calls(trainer, release_kv)
        self._sender = None if trainer is None else Sender(trainer)
        self._release_kv = release_kv
        self._fence = fence_of(os.environ) if fence is None else fence
        self._job = link_of_this_process() if job is None else job
        self._blocked: list[str] = []  # replicas that did not leave the group, and whose servers were not ended
        self._timeouts, self._end_blocked = timeouts, end_blocked
        self._progress = UpdateProgress()
        self._failed: Optional[BaseException] = None
        self._used = self._in_body = False
        self._touched = False  # some replica's weights may be neither the old nor the new ones
        self._transferring: Optional[asyncio.Task[object]] = None  # the task with the running transfer
        self._transfer_over: Optional[asyncio.Event] = None

    async def __aenter__(self) -> "WeightUpdate":
        if self._used:
            raise UpdateNotOpen("this WeightUpdate was already used: create a new one for each update")
        self._claim()
        self._used = True
        try:
            await self._close()
            await self._step(Step.STOP, self._timeouts.stop, lambda replica: replica.engine.stop_generation())
            await self._step(Step.RELEASE_KV, self._timeouts.release_kv, self._release)
            await self._build_group()
        except BaseException as error:
            await self._undo(error)
            raise
        self._in_body = True
        return self

    async def transfer(self, tensors: Sequence[Tensor]) -> None:
        """Let the trainer send these and all replicas receive them. Call it once for each bucket, one at a time."""
        sender = self._sender
        if sender is None:
            raise ValueError("transfer: this update has no trainer; call load, or give WeightUpdate a trainer")
        self._check_open("transfer")
        if not tensors:
            raise ValueError("transfer: expected at least one tensor; got none")
        group = sender.group
        assert group is not None
        await self._transferred(
            {TRAINER: lambda: sender.trainer.send(group, tensors)},
            lambda replica: replica.engine.receive(group, tensors),
        )

    async def load(self, path: str) -> None:
        """Let all replicas load the weights from this folder, which their servers can read."""
        self._check_open("load")
        for replica in self.replicas:
            if missing_calls(replica.engine, ["load"]):
                raise ValueError(f"load: {replica.name}: its engine {type(replica.engine).__name__} has no load")
        await self._transferred({}, lambda replica: replica.engine.load(path))

    async def __aexit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._in_body = False
        cancelled = await run_uninterrupted(self._end_transfer)
        first = self._failed or error or cancelled
        if isinstance(first, TransferCancelled) and error is not None:
            first = error  # the cancellation, or the body's own error from it, such as asyncio.timeout's TimeoutError
        elif isinstance(first, TransferCancelled) and cancelled is not None:
            first = cancelled
        if first is None:
            try:
                await self._complete()
            except BaseException as failure:  # noqa: BLE001 (raised when all is undone)
                first = failure
        if first is None:
            return await self._completed()
        if first is not error and error is not None:
            note(first, f"and the body raised: {describe(error)}")
        await self._undo(first)
        if first is not error:
            raise first
        return None

    async def _completed(self) -> None:
        try:
            works = [] if self._job is None else [partial(self._job.completed, self.version)]
            cancelled = await run_uninterrupted(*works)
        finally:
            self._unclaim()
        if cancelled is not None:
            raise cancelled

    async def _complete(self) -> None:
        if not self._progress.has_begun(Step.TRANSFER):
            raise NothingTransferred("the body called neither transfer nor load: the replicas keep their weights")
        self._progress = self._progress.end()
        await self._step(Step.FINALIZE, self._timeouts.finalize, self._finish)
        await self._leave_group()
        await self._step(Step.RESUME_KV, self._timeouts.resume_kv, self._resume_kv)
        await self._step(Step.FLUSH_CACHE, self._timeouts.flush_cache, lambda replica: replica.engine.flush_cache())
        await self._step(Step.RESUME, self._timeouts.resume, lambda replica: replica.engine.resume_generation())
        await self._step(Step.OPEN, self._timeouts.open, self._open)

    async def _step(self, step: Step, limit_s: float, call: Callable[[Replica], Awaitable[None]]) -> None:
        self._progress = self._progress.begin(step)
        await run_together(step.value, self._each(call), limit_s)
        self._progress = self._progress.end()

    def _each(self, call: Callable[[Replica], Awaitable[None]]) -> dict[str, Call]:
        return {replica.name: partial(call, replica) for replica in self.replicas}

    async def _close(self) -> None:
        begin = Begin(self.id, self.version, self._fence)
        self._progress = self._progress.begin(Step.CLOSE)
        for replica in self.replicas:
            replica.weights.handle(begin)
        if self._job is not None:
            await self._job.begun(self.replicas)
        await run_together(Step.CLOSE.value, self._each(self._close_admission), self._timeouts.close)
        self._progress = self._progress.end()

    async def _close_admission(self, replica: Replica) -> None:
        previous = await replica.admission.close(self.id, self.version, self._fence)
        if previous is None:
            return
        replica.weights.found(previous.weights)
        if previous.group is not None:
            replica.group = previous.group

    async def _join(self, replica: Replica, group: Group, first_rank: int) -> None:
        await replica.admission.join(self.id, group)
        await replica.engine.join_group(group, first_rank)

    async def _finish(self, replica: Replica) -> None:
        await replica.admission.confirm(self.id)
        await replica.engine.finish(self.version)

    async def _release(self, replica: Replica) -> None:
        if self._release_kv:
            await replica.engine.release_kv()

    async def _resume_kv(self, replica: Replica) -> None:
        if self._release_kv:
            await replica.engine.resume_kv()

    async def _open(self, replica: Replica) -> None:
        await replica.admission.open(self.id)
        replica.weights.handle(Commit(self.id))

    async def _build_group(self) -> None:
        self._progress = self._progress.begin(Step.BUILD_GROUP)
        leaving: dict[str, Call] = {x.name: x.leave_group for x in self.replicas if x.group is not None}
        if self._sender is not None and self._sender.has_previous_groups():
            leaving[TRAINER] = self._sender.leave_previous_groups
        if leaving:  # groups that an earlier update, perhaps of a replaced trainer, has not left
            await run_together(Step.BUILD_GROUP.value, leaving, self._timeouts.build_group)
        if self._sender is not None:
            await self._build_group_with(self._sender)
        self._progress = self._progress.end()

    async def _build_group_with(self, sender: Sender) -> None:
        opening = partial(sender.open_group, 1 + sum(replica.ranks for replica in self.replicas))
        await run_together(Step.BUILD_GROUP.value, {TRAINER: opening}, self._timeouts.build_group)
        group = sender.group
        assert group is not None
        calls: dict[str, Call] = {TRAINER: lambda: sender.trainer.join_group(group)}
        first_rank = 1
        for replica in self.replicas:
            replica.group = group
            calls[replica.name] = partial(self._join, replica, group, first_rank)
            first_rank += replica.ranks
        await run_together(Step.BUILD_GROUP.value, calls, self._timeouts.build_group)

    async def _transferred(self, sender: Mapping[str, Call], call: Callable[[Replica], Awaitable[None]]) -> None:
        if self._failed is not None:
            raise self._failed
        if self._transferring is not None:
            self._failed = UpdateInProgress("transfer: another transfer of this update is running: await it first")
            raise self._failed
        if not self._progress.has_begun(Step.TRANSFER):
            self._progress = self._progress.begin(Step.TRANSFER)
        self._transferring, self._transfer_over = asyncio.current_task(), asyncio.Event()
        try:
            await run_together(Step.TRANSFER.value, {**sender, **self._each(call)}, self._timeouts.transfer)
        except asyncio.CancelledError as error:
            cancelled = TransferCancelled("a transfer of this update was cancelled: the update is undone")
            cancelled.__cause__ = error
            self._failed = self._failed or cancelled
            raise
        except BaseException as error:
            self._failed = self._failed or error  # a body that catches it must not commit an incomplete transfer
            raise
        finally:
            self._transferring = None
            self._transfer_over.set()

    async def _end_transfer(self) -> None:
        """End a transfer that still runs in another task of the body, before any undo."""
        if self._transferring is None or self._transfer_over is None:
            return
        if self._failed is None:
            self._failed = TransferCancelled("the body ended while a transfer was running: await transfers")
        self._transferring.cancel()
        await self._transfer_over.wait()

    async def _leave_group(self) -> None:
        self._progress = self._progress.begin(Step.LEAVE_GROUP)
        if self._sender is not None:
            leaving = self._each(lambda replica: replica.leave_group())
            leaving[TRAINER] = self._sender.leave_group
            await run_together(Step.LEAVE_GROUP.value, leaving, self._timeouts.leave_group)
        self._progress = self._progress.end()

    async def _undo(self, first: BaseException) -> None:
        """Undo the steps, and note failed undos on the error."""
        try:
            cancelled = await run_uninterrupted(*self._undos(first))
            cancelled = await run_uninterrupted(partial(self._report_end, first)) or cancelled
            if cancelled is not None and cancelled is not first:
                note(first, "and cancelled while the update was undone; the undo still finished")
        finally:
            self._unclaim()

    async def _report_end(self, first: BaseException) -> None:
        if self._job is None:
            return
        if not self._touched and not isinstance(first, Exception):
            await self._job.called_off()  # a cancellation before the first write is intended, no failure
        else:
            await self._job.failed(self.id, self.version, first, self._blocked)

    def _undos(self, first: BaseException) -> list[Call]:
        owed = self._progress.owed
        undos: list[Call] = [partial(self._undo_replica, replica, owed, first) for replica in self.replicas]
        if self._sender is not None and self._sender.is_open and Undo.LEAVE_GROUP in owed:
            undos.append(partial(self._undo_sender, self._sender, first))
        return undos

    async def _undo_sender(self, sender: Sender, first: BaseException) -> None:
        await self._try(Undo.LEAVE_GROUP, TRAINER, sender.leave_group, first, self._timeouts.undo)

    async def _undo_replica(self, replica: Replica, owed: Sequence[Undo], first: BaseException) -> None:
        engine = replica.engine
        calls: dict[Undo, Call] = {
            Undo.FLUSH_CACHE: lambda: engine.flush_cache(),  # a lambda, so that a failing attribute lookup is noted too
            Undo.RESUME_GENERATION: lambda: engine.resume_generation(),
        }
        if replica.group is not None:
            calls[Undo.LEAVE_GROUP] = replica.leave_group
        if self._release_kv:
            calls[Undo.RESUME_KV] = lambda: engine.resume_kv()
        failed: dict[Undo, Exception] = {}
        limit_s = self._timeouts.undo
        for undo in owed:
            if undo not in calls:
                continue
            error = await self._try(undo, replica.name, calls[undo], first, limit_s)
            if error is not None:
                failed[undo] = error
            if isinstance(error, StepTimedOut):  # a silent server gets less time for the rest
                limit_s = self._timeouts.undo / 5
        blocked = failed.get(Undo.LEAVE_GROUP)
        if isinstance(blocked, StepTimedOut):
            await self._end(replica, blocked, first)
        if Undo.SETTLE in owed:
            await self._settle(replica, failed, first)

    async def _end(self, replica: Replica, blocked: StepTimedOut, first: BaseException) -> None:
        """The replica is blocked in the group: end its server."""
        if self._end_blocked is not None:
            ending = partial(self._end_blocked, replica, f"it does not leave the group of update {self.id}: {blocked}")
            if await self._try(Undo.LEAVE_GROUP, replica.name, ending, first, self._timeouts.undo) is None:
                return
        if replica.name not in self._blocked:
            self._blocked.append(replica.name)

    async def _settle(self, replica: Replica, failed: Mapping[Undo, Exception], first: BaseException) -> None:
        """The last undo: report the state of the replica's weights."""
        weights, commits = self._progress.replica_weights, False
        if failed:
            undos = ", ".join(undo.value for undo in failed)
            reason = (
                f"the update to version {self.version} failed, and could not be undone ({undos}): {describe(first)}"
            )
        else:
            reason = f"the transfer of version {self.version} failed: {describe(first)}"
            commits = weights is ReplicaWeights.NEW
        touched = bool(failed) or weights is ReplicaWeights.MIXED
        report = partial(replica.admission.abandon, self.id, touched, reason)
        if commits:
            report = partial(replica.admission.open, self.id)
        error = await self._try(Undo.SETTLE, replica.name, report, first, self._timeouts.undo)
        self._touched = self._touched or touched or error is not None
        if replica.weights.update != self.id:
            return  # the update never began on this replica
        if error is None and commits:
            replica.weights.handle(Commit(self.id))
        else:
            details = f"{reason}; the report to its gateway failed: {describe(error)}" if error is not None else reason
            replica.weights.handle(Abandon(self.id, touched or error is not None, details))

    async def _try(
        self, undo: Undo, side: str, call: Call, first: BaseException, limit_s: float
    ) -> Optional[Exception]:
        try:
            await run_together(f"undo: {undo.value}", {side: call}, limit_s)
        except Exception as error:  # noqa: BLE001 (the other undos are tried anyway)
            note(first, f"and undo: {undo.value}, {side}: {describe(error)}")
            return error
        return None

    def _check_calls(self, trainer: Optional[Trainer], release_kv: bool) -> None:
        """Reject missing methods now, because during an undo they could not be called."""
        calls = ENGINE_CALLS + (KV_CALLS if release_kv else ()) + (GROUP_CALLS if trainer is not None else ())
        sides: list[tuple[str, object, Sequence[str]]] = []
        for replica in self.replicas:
            sides.append((f"{replica.name}: its engine", replica.engine, calls))
            sides.append((f"{replica.name}: its admission", replica.admission, ADMISSION_CALLS))
        if trainer is not None:
            sides.append((f"{TRAINER}:", trainer, TRAINER_CALLS))
        for name, side, needed in sides:
            missing = missing_calls(side, needed)
            if missing:
                raise ValueError(f"{name} {type(side).__name__} has no {missing}: this update needs it")

    def _check_open(self, call: str) -> None:
        if not self._in_body:
            raise UpdateNotOpen(f"{call}: call it in the body of `async with WeightUpdate(…) as update:`, not outside")

    def _claim(self) -> None:
        busy = [replica.name for replica in self.replicas if replica.updated_by is not None]
        if busy:
            raise UpdateInProgress(f"{', '.join(busy)}: another update is running; wait until it ends")
        for replica in self.replicas:
            replica.updated_by = self.id

    def _unclaim(self) -> None:
        if self._sender is not None:
            self._sender.end()
        for replica in self.replicas:
            replica.updated_by = None
