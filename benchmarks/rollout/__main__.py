"""`make bench-rollout`: the cost of the weight update and of its gateway. Three minutes."""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvloop

from benchmarks.arguments import listed, some_of
from benchmarks.child import CHECKOUT
from benchmarks.goals import UNDERSTUDY
from benchmarks.records import Sample
from benchmarks.report import add_arguments, open_journal, show
from benchmarks.rollout import load, updates
from benchmarks.rollout.goals import GOALS, RATE, REPLICAS

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


def measure(case: str, replicas: int, rate: int, runs: Sequence[int], seconds: float) -> list[Sample]:
    with engines() as port:
        if case == "update-overhead":
            return asyncio.run(updates.overhead(port, replicas, runs))
        if case == "restore":
            return asyncio.run(updates.restore(port, replicas, runs))
        with load.gateway(port) as gateway:
            return uvloop.run(load.measure(port, gateway, rate, seconds, runs))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench-rollout ARGS=", description=__doc__)
    parser.add_argument("--cases", type=listed(CASES), default=CASES, help=some_of(CASES))
    parser.add_argument("--replicas", type=int, default=REPLICAS)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5.0, help="of load in each run of the gateway")
    add_arguments(parser)
    chosen = parser.parse_args(arguments)
    journal = open_journal("rollout", chosen)
    for case in chosen.cases:
        size = RATE if case == "gateway" else chosen.replicas
        runs = [run for run in range(chosen.runs) if not journal.has(UNDERSTUDY, case, size, run)]
        if runs:
            journal.add(measure(case, chosen.replicas, RATE, runs, chosen.seconds))
    journal.close()
    show(journal, GOALS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
