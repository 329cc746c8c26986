"""The reports of the example's workers on shared storage, read from outside: steps, losses and times, by round.

Every claim about time is checked against the training's own report: the rank in the file's name has completed each step
in it, in the round in its name.
"""

import json
from dataclasses import dataclass
from pathlib import Path

NAME = "report"

Token = tuple[int, int, int]


@dataclass(frozen=True)
class Entry:
    event: str  # resumed | step | saved | done
    step: int
    loss: float | None
    token: Token
    time: float  # Unix seconds
    host: str = ""  # the name of the pod


def token_of(text: str) -> Token:
    epoch, term, number = (int(part) for part in text.split("."))
    return epoch, term, number


ALL_RANKS = "*"


def read_report(folder: Path, rank: str = "0") -> list[Entry]:
    """All entries of a rank, or of ALL_RANKS, in the order of rounds, without an incomplete line."""
    entries = []
    for file in folder.glob(f"{NAME}.*.{rank}.jsonl"):
        for line in file.read_text().splitlines():
            try:
                result = json.loads(line)
            except ValueError:
                continue
            step, loss, token = result["step"], result["loss"], token_of(result["round"])
            entries.append(Entry(result["event"], step, loss, token, result["time"], result["host"]))
    return sorted(entries, key=lambda entry: (entry.token, entry.time))


def newest_round(entries: list[Entry]) -> list[Entry]:
    if not entries:
        return []
    return [entry for entry in entries if entry.token == entries[-1].token]


def newest_step(entries: list[Entry]) -> int:
    return max((entry.step for entry in newest_round(entries)), default=0)


def first_step_after(entries: list[Entry], token: Token) -> Entry | None:
    """The first completed step of any round after `token`."""
    return next((entry for entry in entries if entry.token > token and entry.event == "step"), None)
