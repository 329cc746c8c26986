"""The table of README.md: each fault with its cause, and the median of each system. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.records import Record
from benchmarks.tables import Row, number, tries

METRIC = "first_all_reduce_s"
FAULTS = {
    "worker": "SIGKILL to one worker",
    "node-power-off": "power-off of a node: its cable is cut, then all its processes end",
    "coordinator-power-off": "power-off of the node that hosts the coordinator (Understudy) or the store (others)",
}
SYSTEMS = {
    "understudy": "Understudy",
    "understudy-torchrun": "`torchrun` under Understudy",
    "understudy-no-zygote": "without zygote",
    "torchrun-optout": "torchrun",
    "torchrun-tuned": "torchrun, tuned",
    "nvrx": "NVRx ft_launcher",
    "nvrx-heartbeats": "NVRx with heartbeats",
    "nvrx-inprocess": "NVRx in-process",
}


def headline_rows(records: Sequence[Record], measured: str) -> list[Row]:
    """Only measured faults and systems. measured: the dates, for the heading."""
    found = {(x.case, x.system): x for x in records if x.metric == METRIC}
    systems = [system for system in SYSTEMS if any(system == seen for _, seen in found)]
    rows = [(f"fault (measured {measured})", *(SYSTEMS[system] for system in systems))]
    for case, how in FAULTS.items():
        if any(case == seen for seen, _ in found):
            rows.append((how, *(_cell(found.get((case, system))) for system in systems)))
    return rows


def _cell(record: Record | None) -> str:
    if record is None:
        return ""
    if record.median is None:
        return f"not within {record.min:g} s ({tries(record)} {'try' if record.runs == 1 else 'tries'})"
    return f"{number(record.median)} s"
