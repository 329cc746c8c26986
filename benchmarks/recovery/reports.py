"""Reads the reports that the ranks of a training write into a file (train.py)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.child import Unfinished

POLL_S = 0.01


@dataclass(frozen=True)
class Line:
    event: str
    rank: int
    pid: int
    at: float  # time.monotonic()


class Reports:
    def __init__(self, path: Path, ranks: int) -> None:
        self.path, self._ranks = path, ranks
        path.write_text("")

    def lines(self) -> list[Line]:
        words = (line.split() for line in self.path.read_text().splitlines())
        return [Line(event, int(rank), int(pid), float(at)) for event, rank, pid, at in words]

    def last_of_all(self, event: str, since: float, limit_s: float, alive: Callable[[], str]) -> float:
        """When the last of all ranks reported the event for the first time since then. Raises Unfinished.

        alive: why the event cannot come any more; "" while it may come.
        """
        while True:
            first: dict[int, float] = {}
            for line in self.lines():
                if line.event == event and line.at > since:
                    first.setdefault(line.rank, line.at)
            if len(first) == self._ranks:
                return max(first.values())
            waited, dead = time.monotonic() - since, alive()
            if dead or waited > limit_s:
                lines = dead or f"not within {limit_s:g} s"
                raise Unfinished(f"{event} of {len(first)} of {self._ranks} ranks: {lines}", limit_s)
            time.sleep(POLL_S)

    def pid_of(self, rank: int) -> int:
        return [line.pid for line in self.lines() if line.rank == rank][-1]

    def end(self) -> None:
        """Let the training finish."""
        Path(f"{self.path}.end").touch()
