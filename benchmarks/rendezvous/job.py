"""What all processes of a benchmarked job agree upon: its key, its shape, and its pods."""

from __future__ import annotations

from understudy_protocol.pod import JobShape

KEY = b"the benchmark's key"
UID = "job-uid"
EPOCH = 1

#: Longer than any run: a member that is slow because the machine is shared may be late, but not lost.
IN_PLACE = (10, 3600.0)


def shape(actives: int) -> JobShape:
    return JobShape(UID, "benchmarks", "rendezvous", actives, 8, *IN_PLACE)
