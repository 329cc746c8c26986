"""Writes the Recovery objects of one job, as plan/status/recovery_history.py decides.

Rules:
- Reconciles never wait for these writes: a task sends them one by one, and always the next write that the newest plan
  asks for. So if faults follow each other fast, states between them are skipped, and the newest state is not delayed.
- A job sends at most BURST writes at once, then WRITES_PER_S. A fault that has left status before its turn gets no
  object.
- The task lists the job's objects before its first write. From then on it knows them from its own writes: no other
  program creates them. It keeps the fields of those that may still change.
- A write without an answer is sent again. A rejected one is logged, and not sent again by this process.
- An object that users have deleted stays deleted until another replica leads, which may create those in status again.
"""

import asyncio
import logging
from collections.abc import Callable

from understudy_operator.apply.pace import Pace
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.ownership import controller_uid, object_uid
from understudy_operator.plan.facts.recovery_objects import (
    RecoveryFields,
    read_recovery,
    recovery_manifest,
    recovery_path,
)
from understudy_operator.plan.intents import RecoveryHistory
from understudy_operator.plan.status.recovery_history import (
    CreateRecovery,
    DeleteRecovery,
    PatchRecovery,
    RecoveryWrite,
    plan_recovery_writes,
)
from understudy_operator.runtime.api import API_FAILURES, Api, ApiError
from understudy_operator.runtime.clock import Backoffs
from understudy_protocol import pod as names

WRITES_PER_S, BURST = 2.0, 40.0
BACKOFFS = Backoffs(longest_s=30.0)
log = logging.getLogger(__name__)


class RecoveryWriter:
    """pace: of all writes of this operator."""

    def __init__(self, api: Api, pace: Pace, steady: Callable[[], float]) -> None:
        self._api, self._pace = api, pace
        self._own_pace = Pace(steady, WRITES_PER_S, BURST)
        self._history = RecoveryHistory({}, 0)
        self._known: dict[str, RecoveryFields | None] | None = None  # None: not listed yet
        self._task: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        return self._task is None or self._task.done()

    def update(self, job: Job, history: RecoveryHistory) -> None:
        """Write these objects soon, in place of those of the previous call."""
        self._history = history
        if self.is_idle and (self._known is None or plan_recovery_writes(history, self._known)):
            self._task = asyncio.create_task(self._run(job), name="recoveries")

    async def stop(self, finish_s: float = 0.0) -> None:
        """Drop the writes that could not be sent in that time, and the known state of the job's objects."""
        task, self._task = self._task, None
        if task is not None:
            if finish_s:
                await asyncio.wait([task], timeout=finish_s)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._known = None

    async def _run(self, job: Job) -> None:
        pauses = iter(BACKOFFS)
        while True:
            try:
                if not await self._write_next(job):
                    return
                pauses = iter(BACKOFFS)
            except API_FAILURES as error:
                log.info("retrying a write of a Recovery of %s/%s: %r", job.namespace, job.name, error)
                await asyncio.sleep(next(pauses))
            except Exception:
                log.exception("a Recovery of %s/%s was not written", job.namespace, job.name)
                return

    async def _write_next(self, job: Job) -> bool:
        """Whether there was one to write. Raises one of API_FAILURES if it must be sent again."""
        if self._known is None:
            self._known = await self._list(job)
        if not plan_recovery_writes(self._history, self._known):
            return False
        namespace, uid = job.namespace, object_uid(job)
        async with self._own_pace.turn(namespace, uid), self._pace.turn(namespace, uid):
            writes = plan_recovery_writes(self._history, self._known)  # the plan may have changed meanwhile
            if writes:
                await self._send(job, writes[0], self._known)
                self._forget_ended(self._known)
        return True

    async def _list(self, job: Job) -> dict[str, RecoveryFields | None]:
        selector = f"{names.LABEL_JOB_UID}={object_uid(job)}"
        try:
            async with self._pace.turn(job.namespace, object_uid(job)):
                listed = (await self._api.list(recovery_path(job.namespace), selector)).items
        except ApiError as error:
            if _must_repeat(error):
                raise
            log.warning("the Recovery objects of %s/%s could not be listed: %r", job.namespace, job.name, error)
            return {}
        own = [raw for raw in listed if controller_uid(raw) == object_uid(job)]
        known: dict[str, RecoveryFields | None] = {raw["metadata"]["name"]: read_recovery(raw) for raw in own}
        self._forget_ended(known)
        return known

    async def _send(self, job: Job, write: RecoveryWrite, known: dict[str, RecoveryFields | None]) -> None:
        path = recovery_path(job.namespace, write.name)
        try:
            match write:
                case CreateRecovery(name, fields):
                    await self._api.create(recovery_path(job.namespace), recovery_manifest(job, name, fields))
                    known[name] = fields
                case PatchRecovery(name, patch, fields):
                    await self._api.merge(path, patch)
                    known[name] = fields
                case DeleteRecovery(name):
                    await self._api.delete(path, {"propagationPolicy": "Background"})
                    known.pop(name)
        except ApiError as error:
            if _must_repeat(error):
                raise
            if error.reason == "AlreadyExists":
                known[write.name] = RecoveryFields()  # by an earlier request without an answer: update all fields
                return
            if error.status != 404 or isinstance(write, CreateRecovery):
                log.warning("the write of Recovery %s/%s was rejected: %r", job.namespace, write.name, error)
            if isinstance(write, DeleteRecovery):
                known.pop(write.name)
            else:
                known[write.name] = None

    def _forget_ended(self, known: dict[str, RecoveryFields | None]) -> None:
        """Drop the fields of objects that have ended and that status does not have any more."""
        for name, fields in known.items():
            if fields is not None and fields.outcome is not None and name not in self._history.objects:
                known[name] = None


def _must_repeat(error: ApiError) -> bool:
    """Whether the API server may have executed the request, or may accept it soon."""
    return error.status >= 500 or (error.status in (409, 429) and error.reason != "AlreadyExists")
