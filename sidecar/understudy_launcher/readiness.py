"""Checks whether a spare would start workers at once. Its sidecar asks periodically. Pure.

Rules: the spare is ready once the zygote can fork and the warm-up is over. Each check lets the zygote fork a process
that does nothing, so a zygote that hangs, or a machine that cannot fork, is found before a job needs it. A zygote that
has not forked within CHECK_WITHIN_S is replaced (warm.py). If the launcher has given up its zygote, the spare is
permanently unusable. A command that does not use a zygote is ready with its launcher.

A spare with devices must see them too: each check looks for them in its own process (devices.py), never in the zygote.
If that process does not report within LOOK_WITHIN_S, it gets SIGKILL. It may survive inside a driver that hangs: then
no other check starts, and the spare is not ready until this process has ended. A pod of a job is only asked for its
devices, because it is useful without a zygote; also while its workers run.
"""

from typing import Optional, Union

from understudy_launcher import events as e
from understudy_launcher.warm import ForkServerState, ForkServerWatch
from understudy_launcher.warmup import Warmup, WarmupState
from understudy_protocol.launcher import CheckReadiness, Readiness

CHECK_WITHIN_S = 5.0
LOOK_WITHIN_S = 5.0
HUNG = f"the fork server did not fork within {CHECK_WITHIN_S:g} s"
SILENT = f"the device check did not finish within {LOOK_WITHIN_S:g} s"
Answer = Union[e.ZygoteChecked, e.DevicesChecked]


class SelfCheck:
    """Does nothing unless the sidecar asks. devices: the spare was given some."""

    def __init__(self, warm: ForkServerWatch, warmup: Warmup, devices: bool = False) -> None:
        self._warm, self._warmup, self._devices = warm, warmup, devices
        self._number, self._devices_only = 0, False
        self._open = False  # check `_number` has no answer yet
        self._ready = False  # as last reported
        self._forked = False  # in check `_number`
        self._unseen: Optional[str] = None  # likewise: why devices are missing; "": none are; None: not known yet
        self._is_certain = False  # `_unseen` is the result of a check that has finished
        self._answer_by: Optional[float] = None  # deadline of the zygote
        self._look_by: Optional[float] = None  # deadline of the device check; None: none runs
        self._killed = False  # the device check got SIGKILL

    def handle(self, event: Union[CheckReadiness, Answer], now: float) -> list[e.Effect]:
        if isinstance(event, CheckReadiness):
            self._devices_only = event.devices_only
            return self._check(event.number, now)
        if isinstance(event, e.DevicesChecked):
            self._unseen = SILENT if self._killed else event.reason
            self._is_certain = event.is_certain
            self._look_by, self._killed = None, False
        elif event.number == self._number:
            self._answer_by, self._forked = None, True
        return self._conclude()

    def on_change(self) -> list[e.Effect]:
        """Called after every event of the zygote."""
        reason = "" if self._devices_only else self._reason()
        if not reason:
            return []
        self._answer_by = None
        return [self._report(reason)] if self._ready else []

    def on_late(self, now: float) -> list[e.Effect]:
        """Kill a device check that takes too long."""
        if self._look_by is None or self._killed or now < self._look_by:
            return []
        self._killed, self._unseen = True, SILENT
        return [e.EndDeviceCheck(), *self._conclude()]

    def forget(self) -> None:
        """A job has claimed the spare: its sidecar asks no more."""
        self._open = self._ready = False
        self._answer_by = None

    def hangs(self, now: float) -> bool:
        """Whether the zygote is past its deadline."""
        return self._answer_by is not None and now >= self._answer_by

    def deadline(self) -> Optional[float]:
        look_by = None if self._killed else self._look_by
        return min((at for at in (self._answer_by, look_by) if at is not None), default=None)

    def _check(self, number: int, now: float) -> list[e.Effect]:
        self._number, self._open = number, True
        reason = "" if self._devices_only else self._reason()
        if reason:
            return [self._report(reason)]
        effects: list[e.Effect] = []
        self._forked = self._devices_only or self._warm.state is not ForkServerState.READY
        if not self._forked:
            self._answer_by = now + CHECK_WITHIN_S if self._answer_by is None else self._answer_by
            effects.append(e.CheckZygote(number))
        self._unseen, self._is_certain = None if self._devices else "", False
        if self._devices and self._look_by is None:
            self._look_by = now + LOOK_WITHIN_S
            effects.append(e.CheckDevices())
        elif self._killed:
            self._unseen = SILENT
        return [*effects, *self._conclude()]

    def _conclude(self) -> list[e.Effect]:
        """Report the result as soon as it is known."""
        why_not = self._unseen
        if not self._open or why_not is None or not (why_not or self._forked):
            return []
        return [self._report(why_not)]

    def _reason(self) -> str:
        """Why it is not ready; "" if no reason is known."""
        if self._warm.is_loading:
            return "the fork server is loading its modules"
        if self._warm.has_given_up:
            return "the fork server failed and is off; the launcher's log has the reason"
        return "" if self._warmup.state is WarmupState.DONE else "the warm-up has not finished"

    def _report(self, reason: str) -> e.Report:
        self._open, self._ready = False, not reason
        lacks_devices = self._is_certain and bool(self._unseen)
        return e.Report(Readiness(self._number, self._ready, reason, self._warm.has_given_up, lacks_devices))
