"""Nights of simulation: benchmarks/results/nights.json has an entry for each run of seeds, appended by the run itself.

Rules: an entry names the first seed and how many seeds ran, one after the other, so that the night can be repeated. A
run that stops early records the seeds that have run. The sum of a simulation counts each seed once, even if several
nights ran it. The file is committed; docs/contributors/benchmarks.md has its table (`make bench-docs`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.report import commit


@dataclass(frozen=True)
class Night:
    """failed: the seeds that broke a rule of the simulation."""

    date: str
    simulation: str
    commit: str
    first_seed: int
    seeds: int
    seconds: float
    failed: tuple[int, ...] = ()


def read_nights(path: Path) -> list[Night]:
    """The nights of the file, the oldest first. Empty if there is no file."""
    if not path.exists():
        return []
    return [Night(**{**entry, "failed": tuple(entry["failed"])}) for entry in json.loads(path.read_text())]


def append_night(path: Path, night: Night) -> None:
    """One line for each night, so that two branches that append can be merged by hand."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(asdict(one)) for one in (*read_nights(path), night)]
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    unfinished.rename(path)


def night_of_now(simulation: str, first_seed: int, seeds: int, seconds: float, failed: Sequence[int]) -> Night:
    """The night that ends now, on this checkout's commit."""
    date = time.strftime("%Y-%m-%d", time.gmtime())
    return Night(date, simulation, commit(), first_seed, seeds, round(seconds, 1), tuple(failed))


def night_rows(nights: Sequence[Night]) -> list[tuple[str, ...]]:
    """A heading, a row for each night, and the sum of each simulation."""
    rows: list[tuple[str, ...]] = [("date", "simulation", "commit", "first seed", "seeds", "minutes", "failed seeds")]
    for x in nights:
        failed = ", ".join(map(str, x.failed)) or "none"
        minutes = f"{x.seconds / 60:.0f}"
        rows.append((x.date, x.simulation, x.commit, f"{x.first_seed:,}", f"{x.seeds:,}", minutes, failed))
    for name in sorted({x.simulation for x in nights}):
        own = [x for x in nights if x.simulation == name]
        total_minutes, total_failed = sum(x.seconds for x in own) / 60, sum(len(x.failed) for x in own)
        different = {seed for x in own for seed in range(x.first_seed, x.first_seed + x.seeds)}
        sums = (f"{len(different):,}", f"{total_minutes:.0f}", f"{total_failed}")
        rows.append(("all", name, "", "", *sums))
    return rows
