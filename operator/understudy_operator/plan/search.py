"""The search for who is in office: whom to call, whom to believe, and what to say. Pure: an edge dials, reads, writes.

    state      event                                             next       what it does
    ---------  ------------------------------------------------  ---------  ------------------------------------------
    SEARCHING  Snapshot of the newest office known, or newer     FOUND      tells it of the nodes
    SEARCHING  Snapshot of an older office                       SEARCHING  nothing: it was replaced, and may not know
    SEARCHING  Refused with the name of a pod of the job         SEARCHING  calls that pod, too
    FOUND      Snapshot of a newer office on another line        FOUND      changes over
    FOUND      Snapshot of an older office on another line       FOUND      tells it who has replaced it
    FOUND      Refused by who was in office, or its line ended   SEARCHING  calls everybody again
    any        another epoch is appointed                        SEARCHING  calls the appointee

Rules: at most LINES lines. Who is likely to be in office (the last one, its heirs, the named) is called first and stays
on the line, because an election is told on open lines; all others are called in turns of VISIT_S. Who is found gets
LINGER_S before the other lines are given up, and keeps them open while it hears no majority of its electorate: it may
have been replaced, and not know. Who was in office before, and has not said that it is no more, is called until it has
been told: its members follow it, and nobody else can tell them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from understudy_operator.plan.answers import NEVER, Answers
from understudy_operator.plan.intents import Callee, Follow
from understudy_operator.plan.message_limits import MessageLimits
from understudy_operator.plan.observed import Coordination, has_majority, office_of
from understudy_protocol.observer import MemberView, NodeFact, Nodes, Refused, Snapshot, Stepping, Superseded
from understudy_protocol.words import NO_OFFICE, Office

LINES = 8
VISIT_S = 1.0
LINGER_S = 1.0
#: A line that ended, or could not be had, is tried again after so long; one to who was replaced has less of a hurry.
RETRY_S = 0.5
RETRY_REPLACED_S = 5.0


@dataclass(frozen=True)
class Say:
    """To the pod, on its open line."""

    pod_uid: str
    message: Nodes | Superseded


class Search:
    """See the module. `version` grows with all that a pass should know at once."""

    def __init__(self, before: Coordination, now: float) -> None:
        self.knows = Coordination(snapshot=before.snapshot, since=now, lost_at=before.lost_at)
        self.version = 0
        self._follow = Follow(NO_OFFICE, ())
        self._lines: dict[str, Callee] = {}  # by pod uid, also those that are being dialed
        self._ended: dict[str, float] = {}  # when the last line to a pod ended
        self._visited: dict[str, float] = {}  # when each of `others` was last called
        self._named: dict[str, Callee] = {}
        self._replaced: dict[str, Callee] = {}  # who may believe to be in office still
        self._told: dict[str, Superseded] = {}  # those of them, on the line that each has now
        #: To the one in office. None: nothing yet; (): that nothing is held against any.
        self._nodes_told: tuple[NodeFact, ...] | None = None
        self._counted: tuple[MemberView, ...] | None = None
        self._majority = False  # of those
        self._out: list[Say] = []
        self._limits = MessageLimits()

    def settled(self, now: float) -> bool:
        """Whether who is in office is beyond doubt."""
        found = bool(self.knows.in_office)
        return found and self._hears_majority() and not _within(LINGER_S, self.knows.since, now)

    def idle(self, now: float) -> bool:
        """Whether time alone changes nothing about which lines there should be."""
        return self.settled(now) and not self._replaced and not self._follow.others

    def follow(self, follow: Follow, now: float) -> list[Say]:
        """What this pass wants."""
        appointed = _newest_appointment(follow.first) > _newest_appointment(self._follow.first)
        self._follow = follow
        self._replaced = {uid: callee for uid, callee in self._replaced.items() if uid in follow.running}
        self._answered(self.knows.answers.of(follow.running))
        if appointed:
            self._searches(now)
            # What the appointee has said before was not about this appointment.
            self._answered(self.knows.answers.without(follow.first[0].pod_uid))
        return self._said(now)

    def calls(self, now: float) -> dict[str, Callee]:
        """The lines that there should be now, by pod uid. One that is open, and is not among them, is to be ended."""
        holder = self._lines.get(self.knows.in_office)
        appointed = [callee for callee in self._follow.first if callee.appoint is not None]
        wanted = [*([] if holder is None else [holder]), *appointed, *self._replaced.values()]
        told = {callee.pod_uid for callee in self._follow.others if callee.end is not None}
        named = [callee for callee in self._named.values() if callee.pod_uid not in told]
        if not self.settled(now):
            wanted += [*self._follow.first, *named]
        if self._follow.others:  # of a coordinator that was found: who does not follow it, and whom they name
            wanted += named
        wanted = _distinct(wanted)[:LINES]
        wanted += self._turns(wanted, LINES - len(wanted), now)
        self._lines = {callee.pod_uid: self._line(callee) for callee in wanted if self._may_dial(callee, now)}
        answers = self.knows.answers
        # Once somebody is found the answers of the search are of the past, but for those that lines still keep true.
        self._answered(answers.of(self._lines) if self.settled(now) else answers.on_lines(self._lines))
        return dict(self._lines)

    def heard(self, callee: Callee, message: object, now: float) -> list[Say]:
        """Raises WireError if the message is beyond the limits of plan/message_limits.py."""
        message = self._limits.apply(message, now)
        if self._lines.get(callee.pod_uid) is not callee:
            return []  # on a line that another one has replaced
        match message:
            case Snapshot():
                self._on_snapshot(callee, message, now)
            case Stepping(progress) if callee.pod_uid == self.knows.in_office and self.knows.snapshot is not None:
                self.version += self.knows.snapshot.progress is None  # the first step is news, the next ones are not
                self.knows = replace(self.knows, snapshot=replace(self.knows.snapshot, progress=progress))
            case Refused():
                self._on_refusal(callee, message, now)
            case _:
                pass  # of a newer version
        return self._said(now)

    def ended(self, callee: Callee, now: float) -> None:
        """The line ended, or could not be had."""
        if self._lines.get(callee.pod_uid) is not callee:
            return
        del self._lines[callee.pod_uid]
        self._told.pop(callee.pod_uid, None)
        self._ended[callee.pod_uid] = now
        self._answered(self.knows.answers.without(callee.pod_uid))
        if callee.pod_uid == self.knows.in_office:
            self._searches(now)

    # Which lines there are ------------------------------------------------------------------------------------------

    def _line(self, callee: Callee) -> Callee:
        """A line that is there stays, unless its pod is to be appointed by now, or told that the job has ended."""
        line = self._lines.get(callee.pod_uid)
        return line if line is not None and line.epoch >= callee.epoch and line.end == callee.end else callee

    def _may_dial(self, callee: Callee, now: float) -> bool:
        uid = callee.pod_uid
        rest_s = RETRY_REPLACED_S if uid in self._replaced and self.settled(now) else RETRY_S
        return uid in self._lines or not _within(rest_s, self._ended.get(uid, -NEVER), now)

    def _turns(self, first: list[Callee], places: int, now: float) -> list[Callee]:
        """Who of the others has the places: who was just called, then who has waited longest."""
        taken = {callee.pod_uid for callee in first}
        others = [callee for callee in self._follow.others if callee.pod_uid not in taken]

        def last(callee: Callee) -> float:
            return self._visited.get(callee.pod_uid, -NEVER)

        visited = [callee for callee in others if _within(VISIT_S, last(callee), now)][:places]
        rest = sorted((callee for callee in others if not _within(VISIT_S, last(callee), now)), key=last)
        new = rest[: places - len(visited)]
        self._visited |= {callee.pod_uid: now for callee in new}
        return [*visited, *new]

    def _hears_majority(self) -> bool:
        """Counted once a snapshot: steps come in between, and there may be thousands of members."""
        told = self.knows.snapshot
        if told is not None and self._counted is not told.members:
            self._counted, self._majority = told.members, has_majority(told)
        return told is not None and self._majority

    # What is heard --------------------------------------------------------------------------------------------------

    def _on_snapshot(self, callee: Callee, snapshot: Snapshot, now: float) -> None:
        known = self._follow.office
        if self.knows.snapshot is not None:
            known = max(known, office_of(self.knows.snapshot))
        if office_of(snapshot) < known:
            self._on_older(callee, snapshot, now)
            return
        self._replaced.pop(callee.pod_uid, None)
        if callee.pod_uid != self.knows.in_office:
            self._find(callee, office_of(snapshot), now)
        self.knows = replace(self.knows, snapshot=snapshot)
        self.version += 1

    def _find(self, callee: Callee, office: Office, now: float) -> None:
        former = self.knows.snapshot
        if former is not None and office_of(former) < office and former.pod_uid != callee.pod_uid:
            self._replaces(former.pod_uid)
        spoke = self.knows.answers.pods | {self.knows.in_office}
        self._named, self._visited, self._ended, self._nodes_told = {}, {}, {}, None
        self.knows = replace(self.knows, in_office=callee.pod_uid, since=now, lost_at=None)
        self._answered(self.knows.answers.without(callee.pod_uid))
        for uid in sorted(self._replaced.keys() & self._lines.keys() & spoke):
            self._tell(uid, Superseded(office, callee.pod_uid, callee.ip))  # before, there was nobody to name

    def _replaces(self, uid: str) -> None:
        """This one was in office, and has not said that it is no more."""
        callees = (*self._lines.values(), *self._follow.first, *self._follow.others)
        known = next((callee for callee in callees if callee.pod_uid == uid), None)
        if known is not None and uid not in self.knows.answers.pods:
            self._replaced[uid] = replace(known, appoint=None)

    def _on_older(self, callee: Callee, snapshot: Snapshot, now: float) -> None:
        if callee.pod_uid == self.knows.in_office:
            self._searches(now)
        self._replaced[callee.pod_uid] = replace(callee, appoint=None)
        self._answered(self.knows.answers.older(callee.pod_uid, snapshot, now))
        holder, told = self._lines.get(self.knows.in_office), self.knows.snapshot
        if holder is not None and told is not None:
            self._tell(callee.pod_uid, Superseded(office_of(told), holder.pod_uid, holder.ip))

    def _on_refusal(self, callee: Callee, refused: Refused, now: float) -> None:
        self._replaced.pop(callee.pod_uid, None)
        if callee.pod_uid == self.knows.in_office:
            self._searches(now)
        self._answered(self.knows.answers.refused(callee.pod_uid, refused, now))
        # The address is the API server's: a pod could name any host for the operator to call.
        if address := self._follow.running.get(refused.pod_uid):
            self._named[refused.pod_uid] = Callee(refused.pod_uid, address)

    def _tell(self, uid: str, superseded: Superseded) -> None:
        """Once a line: it may be of a version that does not know the word."""
        if self._told.get(uid) != superseded:
            self._told[uid] = superseded
            self._out.append(Say(uid, superseded))

    def _answered(self, answers: Answers) -> None:
        self.knows = replace(self.knows, answers=answers)

    def _searches(self, now: float) -> None:
        lost_at = now if self.knows.in_office else self.knows.lost_at
        self.knows = replace(self.knows, in_office="", since=now, lost_at=lost_at)
        self.version += 1

    def _said(self, now: float) -> list[Say]:
        """What there is to say by now; who is in office is told what it does not know yet about nodes."""
        wanted, holder = self._follow.nodes, self.knows.in_office
        if holder and wanted != self._nodes_told:
            self._nodes_told = wanted
            self._out.append(Say(holder, Nodes(wanted, now)))
        said, self._out = self._out, []
        return said


def _within(span_s: float, since: float, now: float) -> bool:
    """Also where the clock was set back: nothing may wait until it has caught up."""
    return 0.0 <= now - since < span_s


def _distinct(callees: Iterable[Callee]) -> list[Callee]:
    """The first of each pod."""
    found: dict[str, Callee] = {}
    for callee in callees:
        found.setdefault(callee.pod_uid, callee)
    return list(found.values())


def _newest_appointment(callees: Iterable[Callee]) -> int:
    return max((callee.epoch for callee in callees), default=0)
