"""The search for the leader: which pods to connect to, which one is the leader, which messages to send. Pure: no I/O.

    state      event                                            next       action
    ---------  -----------------------------------------------  ---------  -------------------------------------------
    SEARCHING  Snapshot of the newest term known, or newer      FOUND      send facts about nodes and pods, and drains
    SEARCHING  Snapshot of an older term                        SEARCHING  none: it was replaced, and may not know
    SEARCHING  Refused with the name of a pod of the job        SEARCHING  connect to that pod, too
    FOUND      Snapshot of a newer term on another connection   FOUND      take that pod for the leader
    FOUND      Snapshot of an older term on another connection  FOUND      send the leader that has replaced it
    FOUND      Refused by the leader, or its connection ended   SEARCHING  connect to all pods again
    any        another epoch is appointed                       SEARCHING  connect to the appointed pod

Rules: there are at most MAX_LINES connections. Likely leaders (the last one, its standby coordinators, pods named in
answers) come first and stay connected, because an election is reported on open connections; all others take turns of
VISIT_S. LINGER_S after a leader is found the other connections end. They stay open while it has no majority of its
voters: it may have been replaced without knowing it. A previous leader that has not reported that it is no longer the
leader is called until it has received the new one: its members follow it, and only the operator can inform them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from understudy_operator.plan.facts.message_limits import MessageLimits
from understudy_operator.plan.facts.observed import Coordination, has_majority, term_of
from understudy_operator.plan.facts.pod_answers import NEVER, PodAnswers
from understudy_operator.plan.intents import Callee, Follow
from understudy_protocol.enums import NO_TERM, Term
from understudy_protocol.observer import MemberView, Nodes, Refused, Snapshot, Stepping, Superseded

MAX_LINES = 8
VISIT_S = 1.0
LINGER_S = 1.0
#: The pause before a new attempt after a connection ended or failed; a replaced leader is less urgent.
RETRY_S = 0.5
RETRY_REPLACED_S = 5.0
#: If a pod had no launcher at two visits that are at most this far apart, it had none in between.
VISIT_PAUSE_S = 60.0


@dataclass(frozen=True)
class PodMessage:
    """A message to the pod, on its open connection."""

    pod_uid: str
    message: Nodes | Superseded


class Search:
    """See the module. `version` grows with every change that should trigger a reconcile."""

    def __init__(self, before: Coordination, now: float) -> None:
        self.coordination = Coordination(snapshot=before.snapshot, since=now, lost_at=before.lost_at)
        self.version = 0
        self._follow = Follow(NO_TERM, ())
        self._lines: dict[str, Callee] = {}  # by pod uid, also connections that are being dialed
        self._ended: dict[str, float] = {}  # when the last connection to a pod ended
        self._visited: dict[str, float] = {}  # when each of `others` was last called
        #: Since when a pod reports that it has no launcher, and when it was last connected. It outlives its visits.
        self._no_launcher: dict[str, tuple[float, float]] = {}
        self._named: dict[str, Callee] = {}
        self._replaced: dict[str, Callee] = {}  # previous leaders that may not know it
        self._superseded_sent: dict[str, Superseded] = {}  # to them, on the current connection of each
        #: To the leader, without its time. None: nothing yet.
        self._nodes_sent: Nodes | None = None
        self._counted: tuple[MemberView, ...] | None = None
        self._majority = False  # of _counted
        self._outbox: list[PodMessage] = []
        self._limits = MessageLimits()

    def has_certain_coordinator(self, now: float) -> bool:
        """Whether the leader is certain."""
        found = bool(self.coordination.coordinator_uid)
        return found and self._coordinator_has_majority() and not _within(LINGER_S, self.coordination.since, now)

    def is_idle(self, now: float) -> bool:
        """Whether the wanted connections do not change by time alone."""
        return self.has_certain_coordinator(now) and not self._replaced and not self._follow.others

    def follow(self, follow: Follow, now: float) -> list[PodMessage]:
        """Take over the targets of this reconcile."""
        appointed = _newest_appointment(follow.first) > _newest_appointment(self._follow.first)
        self._follow = follow
        self._replaced = {uid: callee for uid, callee in self._replaced.items() if uid in follow.running}
        self._no_launcher = {uid: reports for uid, reports in self._no_launcher.items() if uid in follow.running}
        self._set_answers(self.coordination.answers.of(follow.running))
        if appointed:
            self._start_search(now)
            # An earlier answer of the appointed pod was not about this appointment.
            self._set_answers(self.coordination.answers.without(follow.first[0].pod_uid))
        return self._take_messages(now)

    def calls(self, now: float) -> dict[str, Callee]:
        """The wanted connections, by pod uid. An open connection that is not among them has to be closed."""
        holder = self._lines.get(self.coordination.coordinator_uid)
        appointed = [callee for callee in self._follow.first if callee.appoint is not None]
        wanted = [*([] if holder is None else [holder]), *appointed, *self._replaced.values()]
        ending = {callee.pod_uid for callee in self._follow.others if callee.end is not None}
        named = [callee for callee in self._named.values() if callee.pod_uid not in ending]
        if not self.has_certain_coordinator(now):
            wanted += [*self._follow.first, *named]
        if self._follow.others:  # with a known leader: pods that are not its members, and those that they name
            wanted += named
        wanted = _distinct(wanted)[:MAX_LINES]
        wanted += self._next_visits(wanted, MAX_LINES - len(wanted), now)
        self._lines = {callee.pod_uid: self._line(callee) for callee in wanted if self._may_dial(callee, now)}
        answers = self.coordination.answers
        lacking = {uid: answer.no_launcher_since for uid, answer in answers.by_pod.items() if uid in self._lines}
        self._no_launcher |= {uid: (since, now) for uid, since in lacking.items() if since < NEVER}
        # Once the leader is certain, answers of the search are outdated, except those of connected pods.
        self._set_answers(
            answers.of(self._lines) if self.has_certain_coordinator(now) else answers.on_lines(self._lines)
        )
        return dict(self._lines)

    def on_message(self, callee: Callee, message: object, now: float) -> list[PodMessage]:
        """Raises WireError if the message is beyond the limits of plan/facts/message_limits.py."""
        message = self._limits.apply(message, now)
        if self._lines.get(callee.pod_uid) is not callee:
            return []  # on a connection that another one has replaced
        match message:
            case Snapshot():
                self._on_snapshot(callee, message, now)
            case Stepping(progress) if (
                callee.pod_uid == self.coordination.coordinator_uid and self.coordination.snapshot is not None
            ):
                self.version += self.coordination.snapshot.progress is None  # only the first step triggers a reconcile
                self.coordination = replace(
                    self.coordination, snapshot=replace(self.coordination.snapshot, progress=progress)
                )
            case Refused():
                self._on_refusal(callee, message, now)
            case _:
                pass  # a message of a newer version
        return self._take_messages(now)

    def on_line_ended(self, callee: Callee, now: float) -> None:
        """The connection ended, or could not be established."""
        if self._lines.get(callee.pod_uid) is not callee:
            return
        del self._lines[callee.pod_uid]
        self._superseded_sent.pop(callee.pod_uid, None)
        self._no_launcher.pop(callee.pod_uid, None)
        self._ended[callee.pod_uid] = now
        self._set_answers(self.coordination.answers.without(callee.pod_uid))
        if callee.pod_uid == self.coordination.coordinator_uid:
            self._start_search(now)

    # Connections -----------------------------------------------------------------------------------------------------

    def _line(self, callee: Callee) -> Callee:
        """An existing connection stays, unless its pod has to get an appointment or the end of the job."""
        line = self._lines.get(callee.pod_uid)
        return line if line is not None and line.epoch >= callee.epoch and line.end == callee.end else callee

    def _may_dial(self, callee: Callee, now: float) -> bool:
        uid = callee.pod_uid
        pause_s = RETRY_REPLACED_S if uid in self._replaced and self.has_certain_coordinator(now) else RETRY_S
        return uid in self._lines or not _within(pause_s, self._ended.get(uid, -NEVER), now)

    def _next_visits(self, first: list[Callee], places: int, now: float) -> list[Callee]:
        """The pods of `others` that get the places: those called a moment ago, then those that have waited longest."""
        taken = {callee.pod_uid for callee in first}
        others = [callee for callee in self._follow.others if callee.pod_uid not in taken]

        def last(callee: Callee) -> float:
            return self._visited.get(callee.pod_uid, -NEVER)

        visited = [callee for callee in others if _within(VISIT_S, last(callee), now)][:places]
        waiting = sorted((callee for callee in others if not _within(VISIT_S, last(callee), now)), key=last)
        new = waiting[: places - len(visited)]
        self._visited |= {callee.pod_uid: now for callee in new}
        return [*visited, *new]

    def _coordinator_has_majority(self) -> bool:
        """Counted once for each snapshot, because steps come in between and there may be thousands of members."""
        snapshot = self.coordination.snapshot
        if snapshot is not None and self._counted is not snapshot.members:
            self._counted, self._majority = snapshot.members, has_majority(snapshot)
        return snapshot is not None and self._majority

    # Received messages -----------------------------------------------------------------------------------------------

    def _on_snapshot(self, callee: Callee, snapshot: Snapshot, now: float) -> None:
        newest_term = self._follow.term
        if self.coordination.snapshot is not None:
            newest_term = max(newest_term, term_of(self.coordination.snapshot))
        if term_of(snapshot) < newest_term:
            self._on_older(callee, snapshot, newest_term, now)
            return
        self._replaced.pop(callee.pod_uid, None)
        if callee.pod_uid != self.coordination.coordinator_uid:
            self._find(callee, term_of(snapshot), now)
        self.coordination = replace(self.coordination, snapshot=snapshot)
        self.version += 1

    def _find(self, callee: Callee, term: Term, now: float) -> None:
        previous = self.coordination.snapshot
        if previous is not None and term_of(previous) < term and previous.pod_uid != callee.pod_uid:
            self._mark_replaced(previous.pod_uid)
        answered = self.coordination.answers.pods | {self.coordination.coordinator_uid}
        self._named, self._visited, self._ended, self._nodes_sent = {}, {}, {}, None
        self.coordination = replace(self.coordination, coordinator_uid=callee.pod_uid, since=now, lost_at=None)
        self._set_answers(self.coordination.answers.without(callee.pod_uid))
        # In a new epoch, members may still wait for an election of the old one, in the pools of its candidates.
        is_appointed = previous is None or term_of(previous).epoch < term.epoch
        uninformed = self._lines.keys() - {callee.pod_uid} if is_appointed else self._replaced.keys()
        for uid in sorted(uninformed & self._lines.keys() & answered):
            self._send_superseded(uid, Superseded(term, callee.pod_uid, callee.address))  # the first that can be named

    def _mark_replaced(self, uid: str) -> None:
        """The pod was the leader, and has not reported that it is no longer."""
        callees = (*self._lines.values(), *self._follow.first, *self._follow.others)
        callee_replaced = next((callee for callee in callees if callee.pod_uid == uid), None)
        if callee_replaced is not None and uid not in self.coordination.answers.pods:
            self._replaced[uid] = replace(callee_replaced, appoint=None)

    def _on_older(self, callee: Callee, snapshot: Snapshot, newest_term: Term, now: float) -> None:
        """A coordinator that has voters steps down only once its members have another one to call. One without voters
        may have read an old appointment late: it would form a round of an epoch that is over.
        """
        if callee.pod_uid == self.coordination.coordinator_uid:
            self._start_search(now)
        self._replaced[callee.pod_uid] = replace(callee, appoint=None)
        self._set_answers(self.coordination.answers.with_older_term(callee.pod_uid, snapshot, now))
        holder, newest = self._lines.get(self.coordination.coordinator_uid), self.coordination.snapshot
        if holder is not None and newest is not None:
            self._send_superseded(callee.pod_uid, Superseded(term_of(newest), holder.pod_uid, holder.address))
        elif not snapshot.voters and not self._is_appointed(callee.pod_uid):
            self._send_superseded(callee.pod_uid, Superseded(newest_term, "", ""))

    def _is_appointed(self, uid: str) -> bool:
        """Whether this pod itself is to coordinate next: after the message it would reject the appointment."""
        return any(callee.pod_uid == uid and callee.appoint is not None for callee in self._follow.first)

    def _on_refusal(self, callee: Callee, refused: Refused, now: float) -> None:
        self._replaced.pop(callee.pod_uid, None)
        if callee.pod_uid == self.coordination.coordinator_uid:
            self._start_search(now)
        no_launcher_since = self._note_launcher(callee.pod_uid, refused, now)
        self._set_answers(self.coordination.answers.with_refusal(callee.pod_uid, refused, now, no_launcher_since))
        # The address comes from the API server: a pod could name any host for the operator to connect to.
        if address := self._follow.running.get(refused.pod_uid):
            self._named[refused.pod_uid] = Callee(refused.pod_uid, address)

    def _note_launcher(self, uid: str, refused: Refused, now: float) -> float:
        """Return since when the pod reports that it has no launcher."""
        since, connected_at = self._no_launcher.pop(uid, (now, now))
        if not refused.lacks_launcher:
            return NEVER
        since = since if _within(VISIT_PAUSE_S, connected_at, now) else now
        self._no_launcher[uid] = (since, now)
        return since

    def _send_superseded(self, uid: str, superseded: Superseded) -> None:
        """Once for each connection: the pod may have a version without this message."""
        if self._superseded_sent.get(uid) != superseded:
            self._superseded_sent[uid] = superseded
            self._outbox.append(PodMessage(uid, superseded))

    def _set_answers(self, answers: PodAnswers) -> None:
        self.coordination = replace(self.coordination, answers=answers)

    def _start_search(self, now: float) -> None:
        lost_at = now if self.coordination.coordinator_uid else self.coordination.lost_at
        self.coordination = replace(self.coordination, coordinator_uid="", since=now, lost_at=lost_at)
        self.version += 1

    def _take_messages(self, now: float) -> list[PodMessage]:
        """The messages to send now, with facts and drains that the leader does not have yet."""
        follow = self._follow
        wanted = Nodes(follow.nodes, drains=follow.drains, drill=follow.drill, ended_pods=follow.ended_pods)
        holder = self.coordination.coordinator_uid
        if holder and wanted != self._nodes_sent:
            self._nodes_sent = wanted
            self._outbox.append(PodMessage(holder, replace(wanted, at=now)))
        messages, self._outbox = self._outbox, []
        return messages


def _within(span_s: float, since: float, now: float) -> bool:
    """False also if the clock was set back: nothing may wait until it has caught up."""
    return 0.0 <= now - since < span_s


def _distinct(callees: Iterable[Callee]) -> list[Callee]:
    """The first entry of each pod."""
    found: dict[str, Callee] = {}
    for callee in callees:
        found.setdefault(callee.pod_uid, callee)
    return list(found.values())


def _newest_appointment(callees: Iterable[Callee]) -> int:
    return max((callee.epoch for callee in callees), default=0)
