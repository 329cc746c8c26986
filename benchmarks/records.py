"""The measurements of a benchmark: samples (one run each), and the records that sum them up.

Rules: a record has the same fields in all benchmarks, `{system, case, size, metric, unit, median, min, max, runs,
unfinished}`. A run that did not finish counts as longer than all that did. If the median is such a run, it is null, and
`min` is the shortest time that such a run had. journal.py stores the samples.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

#: Every metric's unit. A metric without a unit is not recorded.
UNITS = {
    "alone_s": "s",
    "others_s": "s",
    "blocked_s": "s",
    "longest_task_ms": "ms",
    "step_s": "s",
    "s_per_gb": "s/GB",
    "memory_ratio": "of the slots",
    "update_s": "s",
    "lost_steps": "steps",
    "wait_s": "s",
    "seconds": "s",
    "first_all_reduce_s": "s",
    "first_step_s": "s",
    "after_detection_s": "s",
    "withdrawn_s": "s",
    "exit_s": "s",
    "connect_s": "s",
    "assign_s": "s",
    "first_welcome_s": "s",
    "coordinator_cpu_s": "s",
    "cpu_s_per_minute": "s/min",
    "rss_mb": "MB",
    "call_us": "µs",
    "created_s": "s",
    "running_s": "s",
    "reported_s": "s",
    "written_s": "s",
    "ready_s": "s",
    "api_writes": "requests",
    "api_reads": "requests",
    "api_mb": "MB",
    "cpu_s": "s",
    "cpu_percent": "%",
    "controller_manager_cpu_s": "s",
    "others_cpu_s": "s",
    "api_server_cpu_s": "s",
    "peak_rss_mb": "MB",
    "pod_bytes": "B",
    "managed_bytes": "B",
    "sidecar_variables_bytes": "B",
    "sidecar_mounts_bytes": "B",
    "sidecar_security_bytes": "B",
    "sidecar_probe_bytes": "B",
    "sidecar_others_bytes": "B",
    "trainer_variables_bytes": "B",
    "volumes_bytes": "B",
    "own_labels_bytes": "B",
    "cpu_ms": "ms",
    "beyond_slowest_s": "s",
    "queue_p50_ms": "ms",
    "queue_p99_ms": "ms",
    "reads_per_s": "1/s",
    "writes_per_s": "1/s",
    "api_server_cpu_percent": "%",
    "all_programs_mb": "MB",
    "measured_s": "s",
    "faults": "faults",
    "nodes": "nodes",
    "jobs": "jobs",
    "p50_ms": "ms",
    "p99_ms": "ms",
    "max_ms": "ms",
    "added_p50_ms": "ms",
    "added_p99_ms": "ms",
    "cpu_us": "µs",
    "reconciles": "1/s",
    "core_s": "s",
    "wire_s": "s",
    "messages_out": "messages",
    "messages_in": "messages",
    "mb_out": "MB",
    "mb_in": "MB",
    "minutes": "min",
    "windows": "windows",
    "pings": "pings",
    "false_alarms": "alarms",
    "ended": "connections",
    "detected_s": "s",
    "after_ping_s": "s",
}


@dataclass(frozen=True)
class Sample:
    """One run of one system in one case."""

    system: str
    case: str
    size: int
    run: int
    values: dict[str, float] = field(default_factory=dict)  # metric -> number
    unfinished: str = ""  # why the run did not finish
    metrics: tuple[str, ...] = ("seconds",)  # the metrics that an unfinished run lacks
    after_s: float = 0.0  # the time that the run had


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
    unfinished: int = 0  # of these runs


def sum_up(samples: Iterable[Sample]) -> list[Record]:
    """One record for each system, case, size and metric, in the order in which they first appear."""
    series: dict[tuple[str, str, int, str], list[tuple[float, float]]] = {}  # -> (number, its lower bound)
    for sample in samples:
        values = dict.fromkeys(sample.metrics, math.inf) if sample.unfinished else sample.values
        for metric, value in values.items():
            least = sample.after_s if sample.unfinished else value
            series.setdefault((sample.system, sample.case, sample.size, metric), []).append((value, least))
    return [_record(*key, numbers) for key, numbers in series.items()]


def _record(system: str, case: str, size: int, metric: str, numbers: Sequence[tuple[float, float]]) -> Record:
    values = [value for value, _ in numbers]
    limits = [at_least for value, at_least in numbers if math.isinf(value)]
    median, longest = (_finite(x) for x in (statistics.median(values), max(values)))
    least = min(limits if median is None else values)
    unit = UNITS[metric]
    return Record(system, case, size, metric, unit, median, _rounded(least), longest, len(values), len(limits))


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else _rounded(value)


def _rounded(value: float) -> float:
    return round(value, 4)
