"""What a benchmark against peers leaves: its tables in the terminal, and where, when and how it was run."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import tables
from benchmarks.child import CHECKOUT
from benchmarks.goals import Goal, Verdict, check
from benchmarks.machine import facts
from benchmarks.records import Journal, sum_up


def tell(journal: Journal, goals: Sequence[Goal], records: Path) -> None:
    """Print what was measured, which goals it meets, and what came to no end."""
    summed = sum_up(journal.samples)
    checked = [x for x in check(goals, summed) if x.verdict is not Verdict.OPEN]
    print(f"\nmedian [min … max] (runs)\n\n{tables.plain(tables.record_rows(summed))}\n")
    print(f"{tables.plain(tables.goal_rows(checked))}\n")
    for sample in journal.samples:
        if sample.unfinished:
            print(f"{sample.system}, {sample.case}, {sample.size:,} members: {sample.unfinished}")
    print(f"written: {records.relative_to(CHECKOUT)}")


def write_facts(path: Path, name: str, took_s: float, versions: Mapping[str, str]) -> None:
    """name: of the command, as in `make bench-NAME`; versions: of what it was compared with, and of what it needs."""
    told = {
        "command": f"make bench-{name}" + (f' ARGS="{" ".join(sys.argv[1:])}"' if sys.argv[1:] else ""),
        "minutes": f"{took_s / 60:.0f}",
        **facts(),
        **versions,
    }
    path.write_text(json.dumps(told, indent=1) + "\n")
