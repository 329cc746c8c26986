"""The member's state: all of it in one place, for the modules that each decide one thing.

Rules: the fields of a group are written only by the module that the group names. This module decides nothing.
"""

from dataclasses import dataclass, field
from enum import Enum

from understudy_protocol import membership as m
from understudy_protocol.enums import NO_ROUND, NO_TERM, RoundToken, Term, WorkersState
from understudy_protocol.launcher import SnapshotsStored
from understudy_protocol.snapshots import CopyPlan, FetchedStep, KeptSteps, SavedStep, SavedSteps
from understudy_sidecar.membership.calling import Calls
from understudy_sidecar.membership.device_watch import DeviceWatch
from understudy_sidecar.membership.events import Log, MemberEffect, SnapshotCopied, ToCoordinator, ToLauncher
from understudy_sidecar.membership.liveness import LauncherWatch, LeaderLease
from understudy_sidecar.membership.stall import StepWatch
from understudy_sidecar.membership.voter import Voter

DEFAULT_HEARTBEAT_S = 5.0


@dataclass(frozen=True)
class Identity:
    """Facts that the pod knows from its start, and that never change."""

    pod_uid: str
    pod_name: str
    node: str
    ip: str
    index: int | None  # completion index; None for a spare
    grace_s: float = 30.0  # the pod's termination grace period
    fence_s: float = 30.0  # see JobShape
    launcher_timeout_s: float = 15.0  # see JobShape
    warm: bool = False  # it waited in a pool as a spare before it belonged to this job


class MembershipState(Enum):
    NO_LAUNCHER = "no-launcher"
    DISCONNECTED = "disconnected"
    JOINED = "joined"
    EVICTED = "evicted"
    CLOSED = "closed"


@dataclass
class Launcher:
    """The pod's launcher. Written by member_launcher.py."""

    watch: LauncherWatch
    is_known: bool  # one was connected to this sidecar, perhaps to an earlier process of it
    due: float | None  # when an expected launcher has to be connected
    has_ended: bool = False
    is_silent: bool = False
    has_unkillable: bool = False  # a process of an earlier round has outlived its SIGKILL for too long
    devices: DeviceWatch = field(default_factory=DeviceWatch)
    lacks_devices: bool = False  # they have been missing for too long
    missing_devices: str = ""  # the reason in the log


@dataclass
class MemberWorkers:
    """The newest round of this pod, and the reports of its workers. Written by member_workers.py."""

    token: RoundToken = NO_ROUND
    group_rank: int | None = None
    group_world_size: int = 0  # members of its round
    state: WorkersState = WorkersState.IDLE
    master_port: int = 0
    store_port: int = 0
    store_term: Term | None = None  # the coordinators of this term know of the store
    failure: m.WorkerFailed | None = None
    raised: tuple[m.WorkerRaised, float] | None = None  # the first exception in its round, and when it was reported
    stepped: RoundToken = NO_ROUND  # the newest round in which a worker of this pod has made a step
    first_step_sent: RoundToken = NO_ROUND
    steps: StepWatch = field(default_factory=StepWatch)  # of the newest round, in this pod
    replaced: RoundToken = NO_ROUND  # the newest round that gave the ranks of this pod to another one
    saved: SavedSteps | None = None  # the snapshots of this pod for its round, and the coordinator's choice
    fetched_since: RoundToken = NO_ROUND  # snapshots that were fetched for it or for later rounds count; NO_ROUND: none
    hang_is_reported: bool = False
    drained_until: float | None = None  # they have time to save until then, after a Drain; None: the round got none
    replicas: dict[int, m.Replicas] = field(default_factory=dict)  # the newest report of each rank that ran here
    fork_fallback_reason: str = ""  # why workers are not forked, as the launcher reports
    learned_modules: tuple[str, ...] = ()  # by the fork server
    stored: SnapshotsStored | None = None  # on storage, since the launcher's start


@dataclass
class MemberCopies:
    """The copies of snapshots that this pod sends, keeps and fetches. Written by member_copies.py."""

    token: RoundToken = NO_ROUND  # of the newest plan
    plan: CopyPlan | None = None
    kept: tuple[KeptSteps, ...] | None = None  # when the plan began; None: not known yet
    missed: RoundToken = NO_ROUND  # the newest round that was formed without this pod, as far as it knows
    missed_before: RoundToken = NO_ROUND  # the previous value of `missed`
    oldest: RoundToken = NO_ROUND  # the newest round of this pod whose choice it knew when a newer one began
    restored: SavedStep | None = None  # by that round
    fetching: m.FetchCopy | None = None  # not answered yet
    overwritten: frozenset[SavedStep] = frozenset()  # own snapshots that fetches have replaced
    fetched: tuple[FetchedStep, ...] = ()  # into the memory of the pod's own ranks
    all_overwritten: bool = False  # perhaps: a fetch has ended without a report
    flushing: RoundToken | None = None  # the workers of this round have ended, and their snapshots are being copied
    stride: int = 1  # that this pod needs
    newest: SnapshotCopied | None = None  # the newest report


@dataclass
class MemberLink:
    """The connection to the coordinator, or to another sidecar that was called. Written by member_link.py."""

    calls: Calls = field(default_factory=Calls)
    is_connected: bool = False
    is_dialing: bool = False
    host: str = ""  # of the newest connection
    answer_until: float | None = None  # for the called sidecar
    has_voted: bool = False  # for the called candidate
    last_coordinator_ip: str = ""
    named_ip: str = ""  # first host of the newest call, because another member or sidecar named it
    first_call_ip: str = ""  # first host of the call when its launcher connects
    joined_term: Term = NO_TERM  # the term in its newest Join
    joined_situation: tuple[object, ...] = ()  # the facts in its newest Join
    joined_stopped: bool = False  # its newest Join has reported that, and no step was reported since
    heartbeat_s: float = DEFAULT_HEARTBEAT_S
    domain: str = ""
    fault_reported_at: float | None = None
    disconnected_at: float | None = None  # when its last coordinator was lost
    disconnected_silently: bool = False
    machine_is_silent: bool = False  # of its last coordinator, and not only the process
    look_at: float = 0.0  # when the coordinator's machine is looked at again; written by coordinator_watch.py
    doubted_until: float | None = None  # another member has lost this coordinator; written by coordinator_watch.py


@dataclass
class MemberEnd:
    """The close, the eviction, and the end of the pod. Written by member_end.py."""

    closed: m.Close | None
    finish_at: float | None
    shutdown_is_complete: bool = False
    replacement_reason: str = ""  # why it takes no part any more, so that its pod must be replaced
    leaving: m.Leaving | None = None
    leaving_until: float = 0.0


@dataclass
class MemberState:
    identity: Identity
    voter: Voter
    lease: LeaderLease
    launcher: Launcher
    end: MemberEnd
    state: MembershipState
    verdict: m.NodeVerdict | None  # the newest about its node; written by member_orders.py
    workers: MemberWorkers = field(default_factory=MemberWorkers)
    link: MemberLink = field(default_factory=MemberLink)
    copies: MemberCopies = field(default_factory=MemberCopies)
    coordinator: m.StandbyCoordinator | None = None  # the leader, as far as this member knows
    unable_reason: str = ""  # why it can take part in no round, although its launcher is connected
    now: float = 0.0  # of the event that is being handled
    _out: list[MemberEffect] = field(default_factory=list)

    # Transitions ------------------------------------------------------------------------------------------------------

    def become(self, state: MembershipState) -> None:
        """Leave the coordinator."""
        self.state, self.coordinator = state, None

    def join(self, coordinator: m.StandbyCoordinator | None) -> None:
        self.state, self.coordinator = MembershipState.JOINED, coordinator

    def close(self) -> None:
        self.state = MembershipState.CLOSED

    def set_unable(self, reason: str) -> None:
        self.unable_reason = reason

    # Effects ----------------------------------------------------------------------------------------------------------

    def do(self, *effects: MemberEffect) -> None:
        self._out += effects

    def log(self, text: str) -> None:
        self._out.append(Log(text))

    def send(self, message: object, *, while_joining: bool = False) -> None:
        """Send to the coordinator; a new one reads the facts in the Join. while_joining: also before its Welcome."""
        if self.link.is_connected and (while_joining or self.state in (MembershipState.JOINED, MembershipState.CLOSED)):
            self._out.append(ToCoordinator(message))

    def answer(self, message: object) -> None:
        self._out.append(ToCoordinator(message))

    def order(self, message: object) -> None:
        self._out.append(ToLauncher(message))

    def take_effects(self) -> list[MemberEffect]:
        effects, self._out = self._out, []
        return effects
