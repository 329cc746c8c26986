"""`make bench-fleet`: the operator with 5,000 nodes, 500 jobs and 20,000 pods, and with a tenth of it.

empty     nodes without jobs: heartbeats
idle      all jobs train: heartbeats and steps
labels    the nodes' labels change, too
faults    besides, workers fail and pods are lost, a thousand times as often as in Llama 3's training
verdicts  besides, nodes get a verdict about their hardware at the same rate; without faults

benchmarks/results/fleet.json     every sample, as soon as it is measured
build/bench/logs/operator-*.log   the logs of the cluster's programs
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from benchmarks.arguments import listed, some_of
from benchmarks.child import LOGS, ChildFailed, Unfinished
from benchmarks.fleet.fleet import Life, running
from benchmarks.fleet.plan import Case, Fleet
from benchmarks.fleet.table import cost_rows, extrapolation_rows
from benchmarks.goals import UNDERSTUDY
from benchmarks.journal import Journal
from benchmarks.machine import take_open_files
from benchmarks.operator import network
from benchmarks.operator.exposition import MetricMissing
from benchmarks.operator.kube import Refused
from benchmarks.records import Sample, sum_up
from benchmarks.report import add_arguments, open_journal, show
from benchmarks.tables import plain
from tests.cluster.binaries import ensure_binaries, kubernetes_version
from tests.cluster.commands import Progress
from tests.cluster.failures import ClusterError
from tests.cluster.paths import Paths


async def measure(
    binaries: Path, fleet: Fleet, per_s: float, chosen: argparse.Namespace, journal: Journal, shards: int
) -> None:
    """Add a sample for each case and process to the journal. per_s: faults."""

    async def measure_case(life: Life, case: Case, system: str) -> None:
        for values in await life.measure(case, per_s, 60 * chosen.minutes):
            run = journal.next_run(system, case, fleet.pods)
            journal.add([Sample(system, case, fleet.pods, run, values)])
            print(f"{system} {case} " + ", ".join(f"{name} {value:.4g}" for name, value in values.items()), flush=True)

    async with running(binaries, fleet) as life:
        async with life.operated(1):
            if Case.EMPTY in chosen.cases:
                await measure_case(life, Case.EMPTY, UNDERSTUDY)
            await life.start_jobs()
            print(f"{fleet.jobs} jobs run, with {fleet.pods} pods", flush=True)
            for case in chosen.cases:
                if case is not Case.EMPTY:
                    await measure_case(life, case, UNDERSTUDY)
        if shards > 1:
            async with life.operated(shards):
                for case in chosen.cases:
                    if case is not Case.EMPTY:
                        await measure_case(life, case, f"one of {shards} shards")


def fleets(chosen: argparse.Namespace) -> list[Fleet]:
    """The small one first. Raises ValueError if there are too few pods."""
    large = Fleet(chosen.nodes, chosen.jobs, chosen.pods)
    found = [large.part(chosen.divisor), large] if chosen.divisor > 1 else [large]
    for fleet in found:
        assert fleet.job_sizes
    return found


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-fleet ARGS=…", description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--pods", type=int, default=20_000)
    parser.add_argument("--divisor", type=int, default=10, help="of the small fleet; 1: measure the large one alone")
    parser.add_argument("--minutes", type=float, default=3.0, help="of each case")
    parser.add_argument("--faster", type=float, default=1_000.0, help="times the rate of Llama 3's faults")
    parser.add_argument("--cases", type=listed(Case), default=tuple(Case), help=some_of(Case))
    parser.add_argument("--shards", type=int, default=1, choices=(1, 2), help="2: measure the large fleet so, too")
    add_arguments(parser)
    return parser.parse_args(words)


def main(words: Sequence[str]) -> int:
    chosen = arguments(words)
    journal = open_journal("fleet", chosen, {"Kubernetes": kubernetes_version(), "nodes": "kwok"})
    planned = fleets(chosen)
    for log in LOGS.glob("operator-*.log"):
        log.unlink()
    try:
        paths = Paths.from_environment()
        ensure_binaries(paths, Progress(), kwok=True)
        journal.begin()
        network.enter()
        take_open_files()
        for fleet in planned:
            if journal.has(UNDERSTUDY, chosen.cases[-1], fleet.pods, 0):
                continue  # --resume
            print(f"{fleet.nodes} nodes, {fleet.jobs} jobs, {fleet.pods} pods", flush=True)
            shards = chosen.shards if fleet is planned[-1] else 1
            asyncio.run(
                measure(paths.binaries, fleet, planned[-1].faults_per_s(chosen.faster), chosen, journal, shards)
            )
    except (ChildFailed, ClusterError, MetricMissing, Refused, Unfinished, aiohttp.ClientError, KeyboardInterrupt) as e:
        print(f"{e or 'interrupted'}\nfinished cases are kept: continue with --resume", file=sys.stderr)
        return 1
    finally:
        journal.close()
    show(journal, ())
    for rows in (cost_rows, extrapolation_rows):
        print(f"\n{plain(rows(sum_up(journal.samples)))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
