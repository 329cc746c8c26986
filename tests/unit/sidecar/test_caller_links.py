"""The links of callers: delays that they report, and the order of the effects."""

import json
import time

import pytest

from tests.integration.operator.training import a_snapshot
from understudy_protocol import membership as m
from understudy_protocol.enums import NO_ROUND, Term, WorkersState
from understudy_protocol.frames import CloseCode
from understudy_protocol.hard_state import HardState
from understudy_protocol.observer import Appoint, Superseded
from understudy_protocol.pod import JobShape
from understudy_sidecar.caller_links import CallerLinks, Event
from understudy_sidecar.link import Link
from understudy_sidecar.membership.core import Core, FromObserver
from understudy_sidecar.membership.events import Broadcast, Hangup, Received, Send, WatchMachines
from understudy_sidecar.membership.member_state import Identity


class SlowMachine(Link):
    """While it writes, other processes have the CPU."""

    def send_encoded(self, message: bytes) -> None:
        time.sleep(0.2)


def test_a_moment_in_which_the_sidecar_gets_no_cpu_delays_no_snapshot():
    delays: list[float] = []
    links = CallerLinks(lambda event: None, delays.append)
    links.add(SlowMachine(1, masks=False))
    links.enqueue(Broadcast((1,), a_snapshot(3, ())))
    links.flush()
    assert delays == pytest.approx([0.0], abs=0.05)


class MemberLink(Link):
    """Its member closes the connection as soon as it is asked to."""

    def __init__(self, number: int, links: CallerLinks) -> None:
        super().__init__(number, masks=False)
        self._links = links

    def send_encoded(self, message: bytes) -> None:
        """No test reads it."""

    def hangup(self, code: CloseCode = CloseCode.NORMAL, reason: str = "") -> None:
        self._links.on_dropped(self, False)


async def test_an_appointment_while_the_members_of_the_replaced_coordinator_are_hung_up_stays() -> None:
    """The end of a coordinator once waited behind its last messages, and ended the next one of the same sidecar."""
    # given a coordinator of 1,200 members
    shape = JobShape("job-uid", "ns", "job", 2000, 1, 10, 3600.0)
    core = Core(shape, Identity("uid", "pod", "node", "10.0.0.1", 0), HardState(), 1000.0, cpu_clock=lambda: 0.0)

    def handle(event: Event) -> None:
        for effect in core.handle(event, 1000.0):
            if isinstance(effect, Send | Broadcast | Hangup | WatchMachines):
                links.enqueue(effect)

    links = CallerLinks(handle, lambda seconds: None)
    handle(FromObserver(1, Appoint(1, -1, {})))
    for number in range(2, 1202):
        link = MemberLink(number, links)
        links.add(link)
        links.on_message(link, a_join(number))
    links.flush()
    assert not links._pending
    # when it is superseded, and appointed again before all of them are hung up
    handle(FromObserver(1, Superseded(Term(2, 1), "another", "10.0.0.2")))
    assert core.coordinator is None
    assert len(links._pending) > 1000
    links.flush()
    handle(FromObserver(1, Appoint(3, -1, {})))
    appointed = core.coordinator
    # then it coordinates after that, too
    assert not links._pending
    assert core.coordinator is appointed
    assert appointed is not None
    assert appointed.term == Term(3, 1)


class AnsweringLink(Link):
    """Its member answers a Heartbeat at once."""

    def __init__(self, number: int, links: CallerLinks, sent: list[tuple[int, str]]) -> None:
        super().__init__(number, masks=False)
        self._links, self._sent = links, sent

    def send_encoded(self, message: bytes) -> None:
        kind = json.loads(message)["type"]
        self._sent.append((self.number, kind))
        if kind == "Heartbeat":
            self._links.on_message(self, m.HeartbeatAck(7))


def test_no_answer_delays_the_other_messages_of_the_same_event() -> None:
    # given a core that asks a member that answers for its stacks
    sent: list[tuple[int, str]] = []

    def handle(event: Event) -> None:
        if isinstance(event, Received):
            links.enqueue(Send(event.link, m.WriteStacks(NO_ROUND)))
            links.flush()

    links = CallerLinks(handle, lambda seconds: None)
    numbers = range(1, 1001)  # as many nested calls would raise RecursionError
    for number in numbers:
        links.add(AnsweringLink(number, links, sent))
        links.enqueue(Send(number, m.Heartbeat(7, NO_ROUND)))
    # when it sends a Heartbeat to all of them
    links.flush()
    # then all have it before one of them gets the other message
    assert sent == [(number, kind) for kind in ("Heartbeat", "WriteStacks") for number in numbers]


def a_join(number: int) -> m.Join:
    name, ip = f"pod-{number}", f"10.1.{number // 256}.{number % 256}"
    return m.Join(f"uid-{number}", name, "node", ip, None, NO_ROUND, None, WorkersState.IDLE, 4000, Term(1, 1))
