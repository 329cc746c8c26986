"""The fleets, and the rates of what happens in them. Pure.

Rules: both fleets have the same mix of jobs and the same pods for each node. Faults come at the rate of Llama 3's
training (419 in 54 days on 16,384 GPUs), a thousand times as fast, for the GPUs of the large fleet. In the small fleet
as many faults of the same kinds hit jobs of the same sizes, so the difference is the size of the fleet alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, pairwise

from benchmarks.operator.manifests import NPROC_PER_NODE

FAULTS_PER_GPU_S = 419 / (54 * 86_400 * 16_384)
#: The sizes of ten jobs, as multiples of the smallest.
MIX = (1, 1, 1, 1, 1, 4, 4, 4, 16, 32)
MOST_NAMESPACES = 10
_GOLDEN = (5**0.5 - 1) / 2


class Case(StrEnum):
    EMPTY = "empty"  # nodes only
    IDLE = "idle"
    LABELS = "labels"
    FAULTS = "faults"
    VERDICTS = "verdicts"


@dataclass(frozen=True)
class Fleet:
    nodes: int
    jobs: int
    pods: int

    @property
    def pods_of_a_node(self) -> int:
        """The room of a node: its share, and one for a replaced pod. With more, the scheduler would put the first pods
        of all jobs on the same few nodes. Nodes of a training fleet have no such room.
        """
        return -(-self.pods // self.nodes) + 1

    def part(self, divisor: int) -> Fleet:
        return Fleet(self.nodes // divisor, self.jobs // divisor, self.pods // divisor)

    @property
    def namespaces(self) -> int:
        return min(MOST_NAMESPACES, -(-self.jobs // len(MIX)))

    def namespace_of(self, job: int) -> str:
        """Each namespace has jobs of all sizes."""
        return f"team-{job // len(MIX) % self.namespaces}"

    @property
    def job_sizes(self) -> list[int]:
        """Pods of each job. Raises ValueError if there are too few."""
        ends = [0, *accumulate(MIX[job % len(MIX)] for job in range(self.jobs))]
        places = [round(self.pods * end / ends[-1]) for end in ends]
        found = [end - begin for begin, end in pairwise(places)]
        if min(found) < 1:
            raise ValueError(f"{self.pods} pods are too few for {self.jobs} jobs of this mix: increase --pods")
        return found

    def faults_per_s(self, faster: float) -> float:
        return FAULTS_PER_GPU_S * faster * self.pods * NPROC_PER_NODE

    @property
    def listed_shards(self) -> str:
        """The namespaces in turns: the hash of so few names would not distribute them evenly."""
        return ",".join(f"team-{number}={number % 2}" for number in range(self.namespaces))


@dataclass(frozen=True)
class Strike:
    """A fault. job: its number."""

    at_s: float
    job: int
    loses_pod: bool


def strikes(fleet: Fleet, per_s: float, seconds: float) -> list[Strike]:
    """At random times (a Poisson process with its expected count). A job is hit in proportion to its pods, and every
    second fault loses a pod.
    """
    count, chance = max(1, round(per_s * seconds)), random.Random(0)
    return [
        Strike(at_s, struck_job(fleet.job_sizes, number), bool(number % 2))
        for number, at_s in enumerate(sorted(chance.uniform(0, seconds) for _ in range(count)))
    ]


def struck_job(sizes: list[int], number: int) -> int:
    """The job of a fault. The same number means the same place among the pods of all jobs, ordered by the jobs' sizes:
    so it means a job of the same size in a fleet of another size.
    """
    jobs = sorted(range(len(sizes)), key=lambda job: (sizes[job], job))
    place = (number + 1) * _GOLDEN % 1.0 * sum(sizes)
    ends = accumulate(sizes[job] for job in jobs)
    return next(job for job, end in zip(jobs, ends, strict=True) if place < end)
