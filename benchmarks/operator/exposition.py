"""Numbers in a program's metrics. Pure.

api_bytes: all bytes that the API server read and wrote for its clients, including watches. All clients count,
also kwok, the scheduler and this benchmark, which do the same for each system.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: Bodies of requests; answers; events of watches.
BYTES = (
    "apiserver_request_body_size_bytes_sum",
    "apiserver_response_sizes_sum",
    "apiserver_watch_events_sizes_sum",
)


class MetricMissing(Exception):
    """The program has no metric of an expected name: its version is another one."""


def api_bytes(text: str) -> float:
    """Bytes since the API server's start. Raises MetricMissing."""
    return sum(_sum(text.splitlines(), name) for name in BYTES)


def _sum(lines: Iterable[str], name: str) -> float:
    values = [float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name}{{", f"{name} "))]
    if not values:
        raise MetricMissing(f"the API server's metrics have no {name}: look for its new name in its /metrics")
    return sum(values)


@dataclass(frozen=True)
class Buckets:
    """A histogram's cumulative counts by upper bound, in order."""

    counts: Mapping[float, float]

    def __sub__(self, earlier: Buckets) -> Buckets:
        return Buckets({bound: count - earlier.counts[bound] for bound, count in self.counts.items()})

    @property
    def count(self) -> float:
        return max(self.counts.values())

    def quantile(self, share: float) -> float:
        """Interpolated within its bucket, as Prometheus does; 0 without observations."""
        rank, lower, below = share * self.count, 0.0, 0.0
        for bound, count in self.counts.items():
            if count >= rank > below:
                return lower if math.isinf(bound) else lower + (bound - lower) * (rank - below) / (count - below)
            lower, below = bound, count
        return 0.0


def histogram(text: str, name: str) -> Buckets:
    """The sum over all labels. Raises MetricMissing."""
    counts: dict[float, float] = {}
    for line in text.splitlines():
        if line.startswith(f"{name}_bucket{{") and (found := re.search(r'le="([^"]+)"', line)):
            bound = float(found[1])
            counts[bound] = counts.get(bound, 0.0) + float(line.rpartition(" ")[2])
    if not counts:
        raise MetricMissing(f"the metrics have no histogram {name}: look for its new name in /metrics")
    return Buckets(dict(sorted(counts.items())))
