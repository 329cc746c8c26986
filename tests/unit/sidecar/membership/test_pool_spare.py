"""A pool's spare: when it is ready, and when it ends."""

from __future__ import annotations

from understudy_protocol.enums import NO_ROUND, WorkersState
from understudy_protocol.launcher import CheckReadiness, ExitLauncher, LauncherHello, Readiness
from understudy_sidecar.membership.events import FromLauncher, LauncherDown, LauncherUp, Tick, ToLauncher
from understudy_sidecar.membership.pool_spare import Event, PoolSpare, PoolSpareState

UNFIT_EXIT_CODE = 85
ANSWER_S = 8.0
CHECK_READY_S = 10.0
CHECK_WARMING_S = 1.0
UNFIT_S = 60.0

HELLO = LauncherHello(1, NO_ROUND, None, WorkersState.IDLE, 4711)


class DrivenPoolSpare:
    def __init__(self) -> None:
        self.now = 100.0
        self.waiting = PoolSpare()

    def do(self, event: Event) -> list[object]:
        """The messages that its launcher receives."""
        effects = self.waiting.handle(event, self.now)
        return [effect.message for effect in effects if isinstance(effect, ToLauncher)]

    def report(self, *, ready: bool = True, reason: str = "", final: bool = False) -> list[object]:
        """The answer to the newest check."""
        return self.do(FromLauncher(Readiness(self.waiting._number, ready, reason, final)))

    def later(self, seconds: float, *, answers: bool = False) -> list[object]:
        until, sent = self.now + seconds, []
        while (due := self.waiting.deadline()) is not None and due <= until:
            self.now = due
            sent += self.do(Tick())
            if answers:
                self.report()
        self.now = until
        return sent


def connected() -> DrivenPoolSpare:
    driven = DrivenPoolSpare()
    assert driven.do(LauncherUp(HELLO)) == [CheckReadiness(1)]
    return driven


def ready() -> DrivenPoolSpare:
    driven = connected()
    driven.report()
    assert driven.waiting.why_not_ready == ""
    return driven


def test_a_spare_without_a_launcher_is_not_ready() -> None:
    assert DrivenPoolSpare().waiting.why_not_ready == "its launcher is not connected"
    gone = ready()
    gone.do(LauncherDown())
    assert gone.waiting.why_not_ready == "its launcher is not connected"
    assert gone.waiting.deadline() is None


def test_a_spare_that_warms_up_is_checked_each_second_and_reports_the_reason() -> None:
    driven = connected()
    driven.report(ready=False, reason="the fork server is loading its modules")
    assert driven.waiting.why_not_ready == "the fork server is loading its modules"
    assert driven.later(3 * CHECK_WARMING_S) == [CheckReadiness(2), CheckReadiness(3), CheckReadiness(4)]


def test_a_ready_spare_is_checked_again_and_again() -> None:
    driven = ready()
    sent = driven.later(3 * CHECK_READY_S, answers=True)
    assert sent == [CheckReadiness(2), CheckReadiness(3), CheckReadiness(4)]
    assert driven.waiting.state is PoolSpareState.READY


def test_a_launcher_that_does_not_answer_makes_it_unready_and_an_answer_ready_again() -> None:
    driven = ready()
    driven.later(CHECK_READY_S)
    driven.later(ANSWER_S)
    assert driven.waiting.why_not_ready == f"its launcher did not answer within {ANSWER_S:g} s"
    driven.report()
    assert driven.waiting.state is PoolSpareState.READY


def test_an_unrequested_report_counts_at_once() -> None:
    driven = ready()
    driven.do(FromLauncher(Readiness(1, False, "the fork server is loading its modules")))
    assert driven.waiting.why_not_ready == "the fork server is loading its modules"


def test_a_spare_that_will_never_be_ready_ends() -> None:
    driven = connected()
    (order,) = driven.report(ready=False, reason="the fork server failed and is off", final=True)
    assert isinstance(order, ExitLauncher)
    assert order.code == UNFIT_EXIT_CODE
    assert driven.waiting.why_not_ready == "the fork server failed and is off"


def test_a_spare_that_was_ready_and_is_unready_for_long_ends() -> None:
    driven = ready()
    driven.report(ready=False, reason="the fork server is loading its modules")
    assert not any(isinstance(x, ExitLauncher) for x in driven.later(UNFIT_S - 1))
    assert any(isinstance(x, ExitLauncher) for x in driven.later(1))


def test_a_spare_that_has_never_been_ready_may_take_its_time() -> None:
    driven = connected()
    for _ in range(20):
        driven.report(ready=False, reason="the warm-up has not finished")
        assert not any(isinstance(x, ExitLauncher) for x in driven.later(UNFIT_S))
