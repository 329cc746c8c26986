"""`make bench-operator`: jobs of up to 5,000 pods under our operator and under JobSet, on one API server, in turns.

benchmarks/results/operator.json   every sample, as soon as it is measured: --resume continues from there
build/bench/logs/operator-*.log   the logs of the cluster's programs
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import aiohttp

from benchmarks.arguments import listed, sizes, some_of
from benchmarks.child import LOGS, ChildFailed
from benchmarks.journal import Journal
from benchmarks.machine import take_open_files
from benchmarks.operator import cluster, network
from benchmarks.operator.exposition import MetricMissing
from benchmarks.operator.goals import GOALS
from benchmarks.operator.jobset_build import Built, ensure_jobset, version
from benchmarks.operator.kube import Refused
from benchmarks.operator.plan import NODES, RUNS, Case, Choice, Session, System, plan
from benchmarks.operator.session import Skipped, measure
from benchmarks.records import Sample
from benchmarks.report import add_arguments, open_journal, show
from tests.cluster.binaries import ensure_binaries, kubernetes_version
from tests.cluster.commands import Progress
from tests.cluster.failures import ClusterError
from tests.cluster.paths import Paths


async def run(sessions: Sequence[Session], journal: Journal, binaries: Path, jobset: Built, nodes: int) -> list[str]:
    """Returns the sessions that could not run, with the reasons."""
    skipped: dict[str, None] = {}
    left_s = sum(session.expected_s for session in sessions)
    print(f"{len(sessions)} sessions, about {left_s / 60:.0f} minutes", flush=True)
    # The controller manager's limits belong to its cluster.
    for shipped, of_cluster in groupby(enumerate(sessions, 1), lambda numbered: numbered[1].shipped):
        async with cluster.running(binaries, jobset, nodes, Progress(), shipped=shipped) as present:
            await present.warm_up()
            for number, session in of_cluster:
                left_s -= session.expected_s
                name = f"[{number}/{len(sessions)}] {session.system} {session.size:,}"
                print(f"{name}: {', '.join(session.cases)} …", flush=True)
                try:
                    async with aclosing(measure(present, session, jobset, f"bench-{number}")) as samples:
                        async for sample in samples:
                            journal.add([sample])
                            print(f"{name}: {_describe_setup(sample)}", flush=True)
                except Skipped as why:
                    skipped[f"{session.system}, {', '.join(session.cases)}: skipped: {why}"] = None
                    print(f"{name}: skipped: {why}", flush=True)
                if left_s:
                    print(f"  about {max(1.0, left_s / 60):.0f} min left", flush=True)
    return list(skipped)


def missing(sessions: Sequence[Session], journal: Journal) -> list[Session]:
    """The sessions with cases that have not run yet, and only with these cases."""
    left = []
    for x in sessions:
        cases = tuple(case for case in x.cases if not journal.has(x.system.value, case.value, x.size, x.run))
        if cases:
            left.append(replace(x, cases=cases))
    return left


def _describe_setup(sample: Sample) -> str:
    if sample.unfinished:
        return f"{sample.case}: {sample.unfinished}"
    return f"{sample.case} " + ", ".join(f"{metric} {value:.4g}" for metric, value in sample.values.items())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-operator ARGS=…", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=listed(Case), default=(), help=some_of(Case))
    parser.add_argument("--systems", type=listed(System), default=(), help=some_of(System))
    parser.add_argument("--sizes", type=sizes, default=(), help="pods, in place of each case's own sizes")
    parser.add_argument("--runs", type=int, help=f"of each; the default is {RUNS}")
    parser.add_argument("--nodes", type=int, default=NODES, help=f"that kwok plays; the default is {NODES}")
    add_arguments(parser)
    return parser.parse_args()


def main() -> int:
    requests = arguments()
    versions = {"Kubernetes": kubernetes_version(), "JobSet": version(), "nodes": f"{requests.nodes} (kwok)"}
    journal = open_journal("operator", requests, versions)
    sessions = missing(plan(Choice(requests.cases, requests.systems, requests.sizes, requests.runs)), journal)
    for log in LOGS.glob("operator-*.log"):
        log.unlink()
    skipped: list[str] = []
    try:
        progress, paths = Progress(), Paths.from_environment()
        ensure_binaries(paths, progress, kwok=True)
        jobset = ensure_jobset(progress)
        journal.begin()
        network.enter()
        take_open_files()
        skipped = asyncio.run(run(sessions, journal, paths.binaries, jobset, requests.nodes))
    except (ChildFailed, ClusterError, MetricMissing, Refused, aiohttp.ClientError, KeyboardInterrupt) as error:
        print(f"{error or 'interrupted'}\nfinished cases are kept: continue with --resume", file=sys.stderr)
        return 1
    finally:
        journal.close()
    show(journal, GOALS)
    for line in skipped:
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
