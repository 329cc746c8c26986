"""`make simulate SEEDS=n`: runs n seeds on all cores, and prints each violation with its shrunken case and trace."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from pathlib import Path

from benchmarks.nights import append_night, night_of_now
from tests.simulation.run import draw_case, run_case
from tests.simulation.shrink import shrink
from tests.simulation.world import Violation

BATCH = 25
SAY_EVERY_S = 10.0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="how many (default: %(default)s)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them (default: %(default)s)")
    parser.add_argument("--most-failures", type=int, default=3, help="stop after so many (default: %(default)s)")
    parser.add_argument("--record", type=Path, help="append the run to this file of nights")
    options = parser.parse_args(arguments)
    last = options.first_seed + options.seeds
    batches = [range(at, min(at + BATCH, last)) for at in range(options.first_seed, last, BATCH)]
    begun = time.monotonic()
    done, failed = _run(batches, options.seeds, options.most_failures)
    seconds = time.monotonic() - begun
    print(f"{done} seeds in {seconds / 60:.1f} minutes: {60 * done / seconds:.0f} seeds per minute")
    if options.record:
        append_night(options.record, night_of_now("data plane", options.first_seed, done, seconds, failed))
    for seed in failed[: options.most_failures]:
        case, violation = shrink(draw_case(seed))
        print(f"\nseed {seed}, its smallest case:\n{violation}\n{case}")
    print(f"{len(failed)} of {done} seeds violate a rule" if failed else f"{options.seeds} seeds: no violation")
    return 1 if failed else 0


def _run(batches: list[range], seeds: int, most_failures: int) -> tuple[int, list[int]]:
    """The number of seeds that have run, from the first one on without a gap, and the seeds with a violation."""
    failed: list[int] = []
    done, begun = 0, time.monotonic()
    reported_at = begun
    with multiprocessing.Pool() as pool:
        for size, broken in pool.imap(_batch, batches):
            done += size
            failed += broken
            for seed in broken:
                print(f"seed {seed} violates a rule", flush=True)
            if time.monotonic() - reported_at >= SAY_EVERY_S:
                reported_at = time.monotonic()
                left_s = (reported_at - begun) / done * (seeds - done)
                print(f"{done} of {seeds} seeds, {len(failed)} failures, about {left_s:.0f} s left", flush=True)
            if len(failed) >= most_failures:
                pool.terminate()
                break
    return done, sorted(failed)


def _batch(seeds: range) -> tuple[int, list[int]]:
    broken = []
    for seed in seeds:
        try:
            run_case(draw_case(seed))
        except Violation:
            broken.append(seed)
    return len(seeds), broken


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
