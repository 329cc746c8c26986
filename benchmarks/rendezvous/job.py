"""What all processes of a benchmarked job agree upon: its key and its shape."""

from __future__ import annotations

from understudy_protocol.pod import JobShape

KEY = b"the benchmark's key"
UID = "job-uid"
EPOCH = 1

NPROC_PER_NODE = 8


def shape(actives: int) -> JobShape:
    return JobShape(
        UID,
        "benchmarks",
        "rendezvous",
        actives,
        NPROC_PER_NODE,
        in_place_max_restarts=10,
        in_place_window_s=3600.0,
    )
