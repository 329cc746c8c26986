"""Requests to one server at a steady rate, without waiting for answers: directly, and through the gateway, in turns.

The client and the server run on uvloop, as the gateway does, to use less of the cores that all three share.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp

from benchmarks.child import CHECKOUT
from benchmarks.goals import UNDERSTUDY
from benchmarks.records import Sample

DIRECT = "direct"
PROMPT = b'{"text": "' + b"y" * 500 + b'"}'


@contextmanager
def gateway(engine_port: int) -> Iterator[int]:
    """The port of a gateway process."""
    with tempfile.TemporaryDirectory(prefix="bench-rollout-") as folder:
        token = Path(folder) / "token"
        token.write_text("secret")
        command = [sys.executable, "-m", "understudy_rollout.gateway", "--engine", f"http://127.0.0.1:{engine_port}"]
        command += ["--host", "127.0.0.1", "--port", "0", "--token-file", str(token)]
        command += ["--state-file", str(Path(folder) / "weights.json"), "--initial-version", "1"]
        env = {"PYTHONPATH": str(CHECKOUT / "sidecar")}
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            found = re.search(r"listening on port (\d+)", line)
            if found is None:
                raise RuntimeError(f"the gateway did not start: {line}{process.stderr.read()}")
            yield int(found[1])
        finally:
            process.terminate()
            process.wait(10)
            process.stderr.close()


async def measure(engine_port: int, gateway_port: int, rate: int, seconds: float, runs: Sequence[int]) -> list[Sample]:
    samples = []
    ports = {DIRECT: engine_port, UNDERSTUDY: gateway_port}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        for port in ports.values():
            await _p99_ms(session, port, rate, 1.0)
        for run in runs:
            p99 = {system: await _p99_ms(session, port, rate, seconds) for system, port in ports.items()}
            samples.append(Sample(DIRECT, "gateway", rate, run, {"p99_ms": p99[DIRECT]}))
            values = {"added_p99_ms": p99[UNDERSTUDY] - p99[DIRECT], "p99_ms": p99[UNDERSTUDY]}
            samples.append(Sample(UNDERSTUDY, "gateway", rate, run, values))
    return samples


async def _p99_ms(session: aiohttp.ClientSession, port: int, rate: int, seconds: float) -> float:
    url = f"http://127.0.0.1:{port}/generate"
    took: list[float] = []

    async def ask(due: float) -> None:
        async with session.post(url, data=PROMPT) as response:
            await response.read()
            response.raise_for_status()
        took.append(time.monotonic() - due)

    start, requests = time.monotonic(), []
    for n in range(round(rate * seconds)):
        due = start + n / rate
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        requests.append(asyncio.ensure_future(ask(due)))
    await asyncio.gather(*requests)
    return sorted(took)[int(len(took) * 0.99)] * 1000
