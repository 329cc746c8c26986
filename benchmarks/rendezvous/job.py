"""The keys and the shape of a benchmarked job. All of its processes use the same ones."""

from __future__ import annotations

from understudy_protocol.noise import public_key
from understudy_protocol.pod import JobShape

KEY = bytes(range(32))
OPERATOR = bytes(range(32, 64))  # the operator's private X25519 key
OPERATOR_PUBLIC = public_key(OPERATOR)
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
