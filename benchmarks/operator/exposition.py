"""What the API server's metrics say of bytes: all that it read and wrote for its clients, watches included. Pure.

All clients count: kwok, the scheduler and this benchmark as well, which do the same for each system.
"""

from __future__ import annotations

from collections.abc import Iterable

#: Bodies of requests; answers; what watches were told.
BYTES = (
    "apiserver_request_body_size_bytes_sum",
    "apiserver_response_sizes_sum",
    "apiserver_watch_events_sizes_sum",
)


class MetricMissing(Exception):
    """The API server tells nothing under a name that is counted on: it is of another version."""


def api_bytes(text: str) -> float:
    """Since the API server's start. Raises MetricMissing."""
    return sum(_sum(text.splitlines(), name) for name in BYTES)


def _sum(lines: Iterable[str], name: str) -> float:
    values = [float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name}{{", f"{name} "))]
    if not values:
        raise MetricMissing(f"the API server's metrics have no {name}: look for its new name in its /metrics")
    return sum(values)
