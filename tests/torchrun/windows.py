"""The windows of ten steps in which the coordinator compares the ranks of a training."""

from __future__ import annotations

from pathlib import Path

#: The begin of a script. Each rank writes a line to the file `windows` of the folder HERE for each window it reports.
NOTE_WINDOWS = """
import os
from understudy_torch import collectives
publish = collectives.CollectiveReports._publish
def note(reports, number, step_ns, steps):
    publish(reports, number, step_ns, steps)
    with open(os.environ["HERE"] + "/windows", "a") as file:
        file.write(f"{os.environ['RANK']} {number}\\n")
collectives.CollectiveReports._publish = note
"""


def windows(folder: Path, ranks: int) -> list[int]:
    """The windows that all ranks have reported, by their last step."""
    path = folder / "windows"
    numbers = [int(line.split()[1]) for line in path.read_text().splitlines()] if path.exists() else []
    return sorted(number for number in set(numbers) if numbers.count(number) == ranks)
