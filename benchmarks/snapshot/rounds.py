"""Rounds of 10,000 members with snapshots and copies, and without: what the coordinator spends on them.

The members are those of `make bench-scale`, without sockets.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.goals import UNDERSTUDY
from benchmarks.records import Sample
from benchmarks.scale.__main__ import measure
from benchmarks.scale.coordinator import SNAPSHOTS
from benchmarks.snapshot.trainings import WITHOUT

MEMBERS = 10_000
#: By the name of the fault in `make bench-scale`.
CASES = {"worker-failed": "round-in-place", "member-lost": "round-with-spare"}
SESSIONS = {UNDERSTUDY: SNAPSHOTS, WITHOUT: "restarts"}


def measure_rounds(system: str, run: int, members: int = MEMBERS) -> Iterator[Sample]:
    """A sample for each case: the coordinator's CPU time from the fault to the first step of the last member."""
    for sample in measure(SESSIONS[system], members, run):
        cpu_s = sample.values["core_s"] + sample.values["wire_s"]
        yield Sample(system, CASES[sample.case], members, run, {"cpu_s": cpu_s})
