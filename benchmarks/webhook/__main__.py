"""`make bench-webhook`: the duration of an injection, one pod at a time, and while hostile callers send requests.
Two minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from benchmarks.child import CHECKOUT
from benchmarks.goals import UNDERSTUDY
from benchmarks.machine import Usage
from benchmarks.records import Sample
from benchmarks.report import add_arguments, open_journal, show
from benchmarks.webhook.goals import GOALS, HOSTILE, PODS

#: The pod of a torchrun in bash, with the other containers, variables and volumes of a real one.
POD = CHECKOUT / "tests" / "unit" / "webhook" / "pods" / "torchrun.yaml"
IMAGE = "example.com/sidecar:1"
ATTACK_S = 10.0
ALONE = ("inject", "reinvoke")
ATTACKED = "attacked"
Keep = Callable[[list[Sample]], None]
#: A server in a separate process: it shares no interpreter with its callers.
SERVER = (
    "import asyncio, sys; from benchmarks.webhook.server import serve; asyncio.run(serve(sys.argv[1], sys.argv[2]))"
)


def a_pod() -> dict[str, Any]:
    pod: dict[str, Any] = yaml.safe_load(POD.read_text())
    trainer = pod["spec"]["containers"][0]
    trainer["env"] += [{"name": f"VARIABLE_{number}", "value": "x" * 80} for number in range(40)]
    pod["spec"]["volumes"] = [{"name": f"volume-{number}", "emptyDir": {}} for number in range(10)]
    pod["spec"]["containers"] += [{"name": f"other-{number}", "image": "x:1", "command": ["x"]} for number in range(3)]
    return pod


def review(pod: dict[str, Any]) -> bytes:
    request = {"uid": "u", "kind": {"kind": "Pod"}, "object": pod}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


@asynccontextmanager
async def server(folder: Path) -> AsyncIterator[tuple[int, int, ssl.SSLContext]]:
    """The server's pid, its port, and a context that trusts its certificate."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, str(folder), IMAGE, stdout=asyncio.subprocess.PIPE, cwd=CHECKOUT
    )
    assert process.stdout is not None
    try:
        port = int(await process.stdout.readline())
        yield process.pid, port, ssl.create_default_context(cafile=str(folder / "ca.crt"))
    finally:
        process.kill()
        await process.wait()


async def times_ms(port: int, context: ssl.SSLContext, body: bytes, pods: int) -> list[float]:
    taken = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        for number in range(pods + pods // 10):
            began = time.perf_counter()
            async with session.post(f"https://localhost:{port}/mutate", data=body) as answer:
                result = await answer.read()
            if number >= pods // 10:  # the first ones are a warm-up
                taken.append(1000 * (time.perf_counter() - began))
            assert b'"allowed": true' in result, result[:500]
    return taken


async def measure(pods: int, runs: Sequence[int], keep: Keep) -> None:
    from understudy_operator.plan.injection.injected_pods import inject

    cases = dict(zip(ALONE, (a_pod(), inject(a_pod(), IMAGE).pod), strict=True))
    with tempfile.TemporaryDirectory() as folder:
        async with server(Path(folder)) as (pid, port, context):
            for run in runs:
                samples = []
                for case, pod in cases.items():
                    before = Usage.of(pid)
                    taken = await times_ms(port, context, review(pod), pods)
                    after = Usage.of(pid)
                    values = {
                        "p99_ms": statistics.quantiles(taken, n=100)[98],
                        "cpu_ms": 1000 * (after.cpu_s - before.cpu_s) / (pods + pods // 10),
                        "peak_rss_mb": after.peak_rss_mb,
                    }
                    samples.append(Sample(UNDERSTUDY, case, pods, run, values))
                keep(samples)


async def measure_attacked(runs: Sequence[int], keep: Keep) -> None:
    """A request every 0.1 s, each on a new connection, while hostile callers open as many connections as they can.

    The server has a core of its own. Hostile pods run on other cores too, so they take the server's time only by what
    they send.
    """
    body = review(a_pod())
    first, *others = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        for run in runs:
            async with server(Path(folder)) as (pid, port, context):
                words = (str(port), str(HOSTILE), str(ATTACK_S))
                attack = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "benchmarks.webhook.hostile", *words, cwd=CHECKOUT
                )
                os.sched_setaffinity(pid, {first})
                os.sched_setaffinity(attack.pid, others or {first})
                taken = []
                while attack.returncode is None:
                    try:
                        taken += await times_ms(port, context, body, 1)
                    except aiohttp.ClientError:
                        taken.append(1000 * ATTACK_S)  # dropped: as bad as an answer after the attack
                    await asyncio.sleep(0.1)
                values = {"max_ms": max(taken), "peak_rss_mb": Usage.of(pid).peak_rss_mb}
                keep([Sample(UNDERSTUDY, ATTACKED, HOSTILE, run, values)])


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench-webhook ARGS=", description=__doc__)
    parser.add_argument("--pods", type=int, default=PODS)
    parser.add_argument("--runs", type=int, default=5)
    add_arguments(parser)
    chosen = parser.parse_args(arguments)
    journal = open_journal("webhook", chosen)

    def left(cases: Sequence[str], size: int) -> list[int]:
        return [
            run for run in range(chosen.runs) if not all(journal.has(UNDERSTUDY, case, size, run) for case in cases)
        ]

    try:
        if runs := left(ALONE, chosen.pods):
            asyncio.run(measure(chosen.pods, runs, journal.add))
        asyncio.run(measure_attacked(left([ATTACKED], HOSTILE), journal.add))
    finally:
        journal.close()
    show(journal, GOALS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
