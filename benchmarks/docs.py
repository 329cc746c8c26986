"""`make bench-docs`: writes the tables of docs/benchmarks.md anew, from what is in build/bench.

A table stands between `<!-- NAME:KIND -->` and `<!-- end -->`: NAME is a benchmark's, KIND one of records, goals and
machine. What stands around them is written by hand, and stays. A benchmark that was not run keeps its tables.
simulation:nights and soak's tables are made of committed files in benchmarks/results.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import tables
from benchmarks.child import CHECKOUT
from benchmarks.goals import Goal, check
from benchmarks.hostile.goals import GOALS as HOSTILE
from benchmarks.nights import night_rows, read_nights
from benchmarks.nodes import GOALS as NODES
from benchmarks.operator.goals import GOALS as OPERATOR
from benchmarks.pool.goals import GOALS as POOL
from benchmarks.records import read_records
from benchmarks.recovery.goals import GOALS as RECOVERY
from benchmarks.rendezvous.goals import GOALS as RENDEZVOUS
from benchmarks.rollout.goals import GOALS as ROLLOUT
from benchmarks.step import GOALS as STEP
from benchmarks.webhook.goals import GOALS as WEBHOOK
from tests.soak.report import check_rows, fault_rows, run_rows

PAGE = CHECKOUT / "docs" / "benchmarks.md"
BUILT = CHECKOUT / "build" / "bench"
RESULTS = CHECKOUT / "benchmarks" / "results"
GOALS: dict[str, Sequence[Goal]] = {
    "rendezvous": RENDEZVOUS,
    "recovery": RECOVERY,
    "operator": OPERATOR,
    "nodes": NODES,
    "hostile": HOSTILE,
    "pool": POOL,
    "rollout": ROLLOUT,
    "step": STEP,
    "webhook": WEBHOOK,
    "injection": (),  # measured by tests/e2e/test_inject.py
}

_TABLE = re.compile(r"(<!-- (?P<name>[a-z-]+):(?P<kind>[a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)


class UnknownTable(Exception):
    """The page asks for a table that nothing here makes."""


def rewritten(page: str, built: Path, results: Path = RESULTS) -> str:
    """The page with its tables made anew. Raises UnknownTable."""
    return _TABLE.sub(lambda match: _table(match, built, results), page)


def _table(match: re.Match[str], built: Path, results: Path) -> str:
    name, kind = match["name"], match["kind"]
    if of_results := _OF_RESULTS.get((name, kind)):
        file, rows = of_results
        return (
            f"{match[1]}{tables.markdown(rows(results / file))}\n{match[4]}" if (results / file).exists() else match[0]
        )
    make = _KINDS.get(kind)
    if make is None or name not in GOALS:
        known = ", ".join(f"{some}:{kind}" for some in GOALS for kind in _KINDS)
        raise UnknownTable(f"the page has the marker {name}:{kind}, and there are {known}: mend the marker")
    if not (built / f"{name}.json").exists():
        return match[0]
    return f"{match[1]}{make(name, built)}\n{match[4]}"


def _records(name: str, built: Path) -> str:
    return tables.markdown(tables.record_rows(read_records(built / f"{name}.json")))


def _goals(name: str, built: Path) -> str:
    return tables.markdown(tables.goal_rows(check(GOALS[name], read_records(built / f"{name}.json"))))


def _machine(name: str, built: Path) -> str:
    facts = json.loads((built / f"{name}.machine.json").read_text())
    facts["command"] = f"`{facts['command']}`"
    return tables.markdown([("", ""), *facts.items()])


_OF_RESULTS: dict[tuple[str, str], tuple[str, Callable[[Path], Sequence[tables.Row]]]] = {
    ("simulation", "nights"): ("nights.json", lambda file: night_rows(read_nights(file))),
    ("soak", "run"): ("soak.json", lambda file: run_rows(json.loads(file.read_text()))),
    ("soak", "faults"): ("soak.json", lambda file: fault_rows(json.loads(file.read_text()))),
    ("soak", "checks"): ("soak.json", lambda file: check_rows(json.loads(file.read_text()))),
}
_KINDS: dict[str, Callable[[str, Path], str]] = {"records": _records, "goals": _goals, "machine": _machine}


def main() -> int:
    try:
        PAGE.write_text(rewritten(PAGE.read_text(), BUILT))
    except UnknownTable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
