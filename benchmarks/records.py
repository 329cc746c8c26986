"""What a benchmark has measured: samples (one run each), and the records that sum them up.

Rules: a record has one shape in all benchmarks, `{system, case, size, metric, unit, median, min, max, runs}`. A run
that did not finish counts as longer than all that did: where the median falls on one it is null, and `min` is the time
that was at least taken. Each sample is appended to a file as soon as it is there: an interrupted benchmark can go on.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

#: Every metric's unit; a metric that is not in here is not recorded.
UNITS = {
    "alone_s": "s",
    "wait_s": "s",
    "seconds": "s",
    "first_all_reduce_s": "s",
    "first_step_s": "s",
    "after_detection_s": "s",
    "withdrawn_s": "s",
    "exit_s": "s",
    "connect_s": "s",
    "assign_s": "s",
    "office_s": "s",
    "coordinator_cpu_s": "s",
    "cpu_s_per_minute": "s/min",
    "rss_mb": "MB",
    "call_us": "µs",
    "created_s": "s",
    "running_s": "s",
    "told_s": "s",
    "ready_s": "s",
    "api_writes": "requests",
    "api_reads": "requests",
    "api_mb": "MB",
    "cpu_s": "s",
    "cpu_percent": "%",
    "controller_manager_cpu_s": "s",
    "api_server_cpu_s": "s",
    "peak_rss_mb": "MB",
    "cpu_ms": "ms",
    "beyond_slowest_s": "s",
    "p99_ms": "ms",
    "max_ms": "ms",
    "added_p99_ms": "ms",
    "reconciles": "1/s",
}


@dataclass(frozen=True)
class Sample:
    """One run of one system in one case."""

    system: str
    case: str
    size: int
    run: int
    values: dict[str, float] = field(default_factory=dict)  # metric -> number
    unfinished: str = ""  # why the run came to no end
    metrics: tuple[str, ...] = ("seconds",)  # what it would have told then
    after_s: float = 0.0  # how long it had had by then


@dataclass(frozen=True)
class Record:
    system: str
    case: str
    size: int
    metric: str
    unit: str
    median: float | None
    min: float
    max: float | None
    runs: int


def sum_up(samples: Iterable[Sample]) -> list[Record]:
    """One record for each system, case, size and metric, in the order in which they first appear."""
    series: dict[tuple[str, str, int, str], list[tuple[float, float]]] = {}  # -> (number, what it at least was)
    for sample in samples:
        values = dict.fromkeys(sample.metrics, math.inf) if sample.unfinished else sample.values
        for metric, value in values.items():
            least = sample.after_s if sample.unfinished else value
            series.setdefault((sample.system, sample.case, sample.size, metric), []).append((value, least))
    return [_record(*key, numbers) for key, numbers in series.items()]


def _record(system: str, case: str, size: int, metric: str, numbers: Sequence[tuple[float, float]]) -> Record:
    values = [value for value, _ in numbers]
    least = min(at_least for _, at_least in numbers)
    median, longest = (_finite(x) for x in (statistics.median(values), max(values)))
    return Record(system, case, size, metric, UNITS[metric], median, _rounded(least), longest, len(values))


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else _rounded(value)


def _rounded(value: float) -> float:
    return round(value, 4)


def write_records(path: Path, records: Sequence[Record]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(record) for record in records], indent=1) + "\n")


def read_records(path: Path) -> list[Record]:
    return [Record(**plain) for plain in json.loads(path.read_text())]


def _read(line: str) -> Sample:
    plain = json.loads(line)
    return Sample(**{**plain, "metrics": tuple(plain["metrics"])})


class Journal:
    """The samples of a benchmark, one a line, on disk as soon as they are there."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.samples: list[Sample] = []
        if resume and path.exists():
            self.samples = [_read(line) for line in path.read_text().splitlines()]
        else:
            path.write_text("")

    def add(self, samples: Iterable[Sample]) -> None:
        with self._path.open("a") as file:
            for sample in samples:
                self.samples.append(sample)
                file.write(json.dumps(asdict(sample)) + "\n")

    def has(self, system: str, case: str, size: int, run: int) -> bool:
        return any((x.system, x.case, x.size, x.run) == (system, case, size, run) for x in self.samples)

    def hopeless(self, system: str, cases: Collection[str], size: int, limit_s: float) -> Sample | None:
        """A former run of these that had all of its time and came to no end: it need not be tried again."""
        former = (x for x in self.samples if x.unfinished and x.after_s >= limit_s and x.case in cases)
        return next((x for x in former if (x.system, x.size) == (system, size)), None)
