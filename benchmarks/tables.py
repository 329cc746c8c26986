"""Records and goals as tables, for the terminal and for docs/contributors/benchmarks.md.

One row for each case, size and metric; a cell is `median [min … max] (runs)`, or `not within SECONDS (runs)`, or
`not within SECONDS (unfinished runs of runs)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.goals import UNDERSTUDY, Checked, Goal
from benchmarks.records import Record

Row = tuple[str, ...]


def record_rows(records: Sequence[Record]) -> list[Row]:
    """A heading, then a row for each case, size and metric, with a column for each system; ours first."""
    systems = sorted({x.system for x in records}, key=lambda system: (system != UNDERSTUDY, system))
    cells = {(x.case, x.size, x.metric, x.system): x for x in records}
    kinds = dict.fromkeys((x.case, x.size, x.metric) for x in records)
    rows = [("case", "members", "metric", *systems)]
    for case, size, metric in sorted(kinds, key=_order(records)):
        cell = [_cell(cells.get((case, size, metric, system))) for system in systems]
        rows.append((case, f"{size:,}", metric, *cell))
    return rows


def goal_rows(checked: Sequence[Checked]) -> list[Row]:
    rows: list[Row] = [("case", "members", "metric", "goal", "measured", "")]
    for x in checked:
        measured = "" if x.measured is None else number(x.goal.value(x.measured))
        if x.ratio is not None:
            measured += f", {x.ratio:.3g} of {x.goal.peer}"
        rows.append((x.goal.case, f"{x.goal.size:,}", x.goal.metric, _bound(x.goal), measured, x.verdict.value))
    return rows


def plain(rows: Sequence[Row]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def markdown(rows: Sequence[Row]) -> str:
    head, *remaining = rows
    lines = [head, ("---",) * len(head), *remaining]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _order(records: Sequence[Record]) -> Callable[[tuple[str, int, str]], tuple[int, int, int]]:
    """Cases and metrics in the order of the records, sizes by number."""
    cases = [*dict.fromkeys(x.case for x in records)]
    metrics = [*dict.fromkeys(x.metric for x in records)]
    return lambda kind: (cases.index(kind[0]), kind[1], metrics.index(kind[2]))


def _cell(record: Record | None) -> str:
    if record is None:
        return ""
    if record.median is None:
        return f"not within {record.min:.3g} ({tries(record)})"
    longest = "∞" if record.max is None else number(record.max)
    return f"{number(record.median)} [{number(record.min)} … {longest}] ({record.runs})"


def tries(record: Record) -> str:
    """Of a record whose median did not finish."""
    finished = record.runs - record.unfinished
    return f"{record.unfinished} of {record.runs}" if record.unfinished and finished else f"{record.runs}"


def _bound(goal: Goal) -> str:
    largest = "largest " if goal.of_largest else ""
    parts = [] if goal.at_most is None else [f"{largest}≤ {goal.at_most:g}"]
    parts += [] if goal.at_most_ratio is None else [f"≤ {goal.at_most_ratio:.3g} of {goal.peer}"]
    return " and ".join(parts)


def number(value: float | None) -> str:
    """Three significant digits, but never fewer than a whole number has."""
    if value is None:
        return "none"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 1 else f"{value:.3f}"
