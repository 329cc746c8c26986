"""The member: between one pod's launcher and the job's coordinator.

    state         event                               next          what it does
    ------------  ----------------------------------  ------------  ----------------------------------------------------
    NO_LAUNCHER   the launcher connects               DISCONNECTED  calls the coordinator, or its standby coordinators
    DISCONNECTED  a call is answered                  DISCONNECTED  Join, with its identity and state
    DISCONNECTED  Welcome of the newest term          JOINED        follows this coordinator
    DISCONNECTED  Welcome of an older term            DISCONNECTED  hangs up, and calls the next host
    DISCONNECTED  RequestVote                         DISCONNECTED  VoteGranted, its vote stored before; or VoteDenied
    DISCONNECTED  Redirect, or no answer              DISCONNECTED  Disconnecting, hangs up, and calls the next host
    DISCONNECTED  no coordinator for the fence time   DISCONNECTED  the launcher stops its workers: they may be replaced
    JOINED        Assign of a newer round             JOINED        Ack; the launcher starts the round's workers
    JOINED        Standby                             JOINED        the launcher stops all running workers
    JOINED        Drain                               JOINED        the launcher ends its workers, which may save
    JOINED        WriteStacks                         JOINED        the launcher writes the stacks of its workers
    JOINED        PlanCopies, FetchCopy               JOINED        sends, keeps or fetches copies (member_copies.py)
    JOINED        BreakWorker                         JOINED        the launcher breaks a worker: a drill
    JOINED        ConfigChange                        JOINED        stores it, and sends ConfigChangeAck
    JOINED        Redirect                            DISCONNECTED  leadership is transferred: calls that standby
    JOINED        the link ends                       DISCONNECTED  calls the standby coordinators
    JOINED        three heartbeats are missing        DISCONNECTED  Disconnecting, hangs up, and calls the next host
    JOINED        a step is late, and the machine of  DISCONNECTED  Disconnecting, hangs up, and calls the next host
                  the coordinator does not respond
    JOINED        its fault gets no answer            DISCONNECTED  Disconnecting, hangs up, and calls the next host
    DISCONNECTED  Evicted, by the newest term         EVICTED       hangs up; the launcher exits with a code of its own
    JOINED        Evicted                             EVICTED       the same
    EVICTED       the launcher ended                  EVICTED       finishes
    EVICTED       the launcher connects               EVICTED       it exits with that code
    any           Close                               CLOSED        CloseAck; the launcher exits with the close's code
    CLOSED        ShutdownComplete, launcher ended    CLOSED        finishes
    CLOSED        LINGER_S after the launcher ended   CLOSED        finishes: members that missed the close may ask here
    CLOSED        the launcher connects               CLOSED        it exits with the close's code
    CLOSED        no launcher connects for LINGER_S   CLOSED        finishes
    any           the launcher ends                   NO_LAUNCHER   Gone, and hangs up
    JOINED        the launcher does not respond       NO_LAUNCHER   the same (liveness.py)
    JOINED        a killed process does not end       NO_LAUNCHER   the same: no round could start here
    NO_LAUNCHER   it responds, no process is left     DISCONNECTED  calls the coordinator, or its standby coordinators
    any           its sidecar cannot store its state  EVICTED       Gone, and hangs up; the launcher exits (core.py)

Rules: messages are ordered by their token; the member drops older ones. The first close is final. A member counts only
while its launcher is connected, and a leaving one until its newest snapshots are copied. An evicted member calls no
coordinator. The operator reports the node's verdict in two ways, through the coordinator and, a minute later, in the
pod's annotation: the member keeps the newer one. The launcher keeps a duplicate of the socket to the coordinator, so
that the membership survives a crash of the sidecar alone. voter.py has the hard state. member_launcher.py,
member_workers.py, member_copies.py, member_link.py, member_orders.py and member_end.py decide about the parts of this
table.
"""

from understudy_protocol import membership as m
from understudy_protocol.enums import RoundToken, WorkersState
from understudy_protocol.launcher import SnapshotsStored
from understudy_sidecar.membership import (
    coordinator_watch,
    member_copies,
    member_end,
    member_launcher,
    member_link,
    member_orders,
    member_workers,
)
from understudy_sidecar.membership.events import (
    CalledBy,
    ClosedByOperator,
    CoordinatorUnreachable,
    CopiesFlushed,
    CopiesPlanned,
    CopyEvent,
    CopyFetched,
    CopyOverwrites,
    CopyStrideNeeded,
    FromCoordinator,
    FromLauncher,
    FromWorker,
    LauncherDown,
    LauncherUp,
    LeadershipAssumed,
    LeaveRequested,
    LinkDown,
    LinkUp,
    MemberEffect,
    MemberEvent,
    SnapshotCopied,
    Tick,
    Unfit,
    VerdictAnnotated,
)
from understudy_sidecar.membership.liveness import LauncherWatch, LeaderLease
from understudy_sidecar.membership.member_state import Identity, Launcher, MemberEnd, MembershipState, MemberState
from understudy_sidecar.membership.voter import Voter


class Member:
    """See the module."""

    def __init__(
        self,
        identity: Identity,
        voter: Voter,
        now: float,
        closed: m.Close | None = None,
        verdict: m.NodeVerdict | None = None,
        *,
        launcher_known: bool = False,
    ) -> None:
        """closed, verdict: stored by an earlier process of this sidecar; the launcher may not know of the close.

        launcher_known: a launcher was connected to that process: it still runs, and will connect again.
        """
        timeout_s, is_awaited = identity.launcher_timeout_s, launcher_known and closed is None
        launcher = Launcher(LauncherWatch(timeout_s), launcher_known, now + timeout_s if is_awaited else None)
        end = MemberEnd(closed, None if closed is None else now + member_end.LINGER_S)
        self._me = MemberState(
            identity,
            voter,
            LeaderLease(now),
            launcher,
            end,
            state=MembershipState.NO_LAUNCHER if closed is None else MembershipState.CLOSED,
            verdict=verdict,
        )

    def handle(self, event: MemberEvent, now: float) -> list[MemberEffect]:
        me = self._me
        me.now = now
        match event:
            case LauncherUp() | FromLauncher() | LauncherDown():
                member_launcher.on_event(me, event, now)
            case FromWorker(replicas):
                member_workers.on_replicas(me, replicas)
            case LinkUp(host):
                member_link.on_link(me, host, now)
            case FromCoordinator(message):
                member_orders.on_message(me, message, now)
            case LinkDown(silent):
                member_link.on_link_down(me, silent=silent)
            case LeadershipAssumed(elected):
                member_link.on_leadership_assumed(me, elected=elected)
            case CoordinatorUnreachable() | CalledBy():
                self._on_lost_coordinator(event)
            case LeaveRequested() | Unfit() | ClosedByOperator():
                member_end.on_event(me, event, now)
            case (
                CopiesPlanned()
                | CopyOverwrites()
                | CopyFetched()
                | CopiesFlushed()
                | CopyStrideNeeded()
                | SnapshotCopied()
            ):
                self._on_copies(event)
            case VerdictAnnotated(verdict):
                member_orders.on_annotated(me, verdict)
            case Tick():
                pass
        member_launcher.ping(me, now)
        member_launcher.check_devices(me, now)
        member_end.on_time(me, now)
        member_launcher.on_time(me, now)
        member_link.on_time(me, now)
        coordinator_watch.on_time(me, now)
        member_workers.fence(me, now)
        return me.take_effects()

    def _on_lost_coordinator(self, event: CoordinatorUnreachable | CalledBy) -> None:
        """This member or another one may have lost its coordinator."""
        me = self._me
        match event:
            case CoordinatorUnreachable():
                coordinator_watch.on_unreachable(me, me.now)
            case CalledBy(ip, silent_term):
                member_link.on_called_by(me, ip)
                coordinator_watch.on_called(me, silent_term, me.now)

    def _on_copies(self, event: CopyEvent) -> None:
        if isinstance(event, CopiesFlushed):
            member_launcher.on_copies_flushed(self._me, event.token)
        else:
            member_copies.on_event(self._me, event)

    @property
    def stored(self) -> SnapshotsStored | None:
        """The snapshots of this pod on storage."""
        return self._me.workers.stored

    def deadline(self) -> float | None:
        """The next time at which a timeout or the fence expires, or the sidecar ends; None if there is none."""
        me = self._me
        times = (
            me.end.finish_at,
            me.launcher.due,
            me.launcher.watch.deadline(),
            me.launcher.devices.deadline(),
            member_link.deadline(me),
            coordinator_watch.deadline(me),
            member_workers.fenced_at(me),
        )
        return min((at for at in times if at is not None), default=None)

    # Facts ------------------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> Identity:
        return self._me.identity

    @property
    def state(self) -> MembershipState:
        return self._me.state

    @property
    def token(self) -> RoundToken:
        return self._me.workers.token

    @property
    def group_rank(self) -> int | None:
        return self._me.workers.group_rank

    @property
    def workers(self) -> WorkersState:
        return self._me.workers.state

    @property
    def store_port(self) -> int:
        return self._me.workers.store_port

    @property
    def is_flushing(self) -> bool:
        """Whether its newest snapshots are being copied before its pod ends."""
        has_ended = self._me.end.closed is not None or bool(self._me.end.replacement_reason)
        return self._me.copies.flushing is not None and not has_ended

    @property
    def closed(self) -> m.Close | None:
        return self._me.end.closed

    @property
    def coordinator(self) -> m.StandbyCoordinator | None:
        """The leader, as far as this member knows."""
        return self._me.coordinator

    @property
    def doubts_coordinator(self) -> bool:
        """Whether another member has lost this coordinator, and this one looks at the coordinator's machine."""
        return self._me.link.doubted_until is not None

    @property
    def lacks_launcher(self) -> bool:
        """No launcher has connected to this sidecar yet, or the last one has ended."""
        return self._me.state is MembershipState.NO_LAUNCHER and not self._me.launcher.is_known

    @property
    def replacement_reason(self) -> str:
        """Why it takes no part any more, so that its pod must be replaced."""
        return self._me.end.replacement_reason

    @property
    def unable_reason(self) -> str:
        """Why it can take part in no round, although its launcher is connected."""
        return self._me.unable_reason

    @property
    def may_vote_here(self) -> bool:
        """Whether it looks for a coordinator, and is in no pool of a candidate that has its vote."""
        return self._me.state is MembershipState.DISCONNECTED and not self._me.link.has_voted
