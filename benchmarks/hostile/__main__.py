"""`make bench-hostile`: 500 hostile connections to a coordinator while 64 members are in a round.

Fails if a member is lost, or if the loop's lag is above its goal.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from benchmarks.child import Child, ChildFailed, Unfinished
from benchmarks.goals import UNDERSTUDY
from benchmarks.hostile.goals import CONNECTIONS, GOALS, OTHERS, SHARED
from benchmarks.machine import Usage
from benchmarks.records import Sample
from benchmarks.rendezvous.processes import LOOPBACK, NICE, START_S, running
from benchmarks.rendezvous.understudy import FIRST, first_round, next_round
from benchmarks.report import add_arguments, open_journal, show

MEMBERS = 64
LIMIT_S = 60.0
CALM = "calm"
#: The addresses of the hostile connections, by case.
SOURCES = {CALM: [], OTHERS: [f"127.0.1.{number}" for number in range(1, 11)], SHARED: [LOOPBACK]}


def session(case: str, connections: int, seconds: float) -> dict[str, float]:
    """Raises Unfinished if a member was lost."""
    with running(MEMBERS, spares=1) as job, Child("callers", "benchmarks.hostile.callers", nice=NICE) as callers:
        first_round(job, LIMIT_S)
        if SOURCES[case]:
            callers.ask("begin", START_S, host=LOOPBACK, sources=SOURCES[case], connections=connections)
        job.coordinator.ask("lag_begin", LIMIT_S)
        before = Usage.of(job.coordinator.pid)
        time.sleep(seconds)
        after = Usage.of(job.coordinator.pid)
        lag = job.coordinator.ask("lag", LIMIT_S)
        job.settle(FIRST, LIMIT_S)  # it is still the newest round: no member was lost
        opened = callers.ask("opened", LIMIT_S)
        print(f"{case}: {lag}, connections: {opened}", flush=True)
        return {
            "p99_ms": lag["p99_ms"],
            "max_ms": lag["max_ms"],
            "cpu_percent": 100 * (after.cpu_s - before.cpu_s) / seconds,
            "peak_rss_mb": after.peak_rss_mb,
            "seconds": next_round(job, LIMIT_S)["seconds"],
        }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench-hostile ARGS=…", description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--runs", type=int, default=1)
    add_arguments(parser)
    requests = parser.parse_args(arguments)
    journal = open_journal("hostile", requests)
    try:
        for run in range(requests.runs):
            for case in SOURCES:
                if journal.has(UNDERSTUDY, case, requests.connections, run):
                    continue
                try:
                    values = session(case, requests.connections, requests.seconds)
                    journal.add([Sample(UNDERSTUDY, case, requests.connections, run, values)])
                except Unfinished as error:
                    lost = Sample(UNDERSTUDY, case, requests.connections, run, unfinished=str(error))
                    journal.add([lost])
    except (ChildFailed, KeyboardInterrupt) as error:
        print(f"{error or 'interrupted'}", file=sys.stderr)
        return 1
    finally:
        journal.close()
    show(journal, GOALS)
    return 1 if any(sample.unfinished for sample in journal.samples) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
