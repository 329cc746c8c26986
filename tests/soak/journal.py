"""The soak's journal, and the state that follows from it. The runner keeps no other state, so it can stop at any time.

    state    follows from                                   the runner then
    UNDO     a fault was drawn, and has no outcome           marks it as interrupted (its cluster is prepared again)
    FAULT    time is left                                    causes the next fault, and writes its outcome
    REPORT   the cycles so far have taken the hours          writes the report

An entry is one JSON line. The last line may be incomplete, as a run may be killed while it writes.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

Raw = dict[str, Any]


class Stage(Enum):
    UNDO = "undo"
    FAULT = "fault"
    REPORT = "report"


@dataclass(frozen=True)
class State:
    """open: the drawn fault that has no outcome yet."""

    next_number: int
    elapsed_s: float
    open: Raw | None

    def stage(self, hours: float) -> Stage:
        if self.open is not None:
            return Stage.UNDO
        return Stage.REPORT if self.elapsed_s >= hours * 3600 else Stage.FAULT


def state_of(entries: Sequence[Raw]) -> State:
    drawn = [entry for entry in entries if entry["event"] == "drawn"]
    outcomes = [entry for entry in entries if entry["event"] == "outcome"]
    ended = {entry["number"] for entry in outcomes}
    unfinished = next((entry for entry in drawn if entry["number"] not in ended), None)
    elapsed_s = sum(entry.get("seconds", 0.0) for entry in outcomes)
    return State(len(drawn), elapsed_s, unfinished)


def read_journal(path: Path) -> list[Raw]:
    if not path.exists():
        return []
    *whole, torn = path.read_text().split("\n")
    del torn  # "" unless a write was interrupted
    return [json.loads(line) for line in whole]


def append_entry(path: Path, event: str, **fields: Any) -> Raw:
    """Write an entry to the disk, after the complete lines."""
    entry = {"event": event, **fields}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(json.dumps(entry).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return entry
