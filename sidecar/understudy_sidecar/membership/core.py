"""One sidecar without its edges: its member, voter, candidate and coordinator, and the order between them. Pure.

`handle(event, now)` returns effects, which the caller carries out in order. The process (app.py, caller_links.py) and
the simulation differ only in sockets, files and clocks: each has one core for a sidecar.

Rules: a sidecar has either a coordinator or a candidate, never both. The candidate gets the current knowledge of the
pod's member. One term has one coordinator: the hard state has every term that this sidecar has voted in, followed or
led, and its RecordHardState comes before every effect that relies on it. If the hard state cannot be stored, the caller
drops the effects that follow it and reports HardStateNotStored: this sidecar then steps down, votes no more, and ends
its pod, so that the operator replaces it. The sidecar's process ends once its member has finished or its pod is asked
to end, but the coordinator of a closed job stays until its shutdown is complete. A term that has ended is left at once,
even if messages of its coordinator are still to be written, so that the next appointment finds no coordinator.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from understudy_protocol import membership as m
from understudy_protocol import observer as o
from understudy_protocol.enums import Fault, Term
from understudy_protocol.hard_state import HardState
from understudy_protocol.pod import JobShape
from understudy_sidecar.membership import events as e
from understudy_sidecar.membership.candidate import CandidateMachine, MemberInfo
from understudy_sidecar.membership.coordinator import Coordinator
from understudy_sidecar.membership.member import Member
from understudy_sidecar.membership.member_state import Identity
from understudy_sidecar.membership.observation import Observation
from understudy_sidecar.membership.voter import Voter


@dataclass(frozen=True)
class ObserverUp:
    """An observer has called and proved the key. No member's link has the same number."""

    link: int


@dataclass(frozen=True)
class ObserverDown:
    link: int


@dataclass(frozen=True)
class HardStateNotStored:
    """The hard state could not be stored; no effect after it was carried out."""

    reason: str


@dataclass(frozen=True)
class FromObserver:
    """An observer's message."""

    link: int
    message: object


CoreEvent = (
    e.MemberEvent
    | e.Received
    | e.Dropped
    | e.Unreachable
    | ObserverUp
    | ObserverDown
    | FromObserver
    | HardStateNotStored
)
CoreEffect = e.MemberEffect | e.Send | e.Broadcast | e.Hangup | e.WatchMachines


CANNOT_STORE = "its sidecar cannot store its state"
#: The coordinator's own limit for its shutdown is 3 s; this one only guards against a bug in it.
SHUTDOWN_LIMIT_S = 5.0


class Core:
    """See the module. closed, verdict, hard_state, launcher_known: stored by an earlier process of this sidecar.

    cpu_clock: the CPU time of this thread in seconds.
    """

    def __init__(
        self,
        shape: JobShape,
        identity: Identity,
        hard_state: HardState,
        now: float,
        closed: m.Close | None = None,
        verdict: m.NodeVerdict | None = None,
        *,
        launcher_known: bool = False,
        cpu_clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.voter = Voter(hard_state)
        self.member = Member(identity, self.voter, now, closed, verdict, launcher_known=launcher_known)
        self.coordinator: Coordinator | None = None
        self.process_may_end = False  # its member has finished, or its pod is asked to end
        self._shutdown_complete = False
        self._member_due = self.member.deadline()  # only an event of the member changes it
        self._dial: tuple[float, e.Dial] | None = None  # a delayed call, and when it is due
        self._shape, self._identity = shape, identity
        self._member_info = self.member_info()
        self._candidate = CandidateMachine(identity.pod_uid, self.voter, self._member_info)
        self._links: set[int] = set()  # of members that have sent something
        self._called_at: dict[int, float] = {}  # when each of them sent its Join, by its link
        self._cannot_store = False
        self._observation = Observation(lambda: self.coordinator, self.member_info, cpu_clock)
        self._now = now
        self._out: list[CoreEffect] = []

    def member_info(self) -> MemberInfo:
        member = self.member
        return MemberInfo(
            member.coordinator,
            member.closed,
            member.may_vote_here,
            self.voter.hard_state,
            member.replacement_reason or member.unable_reason,
            member.lacks_launcher,
            member.doubts_coordinator,
        )

    def handle(self, event: CoreEvent, now: float) -> list[CoreEffect]:
        self._now = now
        match event:
            case HardStateNotStored(reason):
                self._on_store_failed(reason)
            case e.Received(link, message):
                self._on_received(link, message)
            case e.Dropped(link):
                self._links.discard(link)
                self._called_at.pop(link, None)
                self._to_role(event)
            case e.Unreachable():
                self._to_coordinator(event)
            case ObserverUp(link):
                self._observation.add(link)
                self._to_coordinator(e.ObserversChanged(len(self._observation)))
            case ObserverDown(link):
                self._observation.remove(link)
                self._to_coordinator(e.ObserversChanged(len(self._observation)))
            case FromObserver(link, message):
                self._on_observer_message(message)
                self._observation.answer(link)
            case e.Tick():
                self._on_tick(now)
            case e.LeaveRequested():
                self.process_may_end = True
                self._to_member(event)
            case _:
                self._to_member(event)
        self._out += self._observation.due_messages(now)
        effects, self._out = self._out, []
        return effects

    @property
    def is_over(self) -> bool:
        """Whether the process may end."""
        is_shutting_down = (
            self.member.closed is not None and self.coordinator is not None and not self._shutdown_complete
        )
        return self.process_may_end and not is_shutting_down and not self.member.is_flushing

    @property
    def end_limit_s(self) -> float:
        """For how long the process that may end waits for `is_over`. Copies of snapshots may take the rest of the pod's
        grace period, at the end of which the kubelet kills the process.
        """
        return self._identity.grace_s if self.member.is_flushing else SHUTDOWN_LIMIT_S

    def deadline(self) -> float | None:
        """When the next Tick is due; None if none is."""
        dial_at = None if self._dial is None else self._dial[0]
        times = (self._member_due, self._role_deadline(), self._observation.deadline(), dial_at)
        return min((at for at in times if at is not None), default=None)

    def snapshot_took(self, seconds: float) -> None:
        """Report the CPU time that encoding and writing the last snapshot took."""
        self._observation.snapshot_took(seconds)

    # Events -----------------------------------------------------------------------------------------------------------

    def _on_received(self, link: int, message: object) -> None:
        self._links.add(link)
        if isinstance(message, m.Join):
            self._called_at[link] = self._now
        if self._cannot_store:
            self._out.append(e.Hangup(link, CANNOT_STORE))
            return
        if self.coordinator is None and isinstance(message, m.Join):
            silent_term = message.term if message.disconnected_silently else None
            self._to_member(e.CalledBy(message.ip, silent_term))  # before: the candidate may have to keep the caller
            self._to_candidate(e.JoinReceived(link, message))
        else:
            self._to_role(e.Received(link, message))

    def _on_observer_message(self, message: object) -> None:
        match message:
            case o.Appoint():
                self._appoint(message)
            case o.End(reason, text) if self.coordinator is None:
                self._to_member(e.ClosedByOperator(m.Close(reason, text)))
            case o.Superseded():
                self._on_superseded(message)
            case o.Nodes() | o.End():
                self._to_coordinator(e.FromOperator(message))
            case _:
                pass

    def _on_tick(self, now: float) -> None:
        if self._member_due is not None and now >= self._member_due:
            self._to_member(e.Tick())
        at = self._role_deadline()
        if at is not None and now >= at:
            self._to_role(e.Tick())
        if self._dial is not None and now >= self._dial[0]:
            self._out.append(self._dial[1])
            self._dial = None

    def _role_deadline(self) -> float | None:
        return self._candidate.deadline() if self.coordinator is None else self.coordinator.deadline()

    # The store --------------------------------------------------------------------------------------------------------

    def _on_store_failed(self, reason: str) -> None:
        text = f"{CANNOT_STORE} in {reason}"
        self._cannot_store = True
        self._to_member(e.Unfit(text))
        if self.coordinator is not None:
            self._step_down(text)
        else:
            self._candidate = CandidateMachine(self._identity.pod_uid, self.voter, self.member_info())
            self._hang_up_all()

    # The machines -----------------------------------------------------------------------------------------------------

    def _to_member(self, event: e.MemberEvent) -> None:
        effects = self.member.handle(event, self._now)
        self._member_due = self.member.deadline()
        for effect in effects:
            self._on_member_effect(effect)
        member_info = self.member_info()
        if member_info != self._member_info:
            self._member_info = member_info
            if self.coordinator is None:
                self._to_candidate(e.Tick())
            else:
                self._report_own_pod(self.coordinator)

    def _on_member_effect(self, effect: e.MemberEffect) -> None:
        match effect:
            case e.Finish():
                self.process_may_end = True
            case e.Dial(hosts, delay_s) if delay_s:
                self._dial = self._now + delay_s, e.Dial(self._with_own_ip(hosts))
            case e.Dial(hosts):
                self._dial = None
                self._out.append(e.Dial(self._with_own_ip(hosts)))
            case e.HangupCoordinator():
                self._dial = None
                self._out.append(effect)
            case _:
                self._out.append(_with_source("member", effect))

    def _with_own_ip(self, hosts: tuple[str, ...]) -> tuple[str, ...]:
        """A coordinator's own member calls it last: a job of one pod has no Service, and no other host."""
        own_ip = self._identity.ip
        return hosts if self.coordinator is None or own_ip in hosts else (*hosts, own_ip)

    def _to_role(self, event: e.Received | e.Dropped | e.Tick) -> None:
        if self.coordinator is None:
            self._to_candidate(event)
        else:
            self._to_coordinator(event)

    def _to_candidate(self, event: e.CandidateEvent) -> None:
        for effect in self._candidate.handle(event, self.member_info(), self._now):
            if isinstance(effect, e.AssumeLeadership):
                self._assume_leadership(effect)
            else:
                self._out.append(_with_source("candidate", effect))

    def _to_coordinator(self, event: e.CoordinatorEvent) -> None:
        if self.coordinator is not None:
            self._do_coordinator_effects(self.coordinator.handle(event, self._now))

    def _do_coordinator_effects(self, effects: list[e.CoordinatorEffect]) -> None:
        for effect in effects:
            match effect:
                case e.StepDown(reason):
                    self._step_down(reason)
                    return  # a coordinator that has stepped down forms no round: drop its remaining effects
                case e.CompleteShutdown():
                    self._shutdown_complete = True
                case _:
                    self._out.append(_with_source("coordinator", effect))

    # Terms begin and end ----------------------------------------------------------------------------------------------

    def _appoint(self, appoint: o.Appoint) -> None:
        """The operator appoints this sidecar; an epoch that it already knows changes nothing."""
        term = Term(appoint.epoch, 1)
        if self._cannot_store or not self.voter.accept_appointment(term):
            return
        self._out.append(e.RecordHardState(self.voter.hard_state))
        self._out.append(e.Log(f"appointed as coordinator of term {term}, rounds above {appoint.at_least_round}"))
        if self.coordinator is None:
            self._hang_up_all()
        elif self.coordinator.has_missed(appoint):
            self._step_down("another coordinator has formed a newer round meanwhile")
        else:
            self._do_coordinator_effects(self.coordinator.appoint(appoint, self._now))
            return
        me = self._identity
        leader_snapshot = self.voter.hard_state.leader_snapshot
        self.coordinator = Coordinator.appointed(self._shape, me.pod_uid, me.ip, appoint, self._now, leader_snapshot)
        self._start_coordinator(self.coordinator)
        self._to_member(e.LeadershipAssumed())

    def _on_superseded(self, superseded: o.Superseded) -> None:
        """The coordinator steps down if the appointment is newer. Its voter follows that term, so this sidecar takes no
        part in another election of the older epoch, and the members that wait for one in its candidate pool leave it.
        """
        self._to_coordinator(e.FromOperator(superseded))
        known = self.voter.hard_state.term
        if self.coordinator is None and superseded.term > known and self.voter.follow(superseded.term):
            self._out.append(e.RecordHardState(self.voter.hard_state))
            self._to_candidate(e.FromOperator(superseded))

    def _assume_leadership(self, effect: e.AssumeLeadership) -> None:
        """The members have elected this sidecar: the callers in its candidate pool join the new coordinator."""
        assert effect.leader_snapshot is not None, "a candidate has a voter configuration"
        callers, me = self._candidate.callers, self._identity
        if self.voter.follow(effect.term):
            self._out.append(e.RecordHardState(self.voter.hard_state))
        leader_snapshot = effect.leader_snapshot
        self.coordinator = Coordinator.elected(self._shape, me.pod_uid, me.ip, effect.term, leader_snapshot, self._now)
        self._start_coordinator(self.coordinator)
        for number, join in callers.items():
            self._to_coordinator(e.Received(number, self._with_current_times(number, join)))
        self._to_member(e.LeadershipAssumed(elected=True))

    def _start_coordinator(self, coordinator: Coordinator) -> None:
        self._report_own_pod(coordinator)
        self._to_coordinator(e.ObserversChanged(len(self._observation)))

    def _report_own_pod(self, coordinator: Coordinator) -> None:
        """A member that can take part in no round does not join its own coordinator, which reports its pod as lost."""
        me, reason, state = self._identity, self.member.unable_reason, coordinator.state
        if reason and me.pod_uid not in state.roster.members and me.pod_uid not in state.losses.by_uid:
            state.losses.report(o.Lost(me.pod_uid, me.pod_name, me.node, Fault.POD, reason, self._now))
            state.notify_observers()

    def _with_current_times(self, link: int, join: m.Join) -> m.Join:
        """The Join with its durations as of now."""
        if join.disconnected_s is None:
            return join
        return replace(join, disconnected_s=join.disconnected_s + self._now - self._called_at.get(link, self._now))

    def _step_down(self, reason: str) -> None:
        """End this sidecar's term: all members, also its own, look for another coordinator."""
        self._out.append(e.Log(f"steps down as the coordinator: {reason}"))
        if self.coordinator is not None and not self.coordinator.has_voters:
            self._keep_history(self.coordinator)
        self.coordinator = None
        self._candidate = CandidateMachine(self._identity.pod_uid, self.voter, self.member_info())
        self._hang_up_all()

    def _keep_history(self, coordinator: Coordinator) -> None:
        """Store what no standby coordinator has got: this member's next Join has it."""
        if not self._cannot_store and self.voter.store_leader_snapshot(coordinator.leader_snapshot()):
            self._out.append(e.RecordHardState(self.voter.hard_state))

    def _hang_up_all(self) -> None:
        self._out += [e.Hangup(link, "this sidecar's term has changed") for link in sorted(self._links)]


def _with_source(source: str, effect: "CoreEffect") -> "CoreEffect":
    return e.Log(f"{source}: {effect.text}") if isinstance(effect, e.Log) else effect
