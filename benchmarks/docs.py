"""`make bench-docs`: generates the tables of the pages in PAGES from benchmarks/results.

A table is between `<!-- NAME:KIND -->` and `<!-- end -->`: NAME is a benchmark, KIND one of records, goals, machine and
headline. The text around the tables is written by hand and stays. A unit test fails if a page differs from this
command's output, so nobody can edit a number of a table by hand. Tables of the soak, of the frameworks, and of the
nights of simulation are generated from files in benchmarks/results too.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from benchmarks import tables
from benchmarks.child import CHECKOUT
from benchmarks.dashboard import GOALS as DASHBOARD
from benchmarks.detection.goals import GOALS as DETECTION
from benchmarks.fleet import table as fleet
from benchmarks.goals import Goal, check
from benchmarks.hostile.goals import GOALS as HOSTILE
from benchmarks.journal import Session, read_sessions
from benchmarks.nights import night_rows, read_nights
from benchmarks.nodes import GOALS as NODES
from benchmarks.operator.goals import GOALS as OPERATOR
from benchmarks.pool.goals import GOALS as POOL
from benchmarks.records import Record, sum_up
from benchmarks.recovery.goals import GOALS as RECOVERY
from benchmarks.recovery.headline import headline_rows
from benchmarks.recovery.plan import SYSTEMS
from benchmarks.rendezvous.goals import GOALS as RENDEZVOUS
from benchmarks.report import RESULTS
from benchmarks.rollout.goals import GOALS as ROLLOUT
from benchmarks.scale.table import cost_rows
from benchmarks.slow_ranks import GOALS as SLOW_RANKS
from benchmarks.snapshot.__main__ import GOALS as SNAPSHOT
from benchmarks.step import GOALS as STEP
from benchmarks.webhook.goals import GOALS as WEBHOOK
from tests.frameworks.results import matrix_rows, read_results
from tests.frameworks.results import run_rows as framework_run_rows
from tests.soak.report import check_rows, fault_rows, run_rows

PAGES = (
    CHECKOUT / "docs" / "contributors" / "benchmarks.md",
    CHECKOUT / "docs" / "explanation" / "comparison.md",
    CHECKOUT / "docs" / "reference" / "frameworks.md",
    CHECKOUT / "README.md",
)
GOALS: dict[str, Sequence[Goal]] = {
    "rendezvous": RENDEZVOUS,
    "rendezvous-sessions": (),
    "recovery": RECOVERY,
    "operator": OPERATOR,
    "dashboard": DASHBOARD,
    "nodes": NODES,
    "detection": DETECTION,
    "hostile": HOSTILE,
    "pool": POOL,
    "rollout": ROLLOUT,
    "slow-ranks": SLOW_RANKS,
    "snapshot": SNAPSHOT,
    "step": STEP,
    "webhook": WEBHOOK,
    "injection": (),  # measured by tests/e2e/test_inject.py
    "scale": (),
    "fleet": (),
}
#: By benchmark, the systems that are compared in each case.
PLANNED: dict[str, dict[str, Sequence[str]]] = {"recovery": {case.value: systems for case, systems in SYSTEMS.items()}}
#: Facts of a session that its own row contains. All others describe the machine.
_OF_A_RUN = ("command", "commit", "date")
_TABLE = re.compile(r"(<!-- (?P<name>[a-z-]+):(?P<kind>[a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)


class UnknownTable(Exception):
    """The page has a marker of an unknown table, or of a benchmark without results."""


@dataclass(frozen=True)
class Source:
    """The origin of a benchmark's numbers."""

    records: Sequence[Record]
    machine: Sequence[tables.Row]
    measured: str  # the dates


def rewritten(page: str, results: Path) -> str:
    """The page with its tables generated again. Raises UnknownTable."""
    return _TABLE.sub(lambda match: _table(match, results), page)


def _table(match: re.Match[str], results: Path) -> str:
    name, kind = match["name"], match["kind"]
    if of_results := _OF_RESULTS.get((name, kind)):
        file, command, rows = of_results
        if not (results / file).exists():
            return f"{match[1]}None yet: `{command}` writes benchmarks/results/{file}.\n{match[4]}"
        return f"{match[1]}{tables.markdown(rows(results / file))}\n{match[4]}"
    make = _KINDS.get(kind)
    if make is None or name not in GOALS:
        known = ", ".join(f"{some}:{kind}" for some in GOALS for kind in _KINDS)
        raise UnknownTable(f"the page has the marker {name}:{kind}, and there are {known}: fix the marker")
    return f"{match[1]}{tables.markdown(make(name, _source(name, results)))}\n{match[4]}"


def _source(name: str, results: Path) -> Source:
    file = results / f"{name}.json"
    if not file.exists():
        raise UnknownTable(f"{file} is missing: run `make bench-{name}`, or remove its tables from the page")
    sessions = read_sessions(file)
    dates = ", ".join(sorted({session.facts["date"] for session in sessions}))
    return Source(sum_up(x for session in sessions for x in session.samples), _machine_of(sessions), dates)


def _machine_of(sessions: Sequence[Session]) -> list[tables.Row]:
    """A row for each command, then the sum of their minutes, then each fact with all of its values."""
    rows: list[tables.Row] = []
    for ran, same in groupby(sessions, key=lambda session: tuple(session.facts.get(x, "") for x in _OF_A_RUN)):
        command, commit, date = ran
        count = len(list(same))
        times = f", {count} sessions" if count > 1 else ""
        rows.append(("command" if not rows else "then", f"`{command}` ({date}, commit {commit}{times})"))
    rows.append(("minutes", f"{sum(session.seconds for session in sessions) / 60:.1f}"))
    names = dict.fromkeys(name for session in sessions for name in session.facts if name not in _OF_A_RUN)
    for name in names:
        rows.append((name, "; ".join(dict.fromkeys(x.facts[name] for x in sessions if name in x.facts))))
    return rows


def _records(name: str, source: Source) -> list[tables.Row]:
    return tables.record_rows(source.records)


def _goals(name: str, source: Source) -> list[tables.Row]:
    return tables.goal_rows(check(GOALS[name], source.records))


def _machine(name: str, source: Source) -> list[tables.Row]:
    missing = _unmeasured(PLANNED.get(name, {}), source.records)
    return [("", ""), *source.machine, *([("not measured", missing)] if missing else [])]


def _unmeasured(planned: Mapping[str, Sequence[str]], records: Sequence[Record]) -> str:
    """Whole cases, whole systems, and then single pairs of the plan without a number."""
    measured = {(str(x.case), str(x.system)) for x in records}
    pairs = [(str(case), str(system)) for case, systems in planned.items() for system in systems]
    measured_cases, measured_systems = {case for case, _ in measured}, {system for _, system in measured}
    cases = [case for case in dict.fromkeys(case for case, _ in pairs) if case not in measured_cases]
    systems = [system for system in dict.fromkeys(system for _, system in pairs) if system not in measured_systems]
    others = [f"{x[0]} of {x[1]}" for x in pairs if x not in measured and x[0] not in cases and x[1] not in systems]
    return "; ".join(
        [
            *([f"cases {', '.join(cases)}"] if cases else []),
            *([f"systems {', '.join(systems)}"] if systems else []),
            *others,
        ]
    )


def _headline(name: str, source: Source) -> list[tables.Row]:
    if name != "recovery":
        raise UnknownTable(f"the page has the marker {name}:headline, and recovery alone has one: fix the marker")
    return headline_rows(source.records, source.measured)


def _records_of(file: Path) -> list[Record]:
    return sum_up(x for session in read_sessions(file) for x in session.samples)


_KINDS: dict[str, Callable[[str, Source], list[tables.Row]]] = {
    "records": _records,
    "goals": _goals,
    "machine": _machine,
    "headline": _headline,
}
#: By marker: the file, the command that writes it, and a function that returns the rows.
_OF_RESULTS: dict[tuple[str, str], tuple[str, str, Callable[[Path], Sequence[tables.Row]]]] = {
    ("scale", "costs"): ("scale.json", "make bench-scale", lambda file: cost_rows(_records_of(file))),
    **{
        ("fleet", kind): ("fleet.json", "make bench-fleet", rows)
        for kind, rows in (
            ("machine", lambda file: [("", ""), *_machine_of(read_sessions(file))]),
            ("costs", lambda file: fleet.cost_rows(_records_of(file))),
            ("extrapolation", lambda file: fleet.extrapolation_rows(_records_of(file))),
            ("records", lambda file: tables.record_rows(_records_of(file))),
        )
    },
    ("simulation", "nights"): ("nights.json", "make test-all", lambda file: night_rows(read_nights(file))),
    ("frameworks", "matrix"): ("frameworks.json", "make frameworks", lambda file: matrix_rows(read_results(file))),
    ("frameworks", "runs"): ("frameworks.json", "make frameworks", lambda file: framework_run_rows(read_results(file))),
    ("soak", "run"): ("soak.json", "make soak", lambda file: run_rows(json.loads(file.read_text())["runs"])),
    ("soak", "faults"): ("soak.json", "make soak", lambda file: fault_rows(json.loads(file.read_text())["runs"])),
    ("soak", "checks"): ("soak.json", "make soak", lambda file: check_rows(json.loads(file.read_text())["runs"])),
}


def main() -> int:
    try:
        for page in PAGES:
            page.write_text(rewritten(page.read_text(), RESULTS))
    except UnknownTable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
