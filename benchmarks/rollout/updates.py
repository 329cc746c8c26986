"""Updates of many replicas over HTTP: as a transaction, as the bare calls that it makes, and one that fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from benchmarks.goals import UNDERSTUDY
from benchmarks.records import Sample
from benchmarks.rollout.goals import BARE
from understudy_rollout import Replica, WeightUpdate
from understudy_rollout.engines import SglangEngine
from understudy_rollout.failures import EngineRefused

SLOWEST_S = 1.0
RESTORE = ("beyond_slowest_s", "seconds")


def replicas(port: int, number: int) -> list[Replica]:
    return [Replica(f"rollout-{n}", SglangEngine(f"http://127.0.0.1:{port}/{n}")) for n in range(number)]


async def overhead(port: int, number: int, runs: Sequence[int]) -> list[Sample]:
    """In turns. The first update of each is not counted."""
    samples = []
    some = replicas(port, number)
    for run in (-1, *runs):
        for system, update in ((UNDERSTUDY, _update), (BARE, _bare)):
            before = time.monotonic()
            await update(some)
            if run >= 0:
                took_s = time.monotonic() - before
                samples.append(Sample(system, "update-overhead", number, run, {"seconds": took_s}))
    return samples


async def _update(some: list[Replica]) -> None:
    async with WeightUpdate(some, version="1") as update:
        await update.load("weights")


async def _bare(some: list[Replica]) -> None:
    """The same calls in the same order, without a transaction."""
    engines = [replica.engine for replica in some]
    await asyncio.gather(*(engine.stop_generation() for engine in engines))
    await asyncio.gather(*(engine.release_kv() for engine in engines))
    await asyncio.gather(*(engine.load("weights") for engine in engines))
    await asyncio.gather(*(engine.finish("1") for engine in engines))
    await asyncio.gather(*(engine.resume_kv() for engine in engines))
    await asyncio.gather(*(engine.flush_cache() for engine in engines))
    await asyncio.gather(*(engine.resume_generation() for engine in engines))


async def restore(port: int, number: int, runs: Sequence[int]) -> list[Sample]:
    """The time from a failed transfer to its error. One replica takes SLOWEST_S to get its KV cache back."""
    samples = []
    some = replicas(port, number)
    for run in runs:
        first, last = some[0].engine, some[-1].engine
        assert isinstance(first, SglangEngine)
        assert isinstance(last, SglangEngine)
        await first.server.post("/slow", params={"path": "/resume_memory_occupation", "seconds": str(SLOWEST_S)})
        await last.server.post("/slow", params={"path": "/update_weights_from_disk", "seconds": "-1"})
        failed = 0.0
        with suppress(EngineRefused):  # the failure that this run configured
            async with WeightUpdate(some, version="1") as update:
                try:
                    await update.load("weights")
                finally:
                    failed = time.monotonic()
        took_s = time.monotonic() - failed
        values = {"beyond_slowest_s": took_s - SLOWEST_S, "seconds": took_s}
        samples.append(Sample(UNDERSTUDY, "restore", number, run, values))
    return samples
