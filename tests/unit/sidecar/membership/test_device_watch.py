"""A waiting pod whose devices fail leaves its job, so that its pod is replaced before it gets ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.unit.sidecar.membership.test_member import R0, WELCOME, DrivenMember, assign, hello
from understudy_protocol import launcher as l
from understudy_protocol import membership as m
from understudy_sidecar.membership import events as e
from understudy_sidecar.membership.device_watch import DeviceWatch
from understudy_sidecar.membership.member_state import MembershipState

LOST = "7 of 8 devices answer: GPU 3: GPU is lost (NVML 15)"


def checks(effects: list[Any]) -> list[l.CheckReadiness]:
    return [x.message for x in effects if isinstance(x, e.ToLauncher) and isinstance(x.message, l.CheckReadiness)]


class Spare:
    """A spare that waits, and its launcher. reason: why its devices are missing; "": they answer; None: no answer."""

    def __init__(self, *, has_devices: bool = True, reason: str = "") -> None:
        self.reason: str | None = reason
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

    def _answer(self, effects: list[Any]) -> list[Any]:
        found = [x for x in effects if not checks([x])]
        for check in checks(effects):
            assert check.devices_only
            self.asked += 1
            if self.reason is not None:
                found += self.driven.report(l.Readiness(check.number, not self.reason, self.reason))
        return found


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


def test_a_pod_with_ranks_is_not_checked() -> None:
    # given a spare whose devices have been missing for half a minute
    spare = Spare()
    spare.later(5)
    spare.reason = LOST
    spare.later(30)
    # when it gets ranks, then it stays, because its workers use the devices: their failure reports them
    spare.driven.hear(assign(R0))
    asked = spare.asked
    assert gone(spare.later(120)) == []
    assert spare.asked == asked
    # and when it waits again, the minute begins again
    spare.driven.hear(m.Standby(R0))
    spare.driven.report(replace(hello(R0), has_devices=True))
    assert gone(spare.later(55)) == []
    assert gone(spare.later(20)) == [m.Gone(f"{LOST}, for 60 s", launcher_is_alive=True)]


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
