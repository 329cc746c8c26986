"""benchmarks/results/frameworks.json: the newest result of each case, and the rows of docs/reference/frameworks.md.

Rules: a case that runs replaces its own result, and keeps those of others. `make frameworks` writes the file; it is
committed, and `make bench-docs` generates the table from it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

Row = tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """worker_s, node_s: from the SIGKILL to the first new step. start: "forks" or "new processes".

    speed: the seconds of tests/machine_speed.py's calculation, as a multiple of the reference's.
    """

    case: str
    versions: str
    worker_s: float
    node_s: float
    start: str
    changed: str
    date: str
    commit: str
    cores: str
    speed: float


def read_results(path: Path) -> list[Result]:
    """In the order of the file. Empty if there is no file."""
    return [Result(**entry) for entry in json.loads(path.read_text())] if path.exists() else []


def write_result(path: Path, result: Result, order: Sequence[str]) -> None:
    """order: the cases that exist. Results of other cases are dropped. One line for each case."""
    known = {one.case: one for one in (*read_results(path), result)}
    lines = [json.dumps(asdict(known[case])) for case in order if case in known]
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    unfinished.rename(path)


def matrix_rows(results: Sequence[Result]) -> list[Row]:
    rows: list[Row] = [("framework", "version", "a worker is killed", "a node is killed", "workers start as", "change")]
    for x in results:
        rows.append((x.case, x.versions, f"{x.worker_s:.1f} s", f"{x.node_s:.1f} s", x.start, x.changed))
    return rows


def run_rows(results: Sequence[Result]) -> list[Row]:
    """When and on what the results were measured: a row for each run that has the newest result of a case."""
    rows: list[Row] = [("date", "commit", "cores", "duration of a fixed calculation", "cases")]
    runs = dict.fromkeys((x.date, x.commit, x.cores, x.speed) for x in results)
    for date, commit, cores, speed in runs:
        cases = sum((x.date, x.commit, x.cores, x.speed) == (date, commit, cores, speed) for x in results)
        rows.append((date, commit, cores, f"{speed:.1f} times that of the quiet machine", str(cases)))
    return rows
