"""Modeled trainings, whose ranks report when they enter collectives, each by the clock of its own machine.

In each step, a rank works, enters the first collective, works, enters the last one, leaves it with the others, works,
and calls step(). No rank leaves a collective before the last one has entered it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from understudy_sidecar.membership.slow_ranks import Report, make_report

#: Of a window.
STEPS = 10

MS = 1_000_000
SECOND = 1000 * MS
TRANSFER_NS = 2 * MS


@dataclass
class Training:
    """A step takes 100 ms: 60 ms before the first collective, 30 ms to the last one, and 10 ms to step().

    before, between, after: additional milliseconds of a rank in a step of that number, at these three places.
    clocks: by rank, nanoseconds by which its clock is ahead.
    """

    ranks: int
    before: Callable[[int, int], float] = lambda rank, step: 0.0
    between: Callable[[int, int], float] = lambda rank, step: 0.0
    after: Callable[[int, int], float] = lambda rank, step: 0.0
    clocks: Mapping[int, int] = field(default_factory=dict)
    steps: int = 0

    def __post_init__(self) -> None:
        self._ends = [0] * self.ranks  # true times of the last step()

    def window(self) -> dict[int, Report]:
        """The reports about its next ten steps."""
        ends: list[list[int]] = [[self._clock(rank, end)] for rank, end in enumerate(self._ends)]
        entries: list[list[int]] = [[] for _ in range(self.ranks)]
        for _ in range(STEPS):
            self.steps += 1
            left = self._ends
            for work_ms, extra in ((60, self.before), (30, self.between)):
                entered = [left[rank] + _ns(work_ms + extra(rank, self.steps)) for rank in range(self.ranks)]
                for rank, at in enumerate(entered):
                    entries[rank].append(self._clock(rank, at))
                left = [max(entered) + TRANSFER_NS] * self.ranks
            self._ends = [left[rank] + _ns(10 + self.after(rank, self.steps)) for rank in range(self.ranks)]
            for rank, end in enumerate(self._ends):
                ends[rank].append(self._clock(rank, end))
        return {rank: self._report(ends[rank], entries[rank]) for rank in range(self.ranks)}

    def _report(self, ends: list[int], entries: list[int]) -> Report:
        durations = sorted(after - before for before, after in pairwise(ends))
        first = 2 * (self.steps - STEPS)
        delays = [at - ends[number // 2] for number, at in enumerate(entries)]
        report = make_report(durations[STEPS // 2], range(first, first + 2 * STEPS), delays)
        assert report is not None
        return report

    def _clock(self, rank: int, at: int) -> int:
        return at + self.clocks.get(rank, 0)


def _ns(milliseconds: float) -> int:
    return int(milliseconds * MS)


def slow(*ranks: int, ms: float = 100.0) -> Callable[[int, int], float]:
    """These ranks take so much longer in each step."""
    return lambda rank, step: ms if rank in ranks else 0.0


def ordinary(seed: int) -> Training:
    """A training with a random number of ranks, clocks, saves, evaluations, garbage collections and jitter."""
    chance = random.Random(seed)
    ranks = chance.choice([2, 3, 4, 8, 16])
    jitter = chance.uniform(0.02, 0.3)  # of each work
    save_every, save_ms = chance.choice([1, 5, 10, 50]), chance.uniform(100, 5000)
    save_before, saves_all = chance.random() < 0.5, chance.random() < 0.3
    save_every = save_every if save_before else max(5, save_every)
    evaluate_every, evaluate_ms = chance.choice([20, 50, 100]), chance.uniform(500, 20_000)
    uneven = chance.uniform(0, 0.1)  # ranks of one node differ a little, always

    def save(rank: int, step: int) -> float:
        return save_ms if step % save_every == 0 and (rank == 0 or saves_all) else 0.0

    def work(rank: int, step: int) -> float:
        extra = 60 * (abs(chance.gauss(0, jitter)) + uneven * (rank % 3) / 2)
        if chance.random() < 0.01:
            extra += chance.uniform(0, 500)  # a garbage collection, or a page fault
        if step % evaluate_every == 0:
            extra += evaluate_ms * chance.uniform(0.9, 1.1)
        return extra + (0.0 if save_before else save(rank, step))

    return Training(
        ranks,
        before=work,
        between=lambda rank, step: 30 * abs(chance.gauss(0, jitter)),
        after=lambda rank, step: 10 * abs(chance.gauss(0, jitter)) + (save(rank, step) if save_before else 0.0),
        clocks={rank: chance.randrange(-300, 300) * SECOND for rank in range(ranks)},
    )
