"""A child process that is one whole sidecar: understudy_sidecar.app, as a pod runs it.

One thing differs from a pod: there is no image from which the launcher could be copied. With --profile it writes a
profile of its time when it ends.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import logging
import pstats
import sys
import time
from pathlib import Path

from benchmarks.child import Answer, run, serve
from benchmarks.rendezvous import job
from understudy_protocol import pod
from understudy_sidecar import process_setup, records
from understudy_sidecar.app import Sidecar
from understudy_sidecar.settings import Settings

PROFILED_LINES = 40
POLL_S = 0.02


def settings(requests: argparse.Namespace) -> Settings:
    return Settings(
        shape=job.shape(requests.actives),
        key=job.KEY,
        operator_key=job.OPERATOR_PUBLIC,
        coordinator_host=requests.service,
        coordinator_port=pod.COORDINATOR_PORT,
        pod_uid=requests.name,
        pod_name=requests.name,
        node=f"node-{requests.name}",
        ip=requests.ip,
        index=None,
        folder=requests.folder,
        state=requests.folder,
        grace_s=30.0,
    )


class LoopLag:
    """How late the loop runs due callbacks, sampled every 5 ms; while the loop is blocked, those samples count too."""

    EVERY_S = 0.005

    def __init__(self) -> None:
        self._lags: list[float] = []
        self._next = 0.0

    async def begin(self) -> Answer:
        self._lags, self._next = [], time.monotonic() + self.EVERY_S
        asyncio.get_running_loop().call_later(self.EVERY_S, self._on_time)
        return {}

    async def received(self) -> Answer:
        """In milliseconds, since `begin`."""
        lags = sorted(self._lags)
        p50, p99 = (1000 * lags[int(len(lags) * share)] for share in (0.5, 0.99))
        return {"p50_ms": round(p50, 2), "p99_ms": round(p99, 2), "max_ms": round(1000 * lags[-1], 2)}

    def _on_time(self) -> None:
        at = time.monotonic()
        while self._next <= at:
            self._lags.append(at - self._next)
            self._next += self.EVERY_S
        asyncio.get_running_loop().call_later(self._next - at, self._on_time)


async def _listening() -> Answer:
    """Returns when members can call."""
    while True:  # the runner enforces the limit
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", pod.COORDINATOR_PORT)
        except OSError:
            await asyncio.sleep(POLL_S)
        else:
            writer.close()
            return {}


async def _run(sidecar: Sidecar) -> None:
    """Run until the runner closes stdin, or the sidecar fails."""
    life = asyncio.create_task(sidecar.run())
    lag = LoopLag()
    requests = asyncio.create_task(serve({"listening": _listening, "lag_begin": lag.begin, "lag": lag.received}))
    await asyncio.wait({life, requests}, return_when=asyncio.FIRST_COMPLETED)
    for task in (requests, life):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--ip", required=True)
    parser.add_argument("--service", required=True, help="where the coordinator's Service leads to")
    parser.add_argument("--actives", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--profile", type=Path)
    requests = parser.parse_args()
    process_setup.prepare()
    logging.basicConfig(level=logging.INFO, format="%(created).6f %(levelname)s %(message)s", stream=sys.stderr)
    records.install_launcher = lambda *_: None  # there is no image from which to copy it
    sidecar = Sidecar(settings(requests))
    if requests.profile is None:
        run(_run(sidecar))
        return
    profile = cProfile.Profile()
    profile.runcall(run, _run(sidecar))
    with requests.profile.open("w") as file:
        pstats.Stats(profile, stream=file).sort_stats("tottime").print_stats(PROFILED_LINES)


if __name__ == "__main__":
    main()
