"""`make bench-rollout`: the cost of the weight update and of its gateway. Ten minutes."""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import uvloop

from benchmarks.arguments import listed, some_of
from benchmarks.child import CHECKOUT
from benchmarks.goals import UNDERSTUDY
from benchmarks.records import Sample
from benchmarks.report import add_arguments, open_journal, show
from benchmarks.rollout import load, updates
from benchmarks.rollout.goals import GOALS, NGINX, RATE, REPLICAS, gateway_case
from benchmarks.rollout.proxies import Proxies, gateways, nginxes
from tests.cluster.commands import Progress
from tests.cluster.paths import Paths
from tests.cluster.unit_tools import NGINX as NGINX_PROGRAM

GATEWAY = "gateway"
CASES = ("update-overhead", "restore", GATEWAY)
#: The number of servers, and the rates of requests to all of them together.
RATES = {1: (100, RATE, 1000, 2000), REPLICAS: (RATE, 2000)}


@contextmanager
def child(module: str, *arguments: str) -> Iterator[str]:
    """The first line of a process with servers."""
    command = [sys.executable, "-m", f"benchmarks.rollout.{module}", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline()
        finally:
            process.communicate()


def measure(case: str, replicas: int, runs: Sequence[int]) -> list[Sample]:
    """A case of updates."""
    with child("engine") as port:
        measured = updates.overhead if case == "update-overhead" else updates.restore
        return asyncio.run(measured(int(port), replicas, runs))


def measure_gateway(
    servers: int, rates: Sequence[int], seconds: float, missing: Callable[[str, int], Sequence[int]]
) -> Iterator[list[Sample]]:
    """missing: returns the runs to measure, by the case and the rate."""
    with child("servers", str(servers)) as line:
        ports = json.loads(line)
        with gateways(ports) as ours, nginxes(ports) as peers:
            systems = {load.DIRECT: Proxies([], ports), UNDERSTUDY: ours, NGINX: peers}
            for case, streamed in ((gateway_case(servers, x), x) for x in (False, True)):
                for rate in rates:
                    if runs := missing(case, rate):
                        yield uvloop.run(load.measure(case, systems, rate, seconds, runs, streamed=streamed))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench-rollout ARGS=", description=__doc__)
    parser.add_argument("--cases", type=listed(CASES), default=CASES, help=some_of(CASES))
    parser.add_argument("--replicas", type=int, default=REPLICAS)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of load for each system in each run of the gateway")
    add_arguments(parser)
    chosen = parser.parse_args(arguments)
    if GATEWAY in chosen.cases:
        NGINX_PROGRAM.ensure(Paths.from_environment(), Progress())
    journal = open_journal("rollout", chosen)

    def missing(case: str, size: int) -> list[int]:
        return [run for run in range(chosen.runs) if not journal.has(UNDERSTUDY, case, size, run)]

    for case in chosen.cases:
        if case == GATEWAY:
            for servers, rates in RATES.items():
                for samples in measure_gateway(servers, rates, chosen.seconds, missing):
                    journal.add(samples)
        elif runs := missing(case, chosen.replicas):
            journal.add(measure(case, chosen.replicas, runs))
    journal.close()
    show(journal, GOALS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
