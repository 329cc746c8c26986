"""The workers that are alive, the process groups that are not empty yet, and the processes that outlive SIGKILL.

Rules: a worker's group may outlive it, and a process that has left the group (setsid, a daemon) may outlive the group.
Such leftovers count as one more group, with the local rank LEFTOVERS, once all remaining processes are to be killed.
After that nothing more can be saved. Processes that remain after LOG_EVERY_S (they sleep uninterruptibly in the kernel)
get another SIGKILL and are reported. Pure.
"""

from typing import Optional

from understudy_launcher.events import Aim, Signal
from understudy_launcher.warmup import WARMUP

LOG_EVERY_S = 5.0
LEFTOVERS = -2


class Groups:
    """Contains local ranks. Times are by the caller's clock."""

    def __init__(self) -> None:
        self.alive: set[int] = set()  # the worker runs
        self.left: set[int] = set()  # the group is not empty
        self.leftovers = False  # whether there may be leftovers
        self.log_at: Optional[float] = None
        self._killed_at: Optional[float] = None  # when all remaining processes got SIGKILL

    @property
    def killed(self) -> bool:
        return self._killed_at is not None

    def spawned(self, nproc: int) -> None:
        self.alive, self.left, self.leftovers = set(range(nproc)), set(range(nproc)), True

    def warmup_spawned(self) -> None:
        self.left.add(WARMUP)
        self.leftovers = True

    def emptied(self, local_rank: int) -> None:
        self.alive.discard(local_rank)
        self.left.discard(local_rank)
        if local_rank == LEFTOVERS:
            self.leftovers = False
        if not self.left:
            self._killed_at = self.log_at = None

    def term(self, aim: Aim = Aim.TERM_WORKER) -> list[Signal]:
        """SIGTERM to the workers only, as torchrun does: a worker may need its DataLoader children for a save."""
        return [Signal(rank, aim) for rank in sorted(self.alive)]

    def kill(self, now: float) -> list[Signal]:
        self.left |= {LEFTOVERS} if self.leftovers else set()
        if self.left and self._killed_at is None:
            self._killed_at, self.log_at = now, now + LOG_EVERY_S
        return [Signal(rank, Aim.KILL_GROUP) for rank in sorted(self.left)]

    def is_late(self, now: float) -> bool:
        """Whether the remaining processes are to be reported and killed again. It is due again LOG_EVERY_S later."""
        if self.log_at is None or now < self.log_at:
            return False
        self.log_at = now + LOG_EVERY_S
        return True

    def since_kill_s(self, now: float) -> float:
        return 0.0 if self._killed_at is None else now - self._killed_at
