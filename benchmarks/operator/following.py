"""The delay from a coordinator's report to the TrainingJob's status: one job with a simulated data plane."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchmarks.operator.sidecars import PlayedJob, with_workers
from benchmarks.operator.watches import Watches
from understudy_protocol.enums import Fault, Strategy, WorkersState
from understudy_protocol.observer import Cause, Recovery

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

    async def recover_in_place(self, limit_s: float) -> None:
        """A worker fails, all workers restart in place, and status records the end of the recovery."""
        job = self._job
        assert job.snapshot is not None
        failed = job.snapshot.members[0]
        cause = Cause(failed.group_rank, failed.pod_name, failed.node, 1, None, "RuntimeError: played")
        begun = Recovery(job.round + 1, Fault.PROCESS, Strategy.IN_PLACE, cause, time.time(), None)
        known = job.snapshot.recoveries
        counts = job.snapshot.recoveries_by_strategy
        counts = {**counts, Strategy.IN_PLACE.value: counts.get(Strategy.IN_PLACE.value, 0) + 1}
        starting = job.next_round(WorkersState.STARTING, (*known, begun))
        await job.report(replace(starting, recoveries_by_strategy=counts))
        await asyncio.sleep(SNAPSHOT_S)
        await job.report(with_workers(job.snapshot, WorkersState.RUNNING))
        await asyncio.sleep(SNAPSHOT_S)
        resumed = replace(begun, resumed_at=time.time())
        await job.report(replace(job.snapshot, recoveries=(*known, resumed)[-10:]))
        await self._watches.until("status has the recovery", self._recovered, limit_s)

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
