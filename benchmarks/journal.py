"""The samples of a benchmark in benchmarks/results/NAME.json, from which docs/contributors/benchmarks.md is generated.

    {"sessions": [{"command": …, "commit": …, "date": …, …, "seconds": 61.2, "samples": [{…}, …]}, …]}

Rules: a session is one run of the command. The file is written after each sample, and replaced as a whole, so an
interrupted command loses no sample and `--resume` continues. Without `--resume` the first sample replaces all earlier
sessions. `seconds` is the time from `begin` to the newest sample, or to `close`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.records import Sample

DIGITS = 6


@dataclass
class Session:
    """facts: the command, its commit and date, the machine, and versions, by name."""

    facts: Mapping[str, str]
    seconds: float = 0.0
    samples: list[Sample] = field(default_factory=list)


def read_sessions(path: Path) -> list[Session]:
    return [_session(plain) for plain in json.loads(path.read_text())["sessions"]]


def write_sessions(path: Path, sessions: Iterable[Session]) -> None:
    """One sample on each line, so that a diff shows the new samples."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".new")
    unfinished.write_text('{"sessions": [\n' + ",\n".join(map(_written, sessions)) + "\n]}\n")
    unfinished.replace(path)


def _written(session: Session) -> str:
    head = json.dumps({**session.facts, "seconds": round(session.seconds, 1)}, ensure_ascii=False)
    lines = ",\n".join(json.dumps(_plain(sample), ensure_ascii=False) for sample in session.samples)
    return f'{head[:-1]}, "samples": [\n{lines}\n]}}'


def _plain(sample: Sample) -> dict[str, Any]:
    values: dict[str, Any] = {"system": sample.system, "case": sample.case, "size": sample.size, "run": sample.run}
    if sample.unfinished:
        return values | {"unfinished": sample.unfinished, "metrics": sample.metrics, "after_s": sample.after_s}
    return values | {"values": {metric: round(value, DIGITS) for metric, value in sample.values.items()}}


def _session(plain: dict[str, Any]) -> Session:
    seconds, samples = plain.pop("seconds"), plain.pop("samples")
    return Session(plain, seconds, [_sample(x) for x in samples])


def _sample(plain: dict[str, Any]) -> Sample:
    if "metrics" in plain:
        plain["metrics"] = tuple(plain["metrics"])
    return Sample(**plain)


class Journal:
    """The sessions of one benchmark; the last one is this process's."""

    def __init__(
        self,
        path: Path,
        facts: Mapping[str, str],
        *,
        resume: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path, self._clock = path, clock
        self._earlier = read_sessions(path) if resume and path.exists() else []
        self._session = Session(facts)
        self._began = clock()

    @property
    def samples(self) -> list[Sample]:
        return [sample for session in (*self._earlier, self._session) for sample in session.samples]

    def begin(self) -> None:
        """Do not count the time until now, for example of installs and builds."""
        self._began = self._clock()

    def add(self, samples: Iterable[Sample]) -> None:
        self._session.samples += samples
        self._write()

    def close(self) -> None:
        """Count the seconds since the newest sample, too. A session without samples is not written."""
        if self._session.samples:
            self._write()

    def has(self, system: str, case: str, size: int, run: int) -> bool:
        return any((x.system, x.case, x.size, x.run) == (system, case, size, run) for x in self.samples)

    def next_run(self, system: str, case: str, size: int) -> int:
        same = [x.run for x in self.samples if (x.system, x.case, x.size) == (system, case, size)]
        return max(same, default=-1) + 1

    def hopeless(self, system: str, cases: Collection[str], size: int, limit_s: float) -> list[Sample]:
        """Earlier runs of these cases that did not finish within the whole time limit."""
        spent = (x for x in self.samples if x.unfinished and x.after_s >= limit_s and x.case in cases)
        return [x for x in spent if (x.system, x.size) == (system, size)]

    def _write(self) -> None:
        self._session.seconds = self._clock() - self._began
        write_sessions(self.path, [*self._earlier, self._session])
