"""A pool's spare that no job has claimed: whether it is ready, by repeated checks of its launcher.

    state        event                               next         what it does
    -----------  ----------------------------------  -----------  ------------------------------------------
    NO_LAUNCHER  the launcher connects               WARMING      CheckReadiness, again each CHECK_WARMING_S
    WARMING      Readiness: ready                    READY        CheckReadiness each CHECK_READY_S
    READY        Readiness: not ready                WARMING
    READY        a check gets no answer in ANSWER_S  WARMING
    WARMING      Readiness: never ready              UNFIT        the launcher exits with a code of its own
    WARMING      UNFIT_S after it was ready          UNFIT        the same
    any          the launcher ends                   NO_LAUNCHER

Rules: the pod is ready only in READY. An unfit pod ends, and the pool creates another spare, so no spare stays whose
zygote cannot be restarted. A spare that has never been ready has no time limit: images differ. A claim ends this state
machine (pool_spare.py).
"""

from enum import Enum

from understudy_protocol.enums import UNFIT_EXIT_CODE
from understudy_protocol.launcher import CheckReadiness, ExitLauncher, Readiness
from understudy_sidecar.membership.events import FromLauncher, LauncherDown, LauncherUp, Log, Tick, ToLauncher

CHECK_WARMING_S = 1.0
CHECK_READY_S = 10.0
ANSWER_S = 8.0
UNFIT_S = 60.0

Event = LauncherUp | FromLauncher | LauncherDown | Tick
Effect = ToLauncher | Log


class PoolSpareState(Enum):
    NO_LAUNCHER = "no-launcher"
    WARMING = "warming"
    READY = "ready"
    UNFIT = "unfit"


class PoolSpare:
    def __init__(self) -> None:
        self.state = PoolSpareState.NO_LAUNCHER
        self.reason = "its launcher is not connected"  # why it is not ready
        self._number = 0
        self._check_at: float | None = None
        self._answer_by: float | None = None
        self._unfit_at: float | None = None  # only if it was ready before
        self._out: list[Effect] = []

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case LauncherUp():
                self._set_state(PoolSpareState.WARMING, "its launcher has not reported its readiness yet", now)
                self._check(now)
            case LauncherDown():
                self._set_state(PoolSpareState.NO_LAUNCHER, "its launcher is not connected", now)
                self._check_at = self._answer_by = self._unfit_at = None
            case FromLauncher(Readiness() as readiness) if self.state in (PoolSpareState.WARMING, PoolSpareState.READY):
                self._on_readiness(readiness, now)
            case FromLauncher() | Tick():
                pass
        self._on_time(now)
        effects, self._out = self._out, []
        return effects

    @property
    def why_not_ready(self) -> str:
        return "" if self.state is PoolSpareState.READY else self.reason

    def deadline(self) -> float | None:
        return min((at for at in (self._check_at, self._answer_by, self._unfit_at) if at is not None), default=None)

    def _on_readiness(self, readiness: Readiness, now: float) -> None:
        if readiness.number == self._number:
            self._answer_by = None
        if readiness.is_final:
            self._unfit(readiness.reason)
        elif readiness.is_ready:
            self._set_state(PoolSpareState.READY, "", now)
        else:
            self._set_state(PoolSpareState.WARMING, readiness.reason, now)

    def _on_time(self, now: float) -> None:
        if self._answer_by is not None and now >= self._answer_by:
            self._answer_by = None
            self._set_state(PoolSpareState.WARMING, f"its launcher did not answer within {ANSWER_S:g} s", now)
        if self._unfit_at is not None and now >= self._unfit_at:
            self._unfit(f"it was ready, and then not for {UNFIT_S:g} s: {self.reason}")
        if self._check_at is not None and now >= self._check_at:
            self._check(now)

    def _check(self, now: float) -> None:
        self._number += 1
        self._out.append(ToLauncher(CheckReadiness(self._number)))
        self._check_at = now + (CHECK_READY_S if self.state is PoolSpareState.READY else CHECK_WARMING_S)
        if self._answer_by is None:
            self._answer_by = now + ANSWER_S

    def _set_state(self, state: PoolSpareState, reason: str, now: float) -> None:
        self.reason = reason
        if state is self.state:
            return
        self._out.append(Log("ready" if state is PoolSpareState.READY else f"not ready: {reason}"))
        if state is PoolSpareState.READY:
            self._unfit_at, self._check_at = None, now + CHECK_READY_S
        elif self.state is PoolSpareState.READY:
            self._unfit_at, self._check_at = now + UNFIT_S, now + CHECK_WARMING_S
        self.state = state

    def _unfit(self, reason: str) -> None:
        self.state, self.reason = PoolSpareState.UNFIT, reason
        self._check_at = self._answer_by = self._unfit_at = None
        self._out.append(Log(f"unusable, and its pod ends: {reason}"))
        self._out.append(ToLauncher(ExitLauncher(UNFIT_EXIT_CODE, f"the spare is unusable: {reason}")))
