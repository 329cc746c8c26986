"""The end of each benchmark's command: its journal's arguments and facts, and its tables in the terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import tables
from benchmarks.child import CHECKOUT
from benchmarks.goals import Goal, Verdict, check
from benchmarks.journal import Journal
from benchmarks.machine import facts
from benchmarks.records import sum_up
from tests.cluster.commands import run

RESULTS = CHECKOUT / "benchmarks" / "results"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--resume", action="store_true", help="keep the samples of earlier runs, and measure what is missing"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of NAME.json")


def open_journal(name: str, requests: argparse.Namespace, versions: Mapping[str, str] | None = None) -> Journal:
    """name: of the command, as in `make bench-NAME`. versions: of the compared and required programs."""
    words = " ".join(sys.argv[1:])
    command = f"make bench-{name}" + (f' ARGS="{words}"' if words else "")
    return Journal(requests.results / f"{name}.json", run_facts(command, versions), resume=requests.resume)


def run_facts(command: str, versions: Mapping[str, str] | None = None) -> dict[str, str]:
    """Raises CommandFailed outside of a git checkout."""
    return {"command": command, "commit": commit(), **facts(), **(versions or {})}


def commit() -> str:
    """The measured commit; `+` if tracked files differ from it, except results and the pages generated from them.

    Raises CommandFailed outside of a git checkout.
    """
    head = run(["git", "rev-parse", "--short=10", "HEAD"], cwd=CHECKOUT).strip()
    pages = (":!docs/contributors/benchmarks.md", ":!docs/reference/frameworks.md", ":!README.md")
    made = (":!benchmarks/results", *pages)
    changed = run(["git", "status", "--porcelain", "--untracked-files=no", "--", ".", *made], cwd=CHECKOUT)
    return head + ("+" if changed.strip() else "")


def show(journal: Journal, goals: Sequence[Goal]) -> None:
    """Print the measurements, the goals that they meet, and the runs that did not finish."""
    summed = sum_up(journal.samples)
    checked = [x for x in check(goals, summed) if x.verdict is not Verdict.OPEN]
    print(f"\nmedian [min … max] (runs)\n\n{tables.plain(tables.record_rows(summed))}\n")
    print(f"{tables.plain(tables.goal_rows(checked))}\n")
    for sample in journal.samples:
        if sample.unfinished:
            print(f"{sample.system}, {sample.case}, {sample.size:,} members: {sample.unfinished}")
    print(f"written: {journal.path}; `make bench-docs` writes its tables into the documentation")
