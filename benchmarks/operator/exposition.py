"""Bytes in the API server's metrics: all that it read and wrote for its clients, including watches. Pure.

All clients count, also kwok, the scheduler and this benchmark, which do the same for each system.
"""

from __future__ import annotations

from collections.abc import Iterable

#: Bodies of requests; answers; events of watches.
BYTES = (
    "apiserver_request_body_size_bytes_sum",
    "apiserver_response_sizes_sum",
    "apiserver_watch_events_sizes_sum",
)


class MetricMissing(Exception):
    """The API server has no metric of an expected name: its version is another one."""


def api_bytes(text: str) -> float:
    """Bytes since the API server's start. Raises MetricMissing."""
    return sum(_sum(text.splitlines(), name) for name in BYTES)


def _sum(lines: Iterable[str], name: str) -> float:
    values = [float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name}{{", f"{name} "))]
    if not values:
        raise MetricMissing(f"the API server's metrics have no {name}: look for its new name in its /metrics")
    return sum(values)
