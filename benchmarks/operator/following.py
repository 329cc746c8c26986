"""The delay from a coordinator's report to the TrainingJob's status: one job with a simulated data plane."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchmarks.operator.sidecars import PlayedJob, Sidecars, with_workers
from benchmarks.operator.watches import Watches
from understudy_protocol.enums import Fault, Strategy, WorkersState
from understudy_protocol.observer import Cause, Lost, Recovery, Snapshot

CHANGES = 5
PAUSE_S = 1.0
#: A coordinator's minimum pause between two snapshots.
SNAPSHOT_S = 0.25


class Following:
    def __init__(self, jobs: Mapping[str, PlayedJob], watches: Watches) -> None:
        (self._job,) = jobs.values()
        self._watches = watches

    @property
    def _status(self) -> dict[str, Any]:
        status: dict[str, Any] = self._watches.jobs.present[self._job.name].get("status", {})
        return status

    async def longest_delay(self, limit_s: float) -> float:
        """The longest delay of some changes, from the coordinator's report to the status with it."""
        delays = []
        for _ in range(CHANGES):
            await asyncio.sleep(PAUSE_S)
            delays.append(await self._reported_round(limit_s))
        return max(delays)

    async def _reported_round(self, limit_s: float) -> float:
        job = self._job
        assert job.snapshot is not None
        at = await job.report(job.next_round(WorkersState.RUNNING, job.snapshot.recoveries))
        return await self._until_round(limit_s) - at

    async def _until_round(self, limit_s: float) -> float:
        result = self._job.round
        return await self._watches.until(
            f"status has round {result}", lambda: int(self._status.get("round", -1)) >= result, limit_s
        )

    async def recover_in_place(self, limit_s: float) -> float:
        """A worker fails, all workers restart in place, and status records the end of the recovery.

        Returns the seconds from the first report of the fault until status has it.
        """
        job = self._job
        assert job.snapshot is not None
        failed = job.snapshot.members[0]
        cause = Cause(failed.group_rank, failed.pod_name, failed.node, 1, None, "RuntimeError: played")
        begun = Recovery(job.round + 1, Fault.PROCESS, Strategy.IN_PLACE, cause, time.time(), None)
        known = job.snapshot.recoveries
        starting = job.next_round(WorkersState.STARTING, (*known, begun))
        took = await self._report_fault(replace(starting, recoveries_by_strategy=_counts(job, begun)), limit_s)
        await asyncio.sleep(SNAPSHOT_S)
        await job.report(with_workers(job.snapshot, WorkersState.RUNNING))
        return await self._resume(begun, took, limit_s)

    async def lose_pod(self, sidecars: Sidecars, limit_s: float) -> float:
        """A pod is lost, the operator replaces it, and status records the end of the recovery. Returns the same. The
        job has at least two pods.
        """
        job = self._job
        assert job.snapshot is not None
        lost, at = next(x for x in job.snapshot.members if x.pod_uid != job.snapshot.pod_uid), time.time()
        cause = Cause(None, lost.pod_name, lost.node, None, None, "its connection ended")
        begun = Recovery(job.round + 1, Fault.POD, None, cause, at, None)
        known = job.snapshot.recoveries
        waiting = with_workers(job.snapshot, WorkersState.IDLE)
        waiting = replace(
            waiting,
            members=tuple(x for x in waiting.members if x.pod_uid != lost.pod_uid),
            lost=(Lost(lost.pod_uid, lost.pod_name, lost.node, Fault.POD, cause.message, at),),
            recoveries=(*known, begun)[-10:],
            waiting_for=f"{job.pods - 1} of {job.pods} members are there",
        )
        took = await self._report_fault(waiting, limit_s)
        begun = replace(begun, strategy=Strategy.POD_RECREATE)
        formed, counts = await sidecars.round_after_loss(job, lost), _counts(job, begun)
        await job.report(replace(formed, recoveries=(*known, begun)[-10:], recoveries_by_strategy=counts))
        return await self._resume(begun, took, limit_s)

    async def _report_fault(self, snapshot: Snapshot, limit_s: float) -> asyncio.Task[float]:
        """Returns a task that ends when status has the newest recovery, with the seconds until then."""
        at, newest = await self._job.report(snapshot), snapshot.recoveries[-1].round

        async def took() -> float:
            def is_recorded() -> bool:
                return bool(self._status.get("lastRecovery", {}).get("round") == newest)

            return await self._watches.until("status has the fault", is_recorded, limit_s) - at

        return asyncio.create_task(took(), name=f"the status of {self._job.name}")

    async def _resume(self, begun: Recovery, took: asyncio.Task[float], limit_s: float) -> float:
        job = self._job
        assert job.snapshot is not None
        await asyncio.sleep(SNAPSHOT_S)
        resumed = replace(begun, resumed_at=time.time())
        await job.report(replace(job.snapshot, recoveries=(*job.snapshot.recoveries[:-1], resumed)))
        await self._watches.until("status has the recovery", self._recovered, limit_s)
        return await took

    def _recovered(self) -> bool:
        last = self._status.get("lastRecovery", {})
        return last.get("round") == self._job.round and "resumedAt" in last

    def forget_callers(self) -> None:
        self._job.seen.clear()

    async def until_followed(self, limit_s: float) -> float:
        """When an operator has called, and its status has the report that it got."""
        await self._watches.until("the operator calls the coordinator", self._job.seen.is_set, limit_s)
        await self._reported_round(limit_s)
        return time.monotonic()


def _counts(job: PlayedJob, recovery: Recovery) -> dict[str, int]:
    """The recoveries by strategy, with this one."""
    assert job.snapshot is not None
    assert recovery.strategy is not None
    counts = job.snapshot.recoveries_by_strategy
    return {**counts, recovery.strategy.value: counts.get(recovery.strategy.value, 0) + 1}
