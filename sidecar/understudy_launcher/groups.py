"""Who is left of the workers: which live, whose process groups hold anything yet, and what outlives its SIGKILL.

Rules: a worker's group may outlive it, and a process that has left the group (setsid, a daemon) may outlive that. Such
leftovers are one more group, of the local rank LEFTOVERS, which counts once all that is left is to be killed. After
that nothing more can be saved, and what is still there after COMPLAIN_EVERY_S (it sleeps uninterruptibly in the kernel)
gets another SIGKILL and is named. Pure.
"""

from typing import Optional

from understudy_launcher.events import Aim, Signal
from understudy_launcher.warmup import WARMUP

COMPLAIN_EVERY_S = 5.0
LEFTOVERS = -2


class Groups:
    """Local ranks, and the times of the caller's clock."""

    def __init__(self) -> None:
        self.alive: set[int] = set()  # whose worker runs
        self.left: set[int] = set()  # of which any process is left
        self.leftovers = False  # whether there may be any
        self.complain_at: Optional[float] = None
        self._killed_at: Optional[float] = None  # when all that was left got SIGKILL

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
            self._killed_at = self.complain_at = None

    def term(self) -> list[Signal]:
        """To the workers alone, as torchrun does: one may need its DataLoader children for a save."""
        return [Signal(rank, Aim.TERM_WORKER) for rank in sorted(self.alive)]

    def kill(self, now: float) -> list[Signal]:
        self.left |= {LEFTOVERS} if self.leftovers else set()
        if self.left and self._killed_at is None:
            self._killed_at, self.complain_at = now, now + COMPLAIN_EVERY_S
        return [Signal(rank, Aim.KILL_GROUP) for rank in sorted(self.left)]

    def complaint(self, now: float) -> Optional[str]:
        """What is to be logged by now, if anything; then a kill is due again."""
        if self._killed_at is None or self.complain_at is None or now < self.complain_at:
            return None
        self.complain_at = now + COMPLAIN_EVERY_S
        ranks = ",".join(str(rank) for rank in sorted(self.left))
        return f"not gone {now - self._killed_at:.0f} s after SIGKILL (stuck in the kernel?): local_ranks={ranks}"
