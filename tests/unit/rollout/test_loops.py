"""Adapters and gateways are not bound to an event loop: a trainer may call asyncio.run once for each step."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.unit.rollout.guarded import TOKEN, guarded
from tests.unit.rollout.model import PATIENT, Cluster
from tests.unit.rollout.sglang_server import SglangServer
from understudy_rollout import Replica, WeightsState, WeightUpdate
from understudy_rollout.engines import SglangEngine
from understudy_rollout.gateway import Gateway


@contextmanager
def served() -> Iterator[Replica]:
    """A server and a gateway in their own thread."""
    ready, over = threading.Event(), asyncio.Event()
    urls: list[str] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        server = SglangServer(Cluster(1).engines["rollout-0"])
        await server.start()
        async with guarded() as site:
            urls.extend([server.url, site.url])
            ready.set()
            await over.wait()
        await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(30)
    yield Replica("rollout-0", SglangEngine(urls[0]), admission=Gateway(urls[1], TOKEN))
    loops[0].call_soon_threadsafe(over.set)
    thread.join(30)


def test_each_step_may_have_its_own_event_loop() -> None:
    with served() as replica:
        for version in ("v1", "v2", "v3"):

            async def step(version: str = version) -> None:
                async with WeightUpdate([replica], version=version, timeouts=PATIENT) as update:
                    await update.load(version)

            asyncio.run(step())
            assert (replica.weights.state, replica.weights.version) == (WeightsState.FRESH, version)
