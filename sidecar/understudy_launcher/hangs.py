"""Detects that the workers of a round hang: a worker has made steps, and then none for the step timeout. Pure.

Only the coordinator knows whether a worker of another pod has made a step. So the coordinator decides that a round
hangs before its first step, and sends WriteStacks.

    state     event                                      next      what it does
    --------  -----------------------------------------  --------  ---------------------------------------------------
    WATCHING  a worker has made no step for the timeout  DUMPING   every worker that has stepped dumps its stacks
    WATCHING  WriteStacks, and no worker has stepped     DUMPING   every worker dumps its stacks
    DUMPING   all stacks are written                     DUMPING   each of these workers writes its collectives
    DUMPING   all collectives are written                REPORTED  Hung of the slowest worker
    DUMPING   all stacks for WriteStacks are written     WATCHING  Hung without a step
    REPORTED  REPORT_AGAIN_S has passed                  REPORTED  Hung again: the coordinator may be a new one
    DUMPING   the silent worker has stepped, or ended    WATCHING
    REPORTED  the silent worker has stepped, or ended    WATCHING

Rules: a worker is watched from its first step() of the round until it ends. Workers dump one after the other, the
slowest first, because they write to one log: each has SLOT_S, and all together have ALL_SLOTS_S. The last one has
LAST_SLOT_S. Then all write their newest collectives, a line each, and have LINES_S. The report follows DUMP_S or later
after the start of the dumps, because it makes the coordinator kill the workers. The slowest worker has the lowest step;
among equals, it made that step first. Silence is measured up to the last read of the steps (steps.py).
"""

from collections.abc import Collection
from enum import Enum
from typing import Optional

from understudy_launcher import events as e
from understudy_launcher.steps import RoundSteps
from understudy_protocol.launcher import Hung, StartWorkers

DUMP_S = 1.0
SLOT_S = 0.2
LAST_SLOT_S = 0.3
LINES_S = 0.2
ALL_SLOTS_S = 5.0
REPORT_AGAIN_S = 10.0
NO_STEP = -1


class HangWatchState(Enum):
    WATCHING = "watching"
    DUMPING = "dumping"
    REPORTED = "reported"


class HangWatch:
    """The workers of one round. timeout_s: 0 disables hang detection."""

    def __init__(self, start: StartWorkers, steps: RoundSteps, timeout_s: float, started_at: float) -> None:
        self.state = HangWatchState.WATCHING
        self._start, self._steps, self._timeout_s, self._started_at = start, steps, timeout_s, started_at
        self._asked = False  # by WriteStacks
        self._to_dump: list[int] = []  # local ranks
        self._dumped: list[int] = []  # those that write their collectives next
        self._slot_s = SLOT_S
        self._next_at = 0.0  # the next dump or report
        self._reported_from = 0.0  # earliest time of the report

    def deadline(self) -> Optional[float]:
        """None while WATCHING: the next read of the steps is early enough."""
        return None if self.state is HangWatchState.WATCHING else self._next_at

    def on_time(self, alive: Collection[int], now: float) -> list[e.Effect]:
        """alive: the local ranks of the running workers."""
        if self._asked:
            return self._answer(alive, now)
        if not self._timeout_s:
            return []
        watched = [rank for rank in self._steps.newest if rank in alive]
        if not any(self._steps.silent_s(rank) >= self._timeout_s for rank in watched):
            return self._continues()
        if self.state is HangWatchState.WATCHING:
            self._begin(sorted(watched, key=self._slowness), now)
        if now < self._next_at:
            return []
        if self.state is HangWatchState.DUMPING and self._to_dump:
            return self._dump(now)
        if self.state is HangWatchState.DUMPING and self._dumped:
            return self._write_collectives(now)
        self.state, self._next_at = HangWatchState.REPORTED, now + REPORT_AGAIN_S
        return [e.Report(self._hung(min(watched, key=self._slowness)))]

    def write_stacks(self, alive: Collection[int], now: float) -> list[e.Effect]:
        """The coordinator orders this if no worker has reported a step in this round."""
        if self._asked or self.state is not HangWatchState.WATCHING or self._steps.newest:
            return []
        self._asked = True
        self._begin(sorted(alive), now)
        return self._answer(alive, now)

    def _answer(self, alive: Collection[int], now: float) -> list[e.Effect]:
        if self._steps.newest or not alive:
            self._asked = False
            return self._continues()
        if now < self._next_at:
            return []
        if self._to_dump:
            return self._dump(now)
        self._asked, self.state = False, HangWatchState.WATCHING
        return [e.Report(Hung(self._start.token, min(alive), NO_STEP, 0.0, now - self._started_at))]

    def _continues(self) -> list[e.Effect]:
        before, self.state = self.state, HangWatchState.WATCHING
        return [] if before is HangWatchState.WATCHING else [self._log("its workers step again")]

    def _begin(self, to_dump: list[int], now: float) -> None:
        self.state, self._next_at, self._to_dump = HangWatchState.DUMPING, now, to_dump
        self._dumped = []
        self._slot_s = min(SLOT_S, ALL_SLOTS_S / len(to_dump))
        self._reported_from = now + DUMP_S

    def _dump(self, now: float) -> list[e.Effect]:
        rank = self._to_dump.pop(0)
        self._next_at = now + self._slot_s
        self._dumped.append(rank)
        if not self._to_dump:
            self._next_at = max(now + LAST_SLOT_S, self._reported_from - LINES_S)
        worker = f"worker local_rank={rank} rank={self._start.rank_offset + rank}"
        since = f"{now - self._started_at:.0f} s since its start"
        if not self._asked:
            since = f"{self._steps.silent_s(rank):.0f} s since step {self._steps.newest[rank].step}"
        return [self._log(f"{worker} made no step for {since}: its stacks follow"), e.DumpStacks(rank)]

    def _write_collectives(self, now: float) -> list[e.Effect]:
        ranks, self._dumped, self._next_at = self._dumped, [], now + LINES_S
        return [e.WriteCollectives(rank) for rank in ranks]

    def _slowness(self, rank: int) -> tuple[int, float, int]:
        newest = self._steps.newest[rank]
        return newest.step, newest.stepped_at, rank

    def _hung(self, rank: int) -> Hung:
        newest = self._steps.newest[rank]
        return Hung(self._start.token, rank, newest.step, newest.at, self._steps.silent_s(rank))

    def _log(self, text: str) -> e.Log:
        return e.Log(f"round={self._start.token} {text}")
