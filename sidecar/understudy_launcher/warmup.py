"""The warm-up of a spare: a command of the user that runs once, before any round; nothing depends on it. Pure.

    state    event                                 next     effects
    -------  ------------------------------------  -------  ----------------------------------------------
    WAITING  no zygote loads (any more)            RUNNING  SpawnWarmup
    WAITING  a round starts, or the launcher ends  DONE     it never runs
    RUNNING  it ends, with any exit code           DONE     its time is logged
    RUNNING  a round starts, or the launcher ends  RUNNING  SIGKILL to its group, as to any (supervise.py)

Processes and groups treat it as one more worker, with the local rank WARMUP: the round that ends it starts only when
none of its processes is left, because it may occupy GPU memory.
"""

from enum import Enum

from understudy_launcher import events as e

WARMUP = -1


class WarmupState(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "over"


class Warmup:
    """wanted: the pod is a spare whose job has a warm-up."""

    def __init__(self, wanted: bool) -> None:
        self.state = WarmupState.WAITING if wanted else WarmupState.DONE
        self._since = 0.0
        self._end_reason = ""

    def start(self, now: float) -> list[e.Effect]:
        """Called when no worker runs and no zygote loads."""
        if self.state is not WarmupState.WAITING:
            return []
        self.state, self._since = WarmupState.RUNNING, now
        return [e.Log("the warm-up starts"), e.SpawnWarmup()]

    def end(self, why: str) -> None:
        """The warm-up must not start any more. If it runs, it gets SIGKILL."""
        if self.state is WarmupState.WAITING:
            self.state = WarmupState.DONE
        self._end_reason = self._end_reason or why

    def ended(self, event: e.WorkerEnded, now: float) -> list[e.Effect]:
        self.state = WarmupState.DONE
        took = f"after {now - self._since:.1f} s"
        if self._end_reason:
            return [e.Log(f"the warm-up was stopped {took}: {self._end_reason}")]
        if event.shell_code == 0:
            return [e.Log(f"the warm-up finished {took}")]
        return [e.Log(f"the warm-up failed {took} ({event.message}): workers start without it")]
