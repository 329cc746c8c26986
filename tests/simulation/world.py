"""Simulated time: a heap of (time, number, callback), one seeded source of randomness, and a trace of events.

This module does not depend on the simulated objects. `check` (the invariants) runs after every callback, so that a
violation is found at the event that caused it.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

#: Simulated Unix time at the start: as in production, no machine ever has a time near zero.
EPOCH_S = 1_000_000.0
TRACE_LINES = 400


class Rule(StrEnum):
    """The rules that the invariants check. NO_ERROR: the code raises none, and its assertions hold."""

    A_RANK_HAS_ONE_WORKER = "a rank has one worker"
    TOKENS_ONLY_GROW = "tokens only grow"
    NO_INNOCENT_WORKER_IS_BLAMED = "no innocent worker is blamed"
    A_TRAINING_ROUND_DOES_NOT_HANG = "a training round does not hang"
    PAUSES_ARE_TRUE = "pauses are true"
    EACH_STRATEGY_HAS_ITS_REASON = "each strategy has its reason"
    A_ROUND_NEEDS_A_MAJORITY = "a round needs a majority"
    A_TERM_HAS_ONE_COORDINATOR = "a term has one coordinator"
    A_LOST_POD_HAS_A_NAME = "a lost pod has a name"
    ROUNDS_ARE_FEW = "rounds are few"
    A_ROUND_HAS_ONE_WORLD = "a round has one world"
    A_GROUP_RANK_HAS_ONE_MEMBER = "a group rank has one member"
    ONLY_A_SUCCESS_EXITS_0 = "only a success exits 0"
    A_SUCCESS_MADE_ALL_STEPS = "a success made all steps"
    A_STALE_ROUND_ENDS = "a stale round ends"
    A_FAULT_IS_FOLLOWED_BY_A_STEP = "a fault is followed by a step"
    ALL_HEAR_OF_THE_CLOSE = "all hear of the close"
    THERE_IS_ONE_CLOSE = "there is one close"
    A_FAILURE_HAS_SPENT_ITS_RETRIES = "a failure has spent its retries"
    A_FAILURE_NAMES_ITS_REASON = "a failure names its reason"
    ALL_EXIT_AFTER_THE_CLOSE = "all exit after the close"
    EXIT_CODES_FOLLOW_THE_CLOSE = "exit codes follow the close"
    HARD_STATES_NEVER_GO_BACK = "no hard state is replaced by an older one"
    A_MAJORITY_ELECTS = "a majority elects"
    MEMBERS_ELECT_BY_THEMSELVES = "members elect by themselves"
    VOTER_CONFIGS_ARE_INHERITED = "voter configurations are inherited"
    ONE_COORDINATOR_MAY_BE_FOLLOWED = "one coordinator may be followed"
    A_RANK_COSTS_ONE_POD = "a rank costs one pod"
    ONE_POD_BEYOND_THE_BUDGET = "one pod beyond the budget"
    THE_BUDGET_IS_KEPT = "the budget is kept"
    ONLY_FAILURES_ARE_CHARGED = "only failures are charged"
    CHARGES_NEED_A_MAJORITY = "charges need a majority"
    NO_INNOCENT_POD_IS_EVICTED = "no innocent pod is evicted"
    A_ROUND_HAS_ONE_STORE = "a round has one store"
    A_STORE_SERVES_ONE_ROUND = "a store serves one round"
    A_STEP_HAS_ALL_RANKS_OF_ITS_ROUND = "a step has all ranks of its round"
    A_ROUND_RESTORES_ONE_SNAPSHOT = "a round restores one snapshot, and each rank has it"
    THE_NEWEST_SNAPSHOT_IS_RESTORED = "the newest snapshot that all ranks have is restored"
    NO_STALE_SNAPSHOT_IS_RESTORED = "no snapshot of a round that was replaced is restored"
    EACH_HOLDER_HAS_ITS_PLAN = "each holder of copies has its plan"
    CHECKPOINTS_ONLY_GROW = "checkpoints only grow"
    PARTS_ARE_THE_WALL_TIME = "the parts of the job's time are the wall time"
    PRODUCTIVE_TIME_HAS_STEPS = "in productive time, steps are made for the first time"
    COUNTED_STEPS_ARE_NOT_COMPARED = "steps that are counted are neither lost nor repeated, as far as is known"
    NO_BUSY_LOOP = "no busy loop"
    NO_ERROR = "no error"


class Violation(AssertionError):
    """A rule is violated."""

    def __init__(self, rule: Rule, text: str) -> None:
        super().__init__(text)
        self.rule = rule


@dataclass
class World:
    seed: int
    now: float = EPOCH_S
    check: Callable[[], None] = lambda: None
    trace: deque[str] = field(default_factory=lambda: deque(maxlen=TRACE_LINES))
    events: int = 0
    _heap: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def after(self, delay: float, callback: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._heap, (self.now + delay, self._number, callback))

    def at(self, time: float, callback: Callable[[], None]) -> None:
        self.after(max(0.0, time - self.now), callback)

    def between(self, least: float, most: float) -> float:
        return self.rng.uniform(least, most)

    def log(self, source: str, text: str) -> None:
        self.trace.append(f"{self.now - EPOCH_S:9.3f} {source:<12} {text}")

    def run(self, until: float, over: Callable[[], bool] = lambda: False) -> None:
        """Run until the time `until`, or until `over()`."""
        while self._heap and not over():
            time, _, callback = self._heap[0]
            if time > until:
                break
            heapq.heappop(self._heap)
            self.now = max(self.now, time)
            self.events += 1
            callback()
            self.check()
        else:
            return
        self.now = until

    @property
    def elapsed(self) -> float:
        return self.now - EPOCH_S
