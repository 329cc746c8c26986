"""`make simulate-operator SEEDS=n`: runs this many seeds on all cores, and prints each violation with its trace.

Each seed is two runs: jobs alone, and jobs that share a pool.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from pathlib import Path

from benchmarks.nights import append_night, night_of_now
from tests.simulation_operator.rules import Violation
from tests.simulation_operator.run import draw_case, draw_pool_case, run_case

BATCH = 25
REPORT_EVERY_S = 10.0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation_operator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5000, help="how many (default: %(default)s)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them (default: %(default)s)")
    parser.add_argument("--most-failures", type=int, default=3, help="stop after so many (default: %(default)s)")
    parser.add_argument("--record", type=Path, help="append the run to this file of nights")
    options = parser.parse_args(arguments)
    last = options.first_seed + options.seeds
    batches = [range(at, min(at + BATCH, last)) for at in range(options.first_seed, last, BATCH)]
    failed: dict[int, str] = {}
    done, begun = 0, time.monotonic()
    lines = begun
    with multiprocessing.Pool() as pool:
        for size, broken in pool.imap(_batch, batches):  # in order, so that the completed seeds are a range
            done += size
            failed |= broken
            for seed in broken:
                print(f"seed {seed} breaks something", flush=True)
            if time.monotonic() - lines >= REPORT_EVERY_S:
                lines = time.monotonic()
                left_s = (lines - begun) / done * (options.seeds - done)
                print(f"{done} of {options.seeds} seeds, {len(failed)} failures, about {left_s:.0f} s left", flush=True)
            if len(failed) >= options.most_failures:
                pool.terminate()
                break
    if options.record:
        night = night_of_now("operator", options.first_seed, done, time.monotonic() - begun, sorted(failed))
        append_night(options.record, night)
    for seed, report in sorted(failed.items()):
        print(f"\nseed {seed}:\n{report}")
    print(f"{len(failed)} of {done} seeds break something" if failed else f"{options.seeds} seeds: no violation")
    return 1 if failed else 0


def _batch(seeds: range) -> tuple[int, dict[int, str]]:
    broken = {}
    for seed in seeds:
        for draw in (draw_case, draw_pool_case):
            try:
                run_case(draw(seed))
            except Violation as violation:
                broken[seed] = f"{draw.__name__}: {violation}"
    return len(seeds), broken


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
