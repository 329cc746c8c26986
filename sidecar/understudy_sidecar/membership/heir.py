"""The heir: every sidecar that is not in office answers callers, and may come into office by their votes.

    state     event                                              next      what it does
    --------  -------------------------------------------------  --------  ------------------------------------------
    IDLE      a member calls, and the job is closed              IDLE      Close
    IDLE      a member calls, and the coordinator is known       IDLE      Elsewhere: call that one; hangs up
    IDLE      a member calls, and this is no heir                IDLE      Elsewhere: nobody known; hangs up
    IDLE      a member calls an heir without a coordinator       OPEN      the caller waits in the hall
    OPEN      a majority of the electorate waits                 STANDING  Candidacy for the next term, to all
    OPEN      nothing has come of it within HALL_S               IDLE      Elsewhere: they call the next
    STANDING  grants of a majority have come                     ELECTED   TakeOffice, with all who wait
    STANDING  somebody knows a newer office of this epoch        STANDING  Candidacy for the term after that
    STANDING  somebody knows a newer electorate, or epoch        IDLE      Elsewhere: they call the next
    STANDING  nothing has come of it within HALL_S               IDLE      Elsewhere: they call the next
    any       the coordinator is known, or the job is closed     IDLE      tells it to all who wait

Rules: an heir asks for nothing before a majority has come to it, so a member that cannot hear the coordinator alone
moves no term. Callers come because they have lost theirs, each of them in one hall at a time, and all in the same
order: votes do not split. The heir's own member calls like everybody else. An epoch begins by the operator's
appointment alone: an heir stands for terms of its electorate's epoch only.
"""

import zlib
from dataclasses import dataclass
from enum import Enum

from understudy_protocol import membership as m
from understudy_protocol.vow import Vow
from understudy_protocol.words import Office
from understudy_sidecar.membership.electorate import Electorate
from understudy_sidecar.membership.events import (
    Called,
    Dropped,
    Hangup,
    HeirEffect,
    HeirEvent,
    Received,
    Say,
    Send,
    TakeOffice,
    Tick,
)

#: How long callers wait in a hall. Heirs differ by up to HALL_SPREAD_S, so that those who wait for each other meet.
HALL_S = 1.5
HALL_SPREAD_S = 1.0


class State(Enum):
    IDLE = "idle"
    OPEN = "open"
    STANDING = "standing"
    ELECTED = "elected"


@dataclass(frozen=True)
class Known:
    """What the pod's own member knows now."""

    vow: Vow
    coordinator: m.Heir | None
    closed: m.Close | None


class HeirMachine:
    """See the module. One life lasts until it is elected; then the coordinator's machine takes its place."""

    def __init__(self, pod_uid: str, known: Known) -> None:
        self.pod_uid = pod_uid
        self.state = State.IDLE
        self._known = known
        self._callers: dict[int, m.Join] = {}
        self._grants: set[str] = set()
        self._stands_for: Office | None = None
        self._until: float | None = None
        self._out: list[HeirEffect] = []

    def handle(self, event: HeirEvent, known: Known, now: float) -> list[HeirEffect]:
        self._known = known
        match event:
            case Called(link, join):
                self._on_call(link, join, now)
            case Received(link, m.Grant(office)) if link in self._callers and office == self._stands_for:
                self._on_grant(self._callers[link])
            case Received(link, m.Refusal() as refusal) if link in self._callers:
                self._on_refusal(link, refusal)
            case Dropped(link):
                self._on_dropped(link)
            case Received() | Tick():
                pass
        self._tell_what_is_known()
        if self._until is not None and now >= self._until:
            self._dissolve(f"nothing has come of it within {HALL_S:g} s")
        effects, self._out = self._out, []
        return effects

    def deadline(self) -> float | None:
        return self._until

    @property
    def callers(self) -> dict[int, m.Join]:
        """Who waits, by link."""
        return dict(self._callers)

    def electorate(self) -> Electorate:
        estate = self._known.vow.estate
        if estate is None:
            return Electorate()
        return Electorate(estate.electorate, frozenset(estate.voters), frozenset(estate.former_voters))

    # Callers --------------------------------------------------------------------------------------------------------

    def _on_call(self, link: int, join: m.Join, now: float) -> None:
        if not self._may_stand() and self._known.closed is None and self._known.coordinator is None:
            self._send_away(link, None)
            return
        self._callers[link] = join
        if self.state is State.IDLE:
            self.state = State.OPEN
            self._until = now + HALL_S + HALL_SPREAD_S * (zlib.crc32(self.pod_uid.encode()) % 1000) / 1000
        if self.state is State.STANDING:
            self._ask(link)
        elif self.electorate().carried_by({caller.pod_uid for caller in self._callers.values()}):
            self._stand(self._next_office())

    def _may_stand(self) -> bool:
        """Whether this is an heir of the newest epoch that it knows."""
        electorate, vow = self.electorate(), self._known.vow
        return electorate.exists and electorate.version.epoch == vow.office.epoch

    def _on_dropped(self, link: int) -> None:
        join = self._callers.pop(link, None)
        if join is not None:
            self._grants.discard(join.pod_uid)
        if not self._callers:
            self._close_hall()

    def _tell_what_is_known(self) -> None:
        closed, coordinator = self._known.closed, self._known.coordinator
        if closed is not None:
            for link in list(self._callers):
                self._out += [Send(link, closed), Send(link, m.Adjourned())]
            self._close_hall()
        elif coordinator is not None and coordinator.pod_uid != self.pod_uid:
            for link in list(self._callers):
                self._send_away(link, coordinator)
            self._close_hall()

    # The election ---------------------------------------------------------------------------------------------------

    def _next_office(self) -> Office:
        known = [join.office for join in self._callers.values()]
        newest = max([self._known.vow.office, *known])
        return Office(newest.epoch, newest.term + 1)

    def _stand(self, office: Office) -> None:
        if office.epoch != self.electorate().version.epoch:
            self._dissolve(f"epoch {office.epoch} is known, and its electorate is not")
            return
        self.state, self._stands_for, self._grants = State.STANDING, office, set()
        self._out.append(Say(f"stands for office {office}: {len(self._callers)} members have called"))
        for link in self._callers:
            self._ask(link)

    def _ask(self, link: int) -> None:
        if self._stands_for is not None:
            self._out.append(Send(link, m.Candidacy(self._stands_for, self.electorate().version, self.pod_uid)))

    def _on_grant(self, join: m.Join) -> None:
        self._grants.add(join.pod_uid)
        electorate = self.electorate()
        if self.state is State.STANDING and self._stands_for is not None and electorate.carried_by(self._grants):
            self.state, self._until = State.ELECTED, None
            self._out.append(Say(f"elected to office {self._stands_for} by {len(self._grants)} members"))
            self._out.append(TakeOffice(self._stands_for, self._known.vow.estate))

    def _on_refusal(self, link: int, refusal: m.Refusal) -> None:
        if self.state is not State.STANDING or self._stands_for is None:
            return
        newer = refusal.electorate > self.electorate().version
        if newer or refusal.office.epoch > self._stands_for.epoch:
            self._dissolve(f"a member knows electorate {refusal.electorate} and office {refusal.office}")
        elif refusal.office >= self._stands_for:
            self._stand(Office(refusal.office.epoch, refusal.office.term + 1))

    def _dissolve(self, reason: str) -> None:
        self._out.append(Say(f"sends {len(self._callers)} callers away: {reason}"))
        for link in list(self._callers):
            self._send_away(link, None)
        self._close_hall()

    def _send_away(self, link: int, to: m.Heir | None) -> None:
        self._callers.pop(link, None)
        self._out.append(Send(link, m.Elsewhere("", "") if to is None else m.Elsewhere(to.pod_uid, to.ip)))
        self._out.append(Hangup(link, "sent elsewhere"))

    def _close_hall(self) -> None:
        self._callers.clear()
        self._grants = set()
        self._stands_for = self._until = None
        if self.state is not State.ELECTED:
            self.state = State.IDLE
