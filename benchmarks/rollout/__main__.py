"""`make bench-rollout`: what the weight update and its gateway cost. build/bench/rollout.json; two minutes."""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvloop

from benchmarks import tables
from benchmarks.arguments import listed, some_of
from benchmarks.child import CHECKOUT
from benchmarks.goals import check
from benchmarks.machine import facts
from benchmarks.records import Sample, sum_up, write_records
from benchmarks.rollout import load, updates
from benchmarks.rollout.goals import GOALS, RATE, REPLICAS

FOLDER = CHECKOUT / "build" / "bench"
CASES = ("update-overhead", "restore", "gateway")


@contextmanager
def engines() -> Iterator[int]:
    """The port of the process with all inference servers."""
    command = [sys.executable, "-m", "benchmarks.rollout.engine"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.communicate()


def measure(cases: Sequence[str], replicas: int, rate: int, runs: int, seconds: float) -> list[Sample]:
    samples: list[Sample] = []
    with engines() as port:
        if "update-overhead" in cases:
            samples += asyncio.run(updates.overhead(port, replicas, runs))
        if "restore" in cases:
            samples += asyncio.run(updates.restore(port, replicas, runs))
        if "gateway" in cases:
            with load.gateway(port) as gateway:
                samples += uvloop.run(load.measure(port, gateway, rate, seconds, runs))
    return samples


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench-rollout ARGS=", description=__doc__)
    parser.add_argument("--cases", type=listed(CASES), default=CASES, help=some_of(CASES))
    parser.add_argument("--replicas", type=int, default=REPLICAS)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5.0, help="of load in each run of the gateway")
    chosen = parser.parse_args(arguments)
    began = time.monotonic()
    samples = measure(chosen.cases, chosen.replicas, RATE, chosen.runs, chosen.seconds)
    records = sum_up(samples)
    write_records(FOLDER / "rollout.json", records)
    ran = "make bench-rollout" + (f' ARGS="{" ".join(arguments)}"' if arguments else "")
    told = {"command": ran, "minutes": f"{(time.monotonic() - began) / 60:.0f}", **facts()}
    (FOLDER / "rollout.machine.json").write_text(json.dumps(told, indent=1) + "\n")
    print(f"median [min … max] (runs)\n\n{tables.plain(tables.record_rows(records))}\n")
    print(f"{tables.plain(tables.goal_rows(check(GOALS, records)))}\n")
    print(f"written: {(FOLDER / 'rollout.json').relative_to(CHECKOUT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
