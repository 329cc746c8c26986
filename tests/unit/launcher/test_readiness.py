"""Whether a pool's spare is ready: what its sidecar is told, and what a check finds."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from itertools import permutations

import pytest

from tests.unit.launcher.driven import Driven, ended, start
from tests.unit.launcher.fake_sidecar import Launched, children
from understudy_launcher import events as e
from understudy_protocol.launcher import CheckReadiness, Readiness, TakeOver

SILENT = "the device check did not finish within 5 s"

CHECK_WITHIN_S = 5.0
LOOK_WITHIN_S = 5.0
GIVE_UP = 3
WARMUP = -1

Launch = Callable[..., Launched]
READY = e.ZygoteReady(2.0, {})
GONE = e.ZygoteLost("it has ended", is_final=False)


def told(effects: list[e.Effect]) -> list[Readiness]:
    reports = [effect.message for effect in effects if isinstance(effect, e.Report)]
    return [message for message in reports if isinstance(message, Readiness)]


def checked() -> Driven:
    """A launcher whose zygote is up, and was found to fork."""
    driven = Driven(zygote=True)
    driven.do(READY, CheckReadiness(1), e.ZygoteChecked(1))
    return driven


def test_it_is_not_ready_while_the_zygote_loads() -> None:
    driven = Driven(zygote=True)
    assert told(driven.do(CheckReadiness(1))) == [Readiness(1, False, "the fork server is loading its modules")]


def test_a_zygote_that_is_up_has_to_fork_before_the_spare_is_ready() -> None:
    driven = Driven(zygote=True)
    driven.do(READY)
    assert driven.do(CheckReadiness(1)) == [e.CheckZygote(1)]
    assert told(driven.do(e.ZygoteChecked(1))) == [Readiness(1, True)]


def test_it_is_not_ready_before_its_warm_up_is_over() -> None:
    driven = Driven(zygote=True, warmup=True)
    driven.do(READY)
    assert told(driven.do(CheckReadiness(1))) == [Readiness(1, False, "the warm-up has not finished")]
    driven.do(ended(WARMUP), e.GroupEmptied(WARMUP))
    assert driven.do(CheckReadiness(2)) == [e.CheckZygote(2)]


def test_what_no_zygote_was_wanted_for_is_ready_at_once() -> None:
    assert told(Driven(zygote=False).do(CheckReadiness(1))) == [Readiness(1, True)]


def test_a_spare_that_was_ready_tells_unasked_when_its_zygote_has_gone() -> None:
    driven = checked()
    assert told(driven.do(GONE)) == [Readiness(1, False, "the fork server is loading its modules")]
    driven.do(READY)
    assert driven.do(CheckReadiness(2)) == [e.CheckZygote(2)]


def test_a_zygote_that_does_not_fork_is_replaced() -> None:
    driven = checked()
    driven.do(CheckReadiness(2))
    effects = driven.later(CHECK_WITHIN_S)
    assert effects[:2] == [e.EndZygote(), e.StartZygote()]
    assert told(effects) == [Readiness(2, False, "the fork server is loading its modules")]


def test_checks_that_follow_each_other_do_not_put_off_the_end_of_one_that_hangs() -> None:
    driven = checked()
    driven.do(CheckReadiness(2))
    driven.later(CHECK_WITHIN_S - 1)
    driven.do(CheckReadiness(3))
    assert e.EndZygote() in driven.later(1)


def test_a_spare_whose_zygote_was_given_up_never_is_ready_again() -> None:
    driven = checked()
    for _ in range(GIVE_UP):
        driven.do(GONE, READY, CheckReadiness(2), e.ZygoteChecked(2))
    reason = "the fork server failed and is off; the launcher's log has the reason"
    assert told(driven.do(GONE)) == [Readiness(2, False, reason, True)]


def test_an_answer_to_an_older_check_says_nothing() -> None:
    driven = checked()
    driven.do(CheckReadiness(2))
    assert driven.do(e.ZygoteChecked(1)) == []


def test_a_launcher_that_trains_is_not_checked() -> None:
    driven = checked()
    driven.do(start())
    assert driven.do(CheckReadiness(2)) == []


# Devices --------------------------------------------------------------------------------------------------------------

LOST = "7 of 8 devices answer: GPU 3: GPU is lost (NVML 15)"


def seen() -> Driven:
    """A launcher that was given devices, and was found to see them and to fork."""
    driven = Driven(zygote=True, devices=True)
    driven.do(READY, CheckReadiness(1), e.ZygoteChecked(1), e.DevicesChecked(""))
    return driven


@pytest.mark.parametrize("answers", list(permutations([e.ZygoteChecked(1), e.DevicesChecked("")])))
def test_a_spare_that_was_given_devices_is_ready_once_it_forks_and_sees_them(answers: tuple[e.Event, ...]) -> None:
    driven = Driven(zygote=True, devices=True)
    driven.do(READY)
    assert driven.do(CheckReadiness(1)) == [e.CheckZygote(1), e.CheckDevices()]
    assert driven.do(answers[0]) == []
    assert told(driven.do(answers[1])) == [Readiness(1, True)]


def test_one_that_does_not_see_them_is_not_ready_whatever_its_zygote_does() -> None:
    driven = seen()
    driven.do(CheckReadiness(2))
    assert told(driven.do(e.DevicesChecked(LOST))) == [Readiness(2, False, LOST)]
    assert driven.do(e.ZygoteChecked(2)) == []


def test_it_is_ready_again_once_they_are_back() -> None:
    driven = seen()
    driven.do(CheckReadiness(2), e.ZygoteChecked(2), e.DevicesChecked(LOST), CheckReadiness(3), e.ZygoteChecked(3))
    assert told(driven.do(e.DevicesChecked(""))) == [Readiness(3, True)]


def test_where_no_zygote_was_wanted_devices_are_looked_for_all_the_same() -> None:
    driven = Driven(zygote=False, devices=True)
    assert driven.do(CheckReadiness(1)) == [e.CheckDevices()]
    assert told(driven.do(e.DevicesChecked(LOST))) == [Readiness(1, False, LOST)]


def test_devices_that_do_not_answer_in_time_are_not_seen_and_nobody_else_asks_them_meanwhile() -> None:
    driven = seen()
    driven.do(CheckReadiness(2), e.ZygoteChecked(2))
    effects = driven.later(LOOK_WITHIN_S)
    assert effects == [e.EndDeviceCheck(), e.Report(Readiness(2, False, SILENT))]

    # while the process that asked them is still there
    effects = driven.do(CheckReadiness(3))
    assert effects == [e.CheckZygote(3), e.Report(Readiness(3, False, SILENT))]
    driven.do(e.ZygoteChecked(3))

    # and once it has ended
    assert driven.do(e.DevicesChecked("it has ended")) == []
    assert driven.do(CheckReadiness(4)) == [e.CheckZygote(4), e.CheckDevices()]


def test_checks_that_follow_each_other_ask_the_devices_once_at_a_time() -> None:
    driven = seen()
    driven.do(CheckReadiness(2), e.ZygoteChecked(2))
    driven.later(LOOK_WITHIN_S - 1)
    assert driven.do(CheckReadiness(3)) == [e.CheckZygote(3)]
    driven.do(e.ZygoteChecked(3))
    assert told(driven.do(e.DevicesChecked(""))) == [Readiness(3, True)]


def test_of_a_spare_that_was_claimed_meanwhile_nothing_is_told() -> None:
    driven = seen()
    driven.do(CheckReadiness(2), e.ZygoteChecked(2), TakeOver(("python3", "t.py"), {}))
    assert driven.do(e.DevicesChecked("")) == []


# A launcher's process -------------------------------------------------------------------------------------------------


def test_a_real_zygote_forks_for_each_check_and_leaves_nothing(launch: Launch) -> None:
    launched = launch("python3", "-c", "print('trained')")
    launched.join()
    number = 0
    ready = False
    while not ready:
        number += 1
        launched.sidecar.send(CheckReadiness(number))
        ready = launched.sidecar.expect(Readiness).is_ready

    # when its zygote is killed
    (zygote,) = children(launched.process.pid)
    os.kill(zygote, signal.SIGKILL)

    # then that is told at once
    assert not launched.sidecar.expect(Readiness).is_ready
