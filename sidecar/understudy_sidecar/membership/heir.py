"""The heir: every sidecar that is not in office answers callers, and may come into office by their votes.

    state     event                                              next      what it does
    --------  -------------------------------------------------  --------  ------------------------------------------
    IDLE      a member calls, and the job is closed              IDLE      Close
    IDLE      a member calls, and the coordinator is known       IDLE      Elsewhere: call that one; hangs up
    IDLE      a member calls, and this is no heir                IDLE      Elsewhere: nobody known; hangs up
    IDLE      a member calls an heir without a coordinator       OPEN      the caller waits in the hall
    OPEN      a majority of the electorate waits                 STANDING  Candidacy for the next term, to all
    STANDING  grants of a majority have come                     ELECTED   TakeOffice, with all who wait
    STANDING  somebody knows a newer office of this epoch        STANDING  Candidacy for a newer term, in a moment
    OPEN      the last caller has gone                           IDLE
    STANDING  somebody knows a newer electorate, or epoch        IDLE      Elsewhere: they call the next
    any       the coordinator is known, or the job is closed     IDLE      tells it to all who wait

Rules: an heir asks for nothing before a majority has come to it, so a member that cannot hear the coordinator alone
moves no term. Callers come because they have lost theirs, each of them in one hall at a time, and all in the same
order (calling.py): votes hardly split. How long they wait is theirs to say. The heir's own member is one of them,
wherever it looks meanwhile, until it has given another candidate its vote. An epoch begins by the operator's
appointment alone: an heir stands for terms of its electorate's epoch only.
"""

from dataclasses import dataclass
from enum import Enum

from understudy_protocol import membership as m
from understudy_protocol.vow import Vow
from understudy_protocol.words import Office
from understudy_sidecar.membership.electorate import Electorate, Tally
from understudy_sidecar.membership.events import (
    Called,
    Dropped,
    Hangup,
    HeirEffect,
    HeirEvent,
    Received,
    RecordVow,
    Say,
    Send,
    TakeOffice,
    Tick,
)
from understudy_sidecar.membership.voter import Voter

#: Two heirs that wait in each other's hall refuse each other: the first of the list asks again at once, others later.
AGAIN_S = 0.1


class State(Enum):
    IDLE = "idle"
    OPEN = "open"
    STANDING = "standing"
    ELECTED = "elected"


@dataclass(frozen=True)
class Known:
    """What the pod's own member knows now.

    apart: it has a launcher and no coordinator, and waits for no candidate that has its vote: it would vote here.
    """

    coordinator: m.Heir | None
    closed: m.Close | None
    apart: bool
    vow: Vow
    replaced: str = ""  # why the pod has to be replaced


class HeirMachine:
    """See the module. One life lasts until it is elected; then the coordinator's machine takes its place."""

    def __init__(self, pod_uid: str, voter: Voter, known: Known) -> None:
        self.pod_uid, self.voter = pod_uid, voter
        self.state = State.IDLE
        self._known = known
        self._callers: dict[int, m.Join] = {}
        self._links: dict[str, int] = {}  # of the callers, by pod uid: the newest
        self._estate: m.Estate | None = None  # that the tallies are of
        self._here = Tally(Electorate())  # callers, and the own member
        self._grants = Tally(Electorate())
        self._stands_for: Office | None = None
        self._stands_after: Office | None = None
        self._again_at: float | None = None
        self._out: list[HeirEffect] = []

    def handle(self, event: HeirEvent, known: Known, now: float) -> list[HeirEffect]:
        self._known = known
        self._count_anew_by_a_new_estate()
        match event:
            case Called(link, join):
                self._on_call(link, join)
            case Received(link, m.Grant(office)) if link in self._callers and office == self._stands_for:
                self._on_grant(self._callers[link].pod_uid)
            case Received(link, m.Refusal() as refusal) if link in self._callers:
                self._on_refusal(refusal, now)
            case Dropped(link):
                self._on_dropped(link)
            case Received() | Tick():
                pass
        self._tell_what_is_known()
        self._stand_if_possible()
        if self._again_at is not None and now >= self._again_at:
            self._stand_again()
        effects, self._out = self._out, []
        return effects

    def deadline(self) -> float | None:
        return self._again_at

    @property
    def callers(self) -> dict[int, m.Join]:
        """Who waits, by link."""
        return dict(self._callers)

    @property
    def electorate(self) -> Electorate:
        return self._here.electorate

    def _count_anew_by_a_new_estate(self) -> None:
        estate = self.voter.vow.estate
        if estate is not None and estate is not self._estate:
            self._estate = estate
            electorate = Electorate(estate.electorate, frozenset(estate.voters), frozenset(estate.former_voters))
            if electorate.version != self.electorate.version and self.state is State.STANDING:
                self._withdraw()
            self._here, self._grants = Tally(electorate, self._here), Tally(electorate, self._grants)

    # Callers --------------------------------------------------------------------------------------------------------

    def _on_call(self, link: int, join: m.Join) -> None:
        if not self._may_stand() and self._known.closed is None and self._known.coordinator is None:
            self._send_away(link, None)
            return
        self._callers[link] = join
        self._links[join.pod_uid] = link
        self._here.add(join.pod_uid)
        if self.state is State.IDLE:
            self.state = State.OPEN
        elif self.state is State.STANDING:
            self._ask(link)

    def _may_stand(self) -> bool:
        """Whether this is an heir of the newest epoch that it knows."""
        return self.electorate.exists and self.electorate.version.epoch == self.voter.vow.office.epoch

    def _on_dropped(self, link: int) -> None:
        self._forget(link)
        if not self._callers and self.state is State.OPEN:
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
        newest = max([self.voter.vow.office, *known])
        return Office(newest.epoch, newest.term + 1)

    def _stand_if_possible(self) -> None:
        """A majority is here, the own member included, wherever that looks meanwhile."""
        if self.state not in (State.IDLE, State.OPEN) or not self._may_stand() or self._known.coordinator is not None:
            return
        if self._known.apart:
            self._here.add(self.pod_uid)
        elif self.pod_uid not in self._links:
            self._here.discard(self.pod_uid)
        if self._known.closed is None and self._here.carries():
            self._stand(self._next_office())

    def _stand(self, office: Office) -> None:
        if office.epoch != self.electorate.version.epoch:
            self._dissolve(f"the voter configuration of epoch {office.epoch} is not known")
            return
        self.state, self._stands_for, self._grants = State.STANDING, office, Tally(self.electorate)
        self._stands_after = self._again_at = None
        self._out.append(Say(f"is a candidate in term {office}: {len(self._callers)} members are connected"))
        for link in self._callers:
            self._ask(link)
        candidacy = m.Candidacy(office, self.electorate.version, self.pod_uid)
        if self._known.apart and self.voter.grant(candidacy):
            self._out.append(RecordVow(self.voter.vow))
            self._on_grant(self.pod_uid)

    def _ask(self, link: int) -> None:
        if self._stands_for is not None:
            self._out.append(Send(link, m.Candidacy(self._stands_for, self.electorate.version, self.pod_uid)))

    def _on_grant(self, uid: str) -> None:
        self._grants.add(uid)
        if self.state is State.STANDING and self._stands_for is not None and self._grants.carries():
            self.state = State.ELECTED
            self._stands_after = self._again_at = None
            self._out.append(Say(f"elected as coordinator of term {self._stands_for} by {len(self._grants)} members"))
            self._out.append(TakeOffice(self._stands_for, self.voter.vow.estate))

    def _on_refusal(self, refusal: m.Refusal, now: float) -> None:
        if self.state is not State.STANDING or self._stands_for is None:
            return
        newer = refusal.electorate > self.electorate.version
        if newer or refusal.office.epoch > self._stands_for.epoch:
            self._dissolve(f"a member knows voter configuration {refusal.electorate} and term {refusal.office}")
        elif refusal.office >= self._stands_for:
            self._stands_after = max(refusal.office, self._stands_after or refusal.office)
            if self._again_at is None:
                self._again_at = now + AGAIN_S * self._place()

    def _stand_again(self) -> None:
        self._again_at = None
        if self._stands_after is not None:
            office = max(self._stands_after, self.voter.vow.office)
            self._stand(Office(office.epoch, office.term + 1))

    def _place(self) -> int:
        """Among the heirs: 0 for the first."""
        heirs = self.voter.vow.heirs
        return next((place for place, heir in enumerate(heirs) if heir.pod_uid == self.pod_uid), len(heirs))

    def _dissolve(self, reason: str) -> None:
        self._out.append(Say(f"disconnects {len(self._callers)} members of its candidate pool: {reason}"))
        for link in list(self._callers):
            self._send_away(link, None)
        self._close_hall()

    def _send_away(self, link: int, to: m.Heir | None) -> None:
        self._forget(link)
        self._out.append(Send(link, m.Elsewhere("", "") if to is None else m.Elsewhere(to.pod_uid, to.ip)))
        self._out.append(Hangup(link, "redirected"))

    def _forget(self, link: int) -> None:
        join = self._callers.pop(link, None)
        if join is not None and self._links[join.pod_uid] == link:  # it has not called again meanwhile
            del self._links[join.pod_uid]
            self._here.discard(join.pod_uid)
            self._grants.discard(join.pod_uid)

    def _withdraw(self) -> None:
        """Stand no longer: the grants were asked for under another electorate."""
        self.state, self._grants = State.OPEN, Tally(self.electorate)
        self._stands_for = self._stands_after = self._again_at = None

    def _close_hall(self) -> None:
        self._callers.clear()
        self._links.clear()
        self._here, self._grants = Tally(self.electorate), Tally(self.electorate)
        self._stands_for = self._stands_after = self._again_at = None
        if self.state is not State.ELECTED:
            self.state = State.IDLE
