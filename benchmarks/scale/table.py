"""The costs as one table: a row for each case and size, with the medians. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.records import Record
from benchmarks.tables import Row, number

METRICS = (
    "seconds",
    "assign_s",
    "core_s",
    "wire_s",
    "longest_task_ms",
    "messages_out",
    "messages_in",
    "mb_out",
    "mb_in",
    "peak_rss_mb",
)
PER_MEMBER = "us_per_member"  # the CPU time of core and wire


def cost_rows(records: Sequence[Record]) -> list[Row]:
    """A heading, then a row for each case and size. An empty cell: the case has no such metric."""
    medians = {(x.case, x.size, x.metric): x.median for x in records}
    before, after = METRICS[:4], METRICS[4:]
    rows: list[Row] = [("case", "members", *before, PER_MEMBER, *after, "runs")]
    for case in dict.fromkeys(x.case for x in records):
        for size in sorted({x.size for x in records if x.case == case}):
            found = {metric: medians.get((case, size, metric)) for metric in METRICS}
            cpu_s = (found["core_s"] or 0.0) + (found["wire_s"] or 0.0)
            runs = max(x.runs for x in records if (x.case, x.size) == (case, size))
            cells = [_cell(cpu_s / size * 1e6 or None), *(_cell(found[metric]) for metric in after), str(runs)]
            rows.append((case, f"{size:,}", *(_cell(found[metric]) for metric in before), *cells))
    return rows


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else number(value)
