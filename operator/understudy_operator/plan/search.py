"""The search for who is in office: whom to call, whom to believe, and what to say. Pure: an edge dials, reads, writes.

    state      event                                             next       what it does
    ---------  ------------------------------------------------  ---------  ------------------------------------------
    SEARCHING  Snapshot of the newest office known, or newer     FOUND      tells it of the nodes
    SEARCHING  Snapshot of an older office                       SEARCHING  nothing: it was replaced, and may not know
    SEARCHING  Refused with a name                               SEARCHING  calls that pod, too
    SEARCHING  Refused by the appointee, without a name          SEARCHING  says so: somebody else is to be appointed
    FOUND      Snapshot of a newer office on another line        FOUND      changes over
    FOUND      Refused by who was in office, or its line ended   SEARCHING  calls everybody again
    any        another epoch is appointed                        SEARCHING  calls the appointee

Rules: at most LINES lines. Who is likely to be in office (the last one, its heirs, the named) is called first and stays
on the line, because an election is told on open lines; all others are called in turns of VISIT_S. Who is found gets
LINGER_S before the other lines are given up, and keeps them open while it hears no majority of its electorate: it may
have been replaced, and not know.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from understudy_operator.plan.intents import Callee, Follow
from understudy_operator.plan.observed import NEVER, Coordination, has_majority, office_of
from understudy_protocol.observer import Nodes, Refused, Snapshot, Stepping
from understudy_protocol.words import NO_OFFICE

NOBODY: frozenset[str] = frozenset()
LINES = 8
VISIT_S = 1.0
LINGER_S = 1.0
#: A line that ended, or could not be had, is tried again after so long.
RETRY_S = 0.5


@dataclass(frozen=True)
class Say:
    """To the pod, on its open line."""

    pod_uid: str
    message: Nodes


class Search:
    """See the module. `version` grows with all that a pass should know at once."""

    def __init__(self, before: Coordination, now: float) -> None:
        self.knows = Coordination(snapshot=before.snapshot, since=now)
        self.version = 0
        self._follow = Follow(NO_OFFICE, ())
        self._lines: dict[str, Callee] = {}  # by pod uid, also those that are being dialed
        self._ended: dict[str, float] = {}  # when the last line to a pod ended
        self._visited: dict[str, float] = {}  # when each of `others` was last called
        self._named: dict[str, Callee] = {}
        self._nodes_told: Nodes = Nodes(())

    def settled(self, now: float) -> bool:
        """Whether there is nothing to search for; else time alone may change which lines there should be."""
        told, found = self.knows.snapshot, bool(self.knows.in_office)
        return found and told is not None and has_majority(told) and not _within(LINGER_S, self.knows.since, now)

    def follow(self, follow: Follow, now: float) -> list[Say]:
        """What this pass wants."""
        appointed = _newest_appointment(follow.first) > _newest_appointment(self._follow.first)
        self._follow = follow
        if appointed:
            self._searches(now)
        return self._nodes()

    def calls(self, now: float) -> dict[str, Callee]:
        """The lines that there should be now, by pod uid. One that is open, and is not among them, is to be ended."""
        holder = self._lines.get(self.knows.in_office)
        wanted = [] if holder is None else [holder]
        if self.settled(now):
            self._answered(NOBODY, now)
        else:
            wanted = _distinct([*wanted, *self._follow.first, *self._named.values()])[:LINES]
            wanted += self._turns(wanted, LINES - len(wanted), now)
        lines = {callee.pod_uid: self._line(callee) for callee in wanted if self._may_dial(callee, now)}
        self._lines = lines
        return dict(lines)

    def heard(self, callee: Callee, message: object, now: float) -> list[Say]:
        if self._lines.get(callee.pod_uid) is not callee:
            return []  # on a line that another one has replaced
        match message:
            case Snapshot():
                self._on_snapshot(callee, message, now)
            case Stepping(progress) if callee.pod_uid == self.knows.in_office and self.knows.snapshot is not None:
                self.knows = replace(self.knows, snapshot=replace(self.knows.snapshot, progress=progress))
            case Refused():
                self._on_refusal(callee, message, now)
            case _:
                pass  # of a newer version
        return self._nodes()

    def ended(self, callee: Callee, now: float) -> None:
        """The line ended, or could not be had."""
        if self._lines.get(callee.pod_uid) is not callee:
            return
        del self._lines[callee.pod_uid]
        self._ended[callee.pod_uid] = now
        self._answered(self.knows.answered - {callee.pod_uid}, now)
        if callee.pod_uid == self.knows.in_office:
            self._searches(now)

    def _line(self, callee: Callee) -> Callee:
        """A line that is there stays, unless its pod is to be appointed by now."""
        line = self._lines.get(callee.pod_uid)
        return line if line is not None and line.epoch >= callee.epoch else callee

    def _may_dial(self, callee: Callee, now: float) -> bool:
        return callee.pod_uid in self._lines or not _within(RETRY_S, self._ended.get(callee.pod_uid, -NEVER), now)

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

    def _on_snapshot(self, callee: Callee, snapshot: Snapshot, now: float) -> None:
        known = self._follow.office
        if self.knows.snapshot is not None:
            known = max(known, office_of(self.knows.snapshot))
        if office_of(snapshot) < known:
            self._denies(callee, now)
            return
        if callee.pod_uid != self.knows.in_office:
            self._named, self._visited, self._ended, self._nodes_told = {}, {}, {}, Nodes(())
            self.knows = replace(self.knows, in_office=callee.pod_uid, since=now, refused="")
            self._answered(self.knows.answered - {callee.pod_uid}, now)
        self.knows = replace(self.knows, snapshot=snapshot)
        self.version += 1

    def _on_refusal(self, callee: Callee, refused: Refused, now: float) -> None:
        self._denies(callee, now)
        if refused.pod_uid and refused.ip:
            self._named[refused.pod_uid] = Callee(refused.pod_uid, refused.ip)
        elif callee.epoch and callee.epoch == _newest_appointment(self._follow.first):
            self.knows = replace(self.knows, refused=refused.reason)
            self.version += 1

    def _denies(self, callee: Callee, now: float) -> None:
        """It is not in office, or not in one that counts."""
        if callee.pod_uid == self.knows.in_office:
            self._searches(now)
        self._answered(self.knows.answered | {callee.pod_uid}, now)

    def _answered(self, pods: frozenset[str], now: float) -> None:
        since = min(self.knows.reached_since, now) if pods else NEVER
        self.knows = replace(self.knows, answered=pods, reached_since=since)

    def _searches(self, now: float) -> None:
        self.knows = replace(self.knows, in_office="", since=now, refused="")
        self.version += 1

    def _nodes(self) -> list[Say]:
        """What who is in office does not know yet about nodes."""
        wanted, holder = Nodes(self._follow.nodes), self.knows.in_office
        if not holder or wanted == self._nodes_told:
            return []
        self._nodes_told = wanted
        return [Say(holder, wanted)]


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
