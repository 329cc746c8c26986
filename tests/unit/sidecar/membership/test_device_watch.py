"""A pod whose devices fail leaves its job: a waiting one before it gets ranks, another one when a worker has failed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.unit.sidecar.membership.test_member import R0, R1, WELCOME, DrivenMember, assign, hello
from understudy_protocol import launcher as l
from understudy_protocol import membership as m
from understudy_sidecar.membership import events as e
from understudy_sidecar.membership.device_watch import DeviceWatch
from understudy_sidecar.membership.member_state import MembershipState

FAILED = l.WorkerExited(R0, 0, 1, None, "exited with code 1", 7.0)
LOST = "7 of 8 devices answer: GPU 3: GPU is lost (NVML 15)"


def checks(effects: list[Any]) -> list[l.CheckReadiness]:
    return [x.message for x in effects if isinstance(x, e.ToLauncher) and isinstance(x.message, l.CheckReadiness)]


class Spare:
    """A spare that waits, and its launcher. reason: why its devices are missing; "": they answer; None: no answer.

    lacks_devices: a check that has finished says so; False: the check has no result.
    """

    def __init__(self, *, has_devices: bool = True, reason: str = "") -> None:
        self.reason: str | None = reason
        self.lacks_devices = True
        self.driven = DrivenMember()
        effects = self.driven.do(e.LauncherUp(replace(hello(), has_devices=has_devices)), e.LinkUp(e.SERVICE))
        self.asked = 0
        self._answer(effects)
        self.driven.hear(WELCOME)

    def later(self, seconds: float) -> list[Any]:
        """The effects other than checks."""
        until, found = self.driven.now + seconds, list[Any]()
        while self.driven.now < until:
            found += self._answer(self.driven.later(0.5))
            if self.driven.member.state is MembershipState.JOINED:
                found += self._answer(self.driven.heartbeat(int(self.driven.now)))
        return found

    def report(self, message: object) -> list[Any]:
        """The effects, other than checks, of a message from the launcher."""
        return self._answer(self.driven.report(message))

    def hear(self, message: object) -> list[Any]:
        """Likewise, of a message from the coordinator."""
        return self._answer(self.driven.hear(message))

    def _answer(self, effects: list[Any]) -> list[Any]:
        found = [x for x in effects if not checks([x])]
        for check in checks(effects):
            assert check.devices_only
            self.asked += 1
            if self.reason is not None:
                lacks_devices = self.lacks_devices and bool(self.reason)
                readiness = l.Readiness(check.number, not self.reason, self.reason, lacks_devices=lacks_devices)
                found += self.driven.report(readiness)
        return found


def training(*, has_devices: bool = True) -> Spare:
    """A pod with ranks whose devices, if it has some, have answered."""
    spare = Spare(has_devices=has_devices)
    spare.hear(assign(R0))
    spare.report(l.WorkersStarted(R0))
    return spare


def gone(effects: list[Any]) -> list[m.Gone]:
    return [x.message for x in effects if isinstance(x, e.ToCoordinator) and isinstance(x.message, m.Gone)]


def test_a_waiting_pod_is_asked_for_its_devices_every_10_s() -> None:
    spare = Spare()
    assert spare.asked == 1
    assert gone(spare.later(31)) == []
    assert spare.asked == 4


def test_without_devices_nothing_is_asked() -> None:
    spare = Spare(has_devices=False)
    spare.later(60)
    assert spare.asked == 0


def test_a_pod_whose_devices_have_been_missing_for_a_minute_leaves_the_job_with_the_reason() -> None:
    # given a spare whose devices have answered
    spare = Spare()
    spare.later(5)
    # when one is lost, then nothing happens within the minute
    spare.reason = LOST
    assert gone(spare.later(64)) == []
    # and then the spare leaves
    assert gone(spare.later(6)) == [m.Gone(f"{LOST}, for 60 s", launcher_is_alive=True)]
    assert spare.driven.member.unable_reason == f"{LOST}, for 60 s"
    # and once they answer again, it calls
    spare.reason = ""
    assert [x for x in spare.later(2) if isinstance(x, e.Dial)]
    assert spare.driven.member.unable_reason == ""


def test_devices_that_answer_again_within_the_minute_are_not_missing() -> None:
    spare = Spare()
    spare.later(5)
    for _ in range(3):
        spare.reason = LOST
        assert gone(spare.later(40)) == []
        spare.reason = ""
        assert gone(spare.later(11)) == []


def test_devices_that_have_never_answered_have_ten_minutes() -> None:
    spare = Spare(reason=LOST)
    assert gone(spare.later(599)) == []
    assert gone(spare.later(3)) == [m.Gone(f"{LOST}, for 600 s", launcher_is_alive=True)]


def test_a_launcher_that_does_not_answer_a_check_lacks_its_devices() -> None:
    spare = Spare()
    spare.later(5)
    spare.reason = None
    assert gone(spare.later(72)) == []
    assert gone(spare.later(2)) == [m.Gone("the launcher did not answer within 8 s, for 60 s", launcher_is_alive=True)]


def test_a_pod_with_ranks_is_checked_at_the_start_of_its_workers_only() -> None:
    # given a spare whose devices have answered
    spare = Spare()
    spare.later(5)
    asked = spare.asked
    # when it gets ranks, then it is checked once
    spare.hear(assign(R0))
    assert spare.asked == asked + 1
    # and not again, because its workers use the devices: they fail if a device is lost
    spare.reason = LOST
    assert gone(spare.later(120)) == []
    assert spare.asked == asked + 1
    # and when it waits again, it has a minute
    spare.driven.hear(m.Standby(R0))
    spare.driven.report(replace(hello(R0), has_devices=True))
    assert gone(spare.later(55)) == []
    assert gone(spare.later(20)) == [m.Gone(f"{LOST}, for 60 s", launcher_is_alive=True)]


def test_a_pod_that_lacks_a_device_when_its_worker_fails_leaves_the_job_at_once() -> None:
    # given a pod with ranks whose devices answer
    spare = training()
    # when a device is lost, and its worker fails because of that
    spare.reason = LOST
    effects = spare.report(FAILED)
    # then the pod leaves the job with the reason, and its workers of a next round do not go on
    assert gone(effects) == [m.Gone(LOST, launcher_is_alive=True)]
    assert [x.message for x in effects if isinstance(x, e.ToLauncher)] == [l.StopWorkers(LOST)]
    assert spare.driven.member.unable_reason == LOST
    # and it looks for its devices every second, and calls again once they answer
    asked = spare.asked
    spare.later(5)
    assert spare.asked == asked + 5
    spare.reason = ""
    assert [x for x in spare.later(2) if isinstance(x, e.Dial)]


def test_a_pod_that_lacks_a_device_when_a_round_starts_its_workers_leaves_the_job_at_once() -> None:
    # given a pod with ranks that has lost a device, but its worker hangs
    spare = training()
    spare.reason = LOST
    # when the next round starts its workers, then it leaves
    effects = spare.hear(assign(R1))
    assert gone(effects) == [m.Gone(LOST, launcher_is_alive=True)]
    orders = [type(x.message) for x in effects if isinstance(x, e.ToLauncher)]
    assert orders == [l.StartWorkers, l.StopWorkers]


def test_a_check_that_is_under_way_when_the_workers_fail_counts() -> None:
    # given a waiting pod that has been asked for its devices, and has not answered
    spare = Spare()
    spare.later(5)
    spare.reason = None
    spare.later(6)
    asked = spare.asked
    # when it gets ranks, then it is not asked again, and the answer counts
    spare.hear(assign(R0))
    assert spare.asked == asked
    assert gone(spare.report(l.Readiness(asked, False, LOST, lacks_devices=True))) == [
        m.Gone(LOST, launcher_is_alive=True)
    ]


def test_devices_that_answer_when_a_worker_fails_keep_the_pod() -> None:
    spare = training()
    asked = spare.asked
    assert gone(spare.report(FAILED)) == []
    assert spare.asked == asked + 1
    assert gone(spare.later(120)) == []


def test_a_check_without_a_result_is_no_reason_to_leave_when_a_worker_fails() -> None:
    # given a driver that takes long after its last user has ended
    spare = training()
    spare.reason, spare.lacks_devices = "the device check did not finish within 5 s", False
    assert gone(spare.report(FAILED)) == []
    assert gone(spare.later(120)) == []
    # and so is a launcher that does not answer
    spare.reason = None
    assert gone(spare.hear(assign(R1))) == []
    assert gone(spare.later(120)) == []


def test_devices_that_have_never_answered_are_not_checked_when_a_worker_fails() -> None:
    # given an image with which the check never succeeds
    spare = Spare(reason=LOST)
    spare.later(30)
    spare.hear(assign(R0))
    asked = spare.asked
    assert gone(spare.report(FAILED)) == []
    assert gone(spare.later(120)) == []
    assert spare.asked == asked


def test_a_pod_without_devices_is_not_asked_when_its_worker_fails() -> None:
    spare = training(has_devices=False)
    spare.report(FAILED)
    assert spare.asked == 0


def test_a_launcher_that_connects_again_has_to_answer_once_before_a_check_counts() -> None:
    # given a pod with ranks, whose launcher has connected again
    spare = training()
    spare.driven.do(e.LauncherDown())
    spare.driven.do(e.LauncherUp(replace(hello(R0), has_devices=True)))
    spare.reason = LOST
    spare.report(FAILED)
    assert spare.driven.member.unable_reason == ""


def test_a_member_without_a_coordinator_is_able_again_once_its_devices_answer() -> None:
    # given a spare that has no coordinator, and whose devices have been missing for a minute
    spare = Spare()
    spare.driven.do(e.LinkDown())
    spare.reason = LOST
    spare.later(75)
    assert spare.driven.member.unable_reason == f"{LOST}, for 60 s"
    # when they answer again, then its next Join does not report it as unable
    spare.reason = ""
    spare.later(2)
    assert spare.driven.member.unable_reason == ""


def test_an_answer_to_an_older_check_does_not_count() -> None:
    watch = DeviceWatch()
    watch.on_hello(0.0, has_devices=True)
    assert watch.due_check(0.0, is_waiting=True) == l.CheckReadiness(1, devices_only=True)
    watch.on_readiness(l.Readiness(1, False, LOST), 1.0)
    assert watch.due_check(2.0, is_waiting=True) == l.CheckReadiness(2, devices_only=True)
    watch.on_readiness(l.Readiness(1, True), 3.0)
    assert watch.due_check(10.0, is_waiting=True) is None
    assert watch.missing_reason(601.0).startswith("the launcher did not answer")
