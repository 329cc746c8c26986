"""Whether a pool's spare is ready: the reports to its sidecar, and the results of checks."""

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


def readiness_reports(effects: list[e.Effect]) -> list[Readiness]:
    reports = [effect.message for effect in effects if isinstance(effect, e.Report)]
    return [message for message in reports if isinstance(message, Readiness)]


def checked() -> Driven:
    """A launcher whose zygote is up, and has forked in a check."""
    driven = Driven(zygote=True)
    driven.do(READY, CheckReadiness(1), e.ZygoteChecked(1))
    return driven


def test_a_spare_is_not_ready_while_its_zygote_loads() -> None:
    driven = Driven(zygote=True)
    assert readiness_reports(driven.do(CheckReadiness(1))) == [
        Readiness(1, False, "the fork server is loading its modules")
    ]


def test_a_zygote_that_is_up_has_to_fork_before_the_spare_is_ready() -> None:
    driven = Driven(zygote=True)
    driven.do(READY)
    assert driven.do(CheckReadiness(1)) == [e.CheckZygote(1)]
    assert readiness_reports(driven.do(e.ZygoteChecked(1))) == [Readiness(1, True)]


def test_a_spare_is_not_ready_before_its_warm_up_is_over() -> None:
    driven = Driven(zygote=True, warmup=True)
    driven.do(READY)
    assert readiness_reports(driven.do(CheckReadiness(1))) == [Readiness(1, False, "the warm-up has not finished")]
    driven.do(ended(WARMUP), e.GroupEmptied(WARMUP))
    assert driven.do(CheckReadiness(2)) == [e.CheckZygote(2)]


def test_a_spare_without_a_zygote_is_ready_at_once() -> None:
    assert readiness_reports(Driven(zygote=False).do(CheckReadiness(1))) == [Readiness(1, True)]


def test_a_ready_spare_reports_the_loss_of_its_zygote_unasked() -> None:
    driven = checked()
    assert readiness_reports(driven.do(GONE)) == [Readiness(1, False, "the fork server is loading its modules")]
    driven.do(READY)
    assert driven.do(CheckReadiness(2)) == [e.CheckZygote(2)]


def test_a_zygote_that_does_not_fork_is_replaced() -> None:
    driven = checked()
    driven.do(CheckReadiness(2))
    effects = driven.later(CHECK_WITHIN_S)
    assert effects[:2] == [e.EndZygote(), e.StartZygote()]
    assert readiness_reports(effects) == [Readiness(2, False, "the fork server is loading its modules")]


def test_later_checks_do_not_extend_the_deadline_of_a_check_that_hangs() -> None:
    driven = checked()
    driven.do(CheckReadiness(2))
    driven.later(CHECK_WITHIN_S - 1)
    driven.do(CheckReadiness(3))
    assert e.EndZygote() in driven.later(1)


def test_a_spare_whose_zygote_was_given_up_is_never_ready_again() -> None:
    driven = checked()
    for _ in range(GIVE_UP):
        driven.do(GONE, READY, CheckReadiness(2), e.ZygoteChecked(2))
    reason = "the fork server failed and is off; the launcher's log has the reason"
    assert readiness_reports(driven.do(GONE)) == [Readiness(2, False, reason, True)]


def test_an_answer_to_an_older_check_is_ignored() -> None:
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
    """A launcher whose check has seen its devices and has forked."""
    driven = Driven(zygote=True, devices=True)
    driven.do(READY, CheckReadiness(1), e.ZygoteChecked(1), e.DevicesChecked(""))
    return driven


@pytest.mark.parametrize("answers", list(permutations([e.ZygoteChecked(1), e.DevicesChecked("")])))
def test_a_spare_that_was_given_devices_is_ready_once_it_forks_and_sees_them(answers: tuple[e.Event, ...]) -> None:
    driven = Driven(zygote=True, devices=True)
    driven.do(READY)
    assert driven.do(CheckReadiness(1)) == [e.CheckZygote(1), e.CheckDevices()]
    assert driven.do(answers[0]) == []
    assert readiness_reports(driven.do(answers[1])) == [Readiness(1, True)]


def test_a_spare_that_does_not_see_its_devices_is_not_ready() -> None:
    driven = seen()
    driven.do(CheckReadiness(2))
    assert readiness_reports(driven.do(e.DevicesChecked(LOST))) == [Readiness(2, False, LOST, lacks_devices=True)]
    assert driven.do(e.ZygoteChecked(2)) == []


def test_a_spare_is_ready_again_once_its_devices_are_back() -> None:
    driven = seen()
    driven.do(CheckReadiness(2), e.ZygoteChecked(2), e.DevicesChecked(LOST), CheckReadiness(3), e.ZygoteChecked(3))
    assert readiness_reports(driven.do(e.DevicesChecked(""))) == [Readiness(3, True)]


def test_devices_are_checked_without_a_zygote_too() -> None:
    driven = Driven(zygote=False, devices=True)
    assert driven.do(CheckReadiness(1)) == [e.CheckDevices()]
    assert readiness_reports(driven.do(e.DevicesChecked(LOST))) == [Readiness(1, False, LOST, lacks_devices=True)]


def test_devices_that_do_not_answer_in_time_are_missing_and_no_second_check_starts() -> None:
    driven = seen()
    driven.do(CheckReadiness(2), e.ZygoteChecked(2))
    effects = driven.later(LOOK_WITHIN_S)
    assert effects == [e.EndDeviceCheck(), e.Report(Readiness(2, False, SILENT))]

    # while the process of the check still runs
    effects = driven.do(CheckReadiness(3))
    assert effects == [e.CheckZygote(3), e.Report(Readiness(3, False, SILENT))]
    driven.do(e.ZygoteChecked(3))

    # and once it has ended
    assert driven.do(e.DevicesChecked("it has ended")) == []
    assert driven.do(CheckReadiness(4)) == [e.CheckZygote(4), e.CheckDevices()]


def test_a_check_without_a_result_does_not_say_that_devices_are_missing() -> None:
    driven = seen()
    driven.do(CheckReadiness(2), e.ZygoteChecked(2))
    effects = driven.do(e.DevicesChecked("the device check ended without a result", is_certain=False))
    assert readiness_reports(effects) == [Readiness(2, False, "the device check ended without a result")]


def test_a_result_that_comes_too_late_does_not_say_that_devices_are_missing() -> None:
    # given a check that was killed, because it took too long
    driven = seen()
    driven.do(CheckReadiness(2), e.ZygoteChecked(2))
    driven.later(LOOK_WITHIN_S)
    driven.do(CheckReadiness(3))
    # when its result arrives nevertheless, and the next check has none
    driven.do(e.DevicesChecked(LOST), CheckReadiness(4), e.ZygoteChecked(4))
    effects = driven.do(e.DevicesChecked("it has ended", is_certain=False))
    assert readiness_reports(effects) == [Readiness(4, False, "it has ended")]


def test_the_devices_of_a_launcher_that_trains_are_checked() -> None:
    driven = Driven(zygote=True, devices=True)
    driven.do(READY, start())
    assert driven.do(CheckReadiness(1, devices_only=True)) == [e.CheckDevices()]
    assert readiness_reports(driven.do(e.DevicesChecked(LOST))) == [Readiness(1, False, LOST, lacks_devices=True)]


def test_only_one_device_check_runs_at_a_time() -> None:
    driven = seen()
    driven.do(CheckReadiness(2), e.ZygoteChecked(2))
    driven.later(LOOK_WITHIN_S - 1)
    assert driven.do(CheckReadiness(3)) == [e.CheckZygote(3)]
    driven.do(e.ZygoteChecked(3))
    assert readiness_reports(driven.do(e.DevicesChecked(""))) == [Readiness(3, True)]


def test_a_pod_of_a_job_is_only_asked_for_its_devices() -> None:
    # given a zygote that loads: a pool's spare would not be ready
    driven = Driven(zygote=True, devices=True)
    assert driven.do(CheckReadiness(1, devices_only=True)) == [e.CheckDevices()]
    assert readiness_reports(driven.do(e.DevicesChecked(LOST))) == [Readiness(1, False, LOST, lacks_devices=True)]
    driven.do(CheckReadiness(2, devices_only=True))
    assert readiness_reports(driven.do(e.DevicesChecked(""))) == [Readiness(2, True)]
    # then what happens to the zygote is not reported
    assert readiness_reports(driven.do(READY, GONE)) == []
    # and one that is ready is not asked to fork
    driven.do(READY)
    assert driven.do(CheckReadiness(3, devices_only=True)) == [e.CheckDevices()]
    assert readiness_reports(driven.do(e.DevicesChecked(""))) == [Readiness(3, True)]


def test_the_hello_reports_whether_there_are_devices() -> None:
    for devices in (True, False):
        assert Driven(devices=devices).hello().has_devices is devices


def test_a_spare_that_was_claimed_meanwhile_reports_no_readiness() -> None:
    driven = seen()
    driven.do(CheckReadiness(2), e.ZygoteChecked(2), TakeOver(("python3", "t.py"), {}))
    assert driven.do(e.DevicesChecked("")) == []


# A launcher's process -------------------------------------------------------------------------------------------------


def test_a_real_zygote_forks_for_each_check_and_leaves_no_process(launch: Launch) -> None:
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

    # then the launcher reports that at once
    assert not launched.sidecar.expect(Readiness).is_ready
