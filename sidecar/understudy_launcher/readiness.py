"""Whether a pool's spare would start workers at once, asked by its sidecar again and again. Pure.

Rules: it is ready once the zygote forks and the warm-up is over; and each check has the zygote fork a process that does
nothing, so a zygote that hangs, or a machine that cannot fork any more, is found before a job needs it. One that has
not forked within CHECK_WITHIN_S is replaced (warm.py). A zygote that was given up makes the spare useless for good.
What is no zygote's, or was not to be, is ready with its launcher.
"""

from typing import Optional, Union

from understudy_launcher import events as e
from understudy_launcher.warm import State as WarmState
from understudy_launcher.warm import Warm
from understudy_launcher.warmup import State as WarmupState
from understudy_launcher.warmup import Warmup
from understudy_protocol.launcher import CheckReadiness, Readiness

CHECK_WITHIN_S = 5.0
HUNG = f"it did not fork within {CHECK_WITHIN_S:g} s"


class SelfCheck:
    """Of a launcher that nobody asks it does nothing."""

    def __init__(self, warm: Warm, warmup: Warmup) -> None:
        self._warm, self._warmup = warm, warmup
        self._number = 0
        self._ready = False  # as was told last
        self._answer_by: Optional[float] = None

    def handle(self, event: Union[CheckReadiness, e.ZygoteChecked], now: float) -> list[e.Effect]:
        if isinstance(event, e.ZygoteChecked):
            if event.number != self._number:
                return []  # of a check that a newer one has replaced
            self._answer_by = None
            return [self._tell("")]
        self._number = event.number
        reason = self._reason()
        if reason or self._warm.state is not WarmState.READY:
            return [self._tell(reason)]
        if self._answer_by is None:
            self._answer_by = now + CHECK_WITHIN_S
        return [e.CheckZygote(event.number)]

    def changed(self) -> list[e.Effect]:
        """Something may have happened to the zygote."""
        reason = self._reason()
        if not reason:
            return []
        self._answer_by = None
        return [self._tell(reason)] if self._ready else []

    def forget(self) -> None:
        """It is no pool's any more: nobody asks."""
        self._ready, self._answer_by = False, None

    def hangs(self, now: float) -> bool:
        return self._answer_by is not None and now >= self._answer_by

    def deadline(self) -> Optional[float]:
        return self._answer_by

    def _reason(self) -> str:
        """Why it is not ready; "" if nothing is known that speaks against it."""
        if self._warm.state is WarmState.LOADING:
            return "the zygote loads"
        if self._warm.given_up:
            return "the zygote was given up"
        return "" if self._warmup.state is WarmupState.OVER else "the warm-up is not over"

    def _tell(self, reason: str) -> e.Report:
        self._ready = not reason
        return e.Report(Readiness(self._number, self._ready, reason, self._warm.given_up))
