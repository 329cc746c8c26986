"""Messages between a member and the sidecar that it has called, over one WebSocket (after the handshake).

The sidecar that was called is the coordinator, or a standby coordinator in whose candidate pool callers wait for an
election, or another member that knows the coordinator. A caller's first message is its Join. The sidecar answers with
Welcome, RequestVote or Redirect. The tuples TO_COORDINATOR and TO_MEMBER have the direction of each message. Times are
Unix seconds; ranks are global unless they are called local. A field with a default may be missing.
"""

from dataclasses import dataclass
from typing import Optional

from understudy_protocol.enums import (
    NO_CONFIG,
    NO_ROUND,
    NO_TERM,
    CloseReason,
    ConfigVersion,
    Drill,
    FaultClass,
    RoundToken,
    Term,
    Verdict,
    WorkersState,
)
from understudy_protocol.recovery import History
from understudy_protocol.rollouts import UpdateFailure
from understudy_protocol.snapshots import (
    CopyHolder,
    CopyPlan,
    KeptSteps,
    RestoreChoice,
    SavedStep,
    SavedSteps,
    SnapshotAge,
)


@dataclass(frozen=True)
class Join:
    """The first message of a caller: its identity and the newest state that it knows. A new coordinator rebuilds its
    state from these messages.
    """

    pod_uid: str
    pod_name: str
    node: str
    ip: str  # its address (addresses.py): IP, or IP:PORT
    index: Optional[int]  # completion index that its pod was created for; None for a spare
    token: RoundToken  # the newest round that it was assigned to, or received a message about
    group_rank: Optional[int]  # its group rank in that round; None while it waits
    workers: WorkersState  # Running until the newest snapshots are copied after a drain
    master_port: int  # a free port of this pod, for the store of a round in which it has rank 0
    term: Term = NO_TERM  # the newest term that it knows, or has voted in
    config_version: ConfigVersion = NO_CONFIG  # the newest version that it has acknowledged
    domain: str = ""  # topology domain of its node, as a coordinator has sent it; "" while unknown
    group_world_size: int = 0  # members of that round; 0 while unknown
    failure: Optional["WorkerFailed"] = None  # of that round
    leaving: Optional["Leaving"] = None  # set if its pod was asked to end
    store_port: Optional[int] = None  # see Port; None: only the worker of rank 0 can serve a store
    history: Optional[History] = None  # from a standby coordinator: as it received it from the newest coordinator
    verdict: Optional["NodeVerdict"] = None  # the newest that it received; None: none
    warm: bool = False  # it was a pool's spare before the job claimed it
    stepped: RoundToken = NO_ROUND  # the newest round whose workers have reported a step on this pod
    disconnected_s: Optional[float] = None  # seconds since it lost its last coordinator; None: it never had one
    disconnected_silently: bool = False  # no kernel closed that connection: the machine did not respond
    unable_reason: str = ""  # why it can take part in no round, so that its pod must be replaced; "": it can
    saved: Optional[SavedSteps] = None  # of that round, as in Started; None: its workers have not been started
    kept: Optional[tuple[KeptSteps, ...]] = None  # as in Started, or as in CopiesKept; None: not known yet
    drain_s: Optional[float] = None  # seconds left of a Drain of that round; None: the member got none
    has_stopped: bool = False  # its workers run, a step is late, and its last coordinator's machine does not respond


@dataclass(frozen=True)
class Welcome:
    """The coordinator's answer to a Join: it has added the member, which waits or continues its round."""

    token: RoundToken  # of the running or newest round, which may be of an older term
    term: Term = NO_TERM
    heartbeat_s: float = 5.0  # seconds between the coordinator's heartbeats
    domain: str = ""  # topology domain of the member's node
    pod_uid: str = ""  # the coordinator's own
    ip: str = ""
    verdict: Optional["NodeVerdict"] = None  # None: the coordinator knows no verdict, and the member keeps its own


@dataclass(frozen=True)
class Redirect:
    """From a sidecar that is not the coordinator, or steps down: call that pod; "" if it knows of none."""

    pod_uid: str
    ip: str


@dataclass(frozen=True)
class RequestVote:
    """From a candidate whose pool has a majority of the voters: a request to vote for it in this term."""

    term: Term
    config_version: ConfigVersion
    pod_uid: str  # the candidate's own


@dataclass(frozen=True)
class VoteGranted:
    """The member votes for the candidate. It has stored the vote, and votes for no other candidate in this term."""

    term: Term


@dataclass(frozen=True)
class VoteDenied:
    """The member does not vote for the candidate. It reports the newest term and voter configuration that it knows."""

    term: Term
    config_version: ConfigVersion


@dataclass(frozen=True)
class StandbyCoordinator:
    """A standby coordinator: its pod, and the address to call."""

    pod_uid: str
    ip: str


@dataclass(frozen=True)
class ConfigChange:
    """After the voters have changed: the standby coordinators, in the order to call them if this coordinator is
    lost, and the version of the voter configuration that is committed once members have acknowledged it.
    """

    config_version: ConfigVersion
    standby_coordinators: tuple[StandbyCoordinator, ...]


@dataclass(frozen=True)
class ConfigChangeAck:
    """The member has stored the version, and does not vote for a candidate with an older one."""

    config_version: ConfigVersion


@dataclass(frozen=True)
class RankHolder:
    """The pod that has a group rank, and its node."""

    group_rank: int
    pod_uid: str
    pod_name: str
    node: str


@dataclass(frozen=True)
class LeaderSnapshot:
    """To standby coordinators: the state that a new coordinator needs and that members do not resend in their Joins."""

    config_version: ConfigVersion
    voters: tuple[str, ...]  # pod uids
    old_voters: tuple[str, ...]  # of the configuration before; empty once a majority of them has acknowledged
    coordinator_uid: str  # pod uid of the coordinator
    recoveries_by_strategy: dict[str, int]
    history: Optional[History] = None
    token: RoundToken = NO_ROUND  # the round of the rank holders
    rank_holders: tuple[RankHolder, ...] = ()
    stepped: RoundToken = NO_ROUND  # the newest round that has made a step
    silent_members: tuple[str, ...] = ()  # uids of the members whose connections to the coordinator went silent
    coordinator_pod: str = ""  # of the coordinator's pod
    coordinator_node: str = ""
    chose: RoundToken = NO_ROUND  # the newest round for which a snapshot, or none, was chosen
    restored: Optional[SavedStep] = None  # by that round


@dataclass(frozen=True)
class Port:
    """The port for the next round's store has changed, because the workers of this round use the previous one.

    store_port: the port of a store that listens already, for one later round; 0: there is none.
    """

    master_port: int
    store_port: int = 0


@dataclass(frozen=True)
class Assign:
    """A round is formed, and the member has ranks in it: it kills its workers, acknowledges, and starts new ones."""

    token: RoundToken
    group_rank: int
    group_world_size: int
    rank_offset: int  # global rank of local rank 0
    world_size: int
    master_addr: str
    master_port: int
    reason: str
    agent_store: bool = False  # a store listens there already, so no worker serves one
    copies: Optional[CopyPlan] = None  # None: the job wants no copies of its snapshots


@dataclass(frozen=True)
class PlanCopies:
    """The member's plan for copies, if it has no ranks in the round, or the plan of its Assign has changed."""

    token: RoundToken
    plan: CopyPlan


@dataclass(frozen=True)
class CopiesKept:
    """The answer to PlanCopies of a member without ranks: no copy of an older round arrives here any more."""

    token: RoundToken
    kept: tuple[KeptSteps, ...]


@dataclass(frozen=True)
class CopyStride:
    """The stride that this member needs for its copies (CopyPlan): all members get the largest one."""

    stride: int


@dataclass(frozen=True)
class Standby:
    """The member has no rank: it waits as a spare, and ends workers that still run."""

    token: RoundToken


@dataclass(frozen=True)
class Evicted:
    """The coordinator has evicted the member: its launcher exits, so that its pod is replaced.

    Also the answer to a Join of an evicted member.
    """

    term: Term
    reason: str


@dataclass(frozen=True)
class Ack:
    """The answer to an Assign, at once. A member that does not send it in time counts as lost."""

    token: RoundToken


@dataclass(frozen=True)
class Started:
    """All workers of the member have been started."""

    token: RoundToken
    saved: Optional[SavedSteps] = None  # None: it has no memory for snapshots, and made no step
    kept: tuple[KeptSteps, ...] = ()  # the copies of other pods' snapshots that it keeps


@dataclass(frozen=True)
class WorkerFailed:
    """A worker exited with a nonzero code, or a signal ended it."""

    token: RoundToken
    local_rank: int
    exit_code: Optional[int]  # None if a signal ended it
    signal: Optional[str]  # e.g. SIGKILL
    message: str
    at: float
    traceback: str = ""  # the end of its Python traceback; "" if it left none


@dataclass(frozen=True)
class WorkerRaised:
    """An exception has ended the script of a worker, whose process still runs. It ends no round: WorkerFailed does.

    age_s and the round: as in the launcher's WorkerRaised. A member repeats the first one of its round after a Welcome.
    at: by the clock of the pod. Unlike the age, it does not depend on how long the message takes.
    """

    token: RoundToken
    local_rank: int
    message: str
    age_s: float
    traceback: str = ""
    at: float = 0.0  # 0: not known


@dataclass(frozen=True)
class Finished:
    """All workers of the member exited 0."""

    token: RoundToken


@dataclass(frozen=True)
class Progress:
    """A completed step. Sent for the first step of a round, then at most four times a second.

    pause_s, is_counted, since_first_s, snapshot: as in the launcher's Stepped. copied: the newest snapshot of this
    round that was copied from all ranks of this pod to other pods; None: there is none. at: coordinators of older
    images require it, and no coordinator reads it.
    """

    token: RoundToken
    step: int
    total: Optional[int]
    median_step_s: float  # over the newest steps of this round; 0 while unknown
    at: float
    pause_s: Optional[float] = None
    is_counted: bool = False
    since_first_s: float = 0.0
    snapshot: Optional[SnapshotAge] = None
    copied: Optional[SnapshotAge] = None


@dataclass(frozen=True)
class Hung:
    """The member's workers make no more steps. The fields are about the slowest one. Repeated until a worker steps.

    Also the answer to WriteStacks, once, if no worker of the member has made a step in this round.
    """

    token: RoundToken
    local_rank: int
    step: int  # its newest; -1: none in this round
    at: float  # when it made that step; 0.0: it made none
    silent_s: float  # seconds since that step, or since the start of the workers


@dataclass(frozen=True)
class CollectiveTimes:
    """When a rank entered the first and the last collective of each of ten steps in a row, as in the launcher's
    message. The steps at which a window may end are the same for all ranks, so the coordinator can compare the ranks.
    """

    token: RoundToken
    local_rank: int
    window: int  # the steps that the rank has made in this round, at the end of the ten
    step_ns: int  # the median duration of the ten
    collectives: tuple[int, ...]  # a hash of group and sequence number: the same on all ranks of the group
    delays_ns: tuple[int, ...]  # from the end of the rank's step before to the entry


@dataclass(frozen=True)
class Replicas:
    """The state of all rollout servers that one worker updates. It replaces the worker's previous report.

    The worker sends the same message to its sidecar, at the beginning and at the end of each update.
    """

    token: RoundToken
    rank: int  # the worker's
    fresh: int
    updating: int
    uncertain: int
    version: str  # of its newest complete update; "" before the first
    failure: Optional[UpdateFailure] = None  # of the update that has just ended


@dataclass(frozen=True)
class ForkFallback:
    """Workers of this pod start as new processes instead of forks, and the reason.

    Sent when the reason changes, and after each Welcome if there is one.
    """

    reason: str  # "": workers are forked again


@dataclass(frozen=True)
class Learned:
    """The modules that the workers of this pod have imported beside the default ones, if it has rank 0.

    Sent when its fork server has imported them, and after each Welcome.
    """

    modules: tuple[str, ...]


@dataclass(frozen=True)
class Preload:
    """To a spare: the fork server imports these modules, so that the workers of a round need not."""

    modules: tuple[str, ...]


@dataclass(frozen=True)
class Leaving:
    """The pod was asked to end: its workers may save for at most grace_s. Verdict Faulty: they were killed already."""

    reason: str
    grace_s: float
    verdict: Verdict = Verdict.UNKNOWN


@dataclass(frozen=True)
class NodeVerdict:
    """The verdict for the member's node. It replaces the previous verdict."""

    verdict: Verdict
    reason: str = ""
    until: Optional[float] = None  # when it expires; None: it does not expire
    fault_class: Optional[FaultClass] = None  # None: no finding, or a sender that does not know classes
    grace_s: Optional[float] = None  # seconds until the node leaves; None: it waits for the grace periods of its pods
    at: float = 0.0  # when the operator found it: the newest verdict counts; 0: not known


@dataclass(frozen=True)
class Drain:
    """A member leaves, and a save may need every rank: workers get SIGTERM, and grace_s seconds to save."""

    token: RoundToken
    grace_s: float


@dataclass(frozen=True)
class BreakWorker:
    """A drill: the launcher breaks one worker of the round."""

    token: RoundToken
    drill: Drill  # Process or Hang


@dataclass(frozen=True)
class WriteStacks:
    """No worker of the round has made a step in time: the launcher logs stacks, and the member answers with Hung."""

    token: RoundToken


@dataclass(frozen=True)
class Drained:
    """All workers of the member have ended after a Drain, and their snapshots are copied if copies are wanted."""

    token: RoundToken


@dataclass(frozen=True)
class Disconnecting:
    """The member disconnects to look for another coordinator; its workers continue."""

    reason: str


@dataclass(frozen=True)
class Gone:
    """This pod cannot take part in any further round."""

    reason: str
    local_rank: Optional[int] = None  # of the worker that cannot be killed, if this is the reason
    launcher_is_alive: bool = False  # its launcher still runs, so the pod stays until the operator deletes it


@dataclass(frozen=True)
class FetchCopy:
    """The ranks of the round restore this snapshot, and this member does not have it: fetch the copy that one of these
    pods keeps.
    """

    token: RoundToken
    saved: SavedStep
    holders: tuple[CopyHolder, ...]


@dataclass(frozen=True)
class CopyFetched:
    """The answer to FetchCopy."""

    token: RoundToken
    saved: SavedStep
    error: str = ""  # why none of the holders has a whole copy; "": the member has the snapshot
    whole: tuple[SavedStep, ...] = ()  # what the member has now: a fetch overwrites one of its snapshots


@dataclass(frozen=True)
class Restore:
    """The snapshot that all ranks of the round restore. Sent once all members have sent Started and the copies have
    been fetched, and to a member that joins again without it.
    """

    token: RoundToken
    choice: RestoreChoice


@dataclass(frozen=True)
class Heartbeat:
    """At the interval heartbeat_s of Welcome, and at once when the training or the coordinator has stalled."""

    number: int
    token: RoundToken


@dataclass(frozen=True)
class HeartbeatAck:
    """The answer to a Heartbeat, at once. A member that leaves three heartbeats unanswered counts as lost.

    stepped_s: the seconds since this pod's workers reported a step of the heartbeat's round; null if they have not.
    """

    number: int
    stepped_s: Optional[float] = None


@dataclass(frozen=True)
class LeaseRenewal:
    """At once after a HeartbeatAck: confirms that the coordinator still led after the member had sent that answer.

    No other message extends the member's lease, because a relay may have delayed it.
    """

    number: int


@dataclass(frozen=True)
class Close:
    """The rendezvous is closed: to every member at once, and to members that join later."""

    reason: CloseReason
    message: str


@dataclass(frozen=True)
class CloseAck:
    """The member has received and stored the close."""


@dataclass(frozen=True)
class ShutdownComplete:
    """Every member has acknowledged the close, so no member will ask for it later."""


TO_COORDINATOR = (
    Join,
    VoteGranted,
    VoteDenied,
    ConfigChangeAck,
    Port,
    Ack,
    Started,
    CopiesKept,
    CopyFetched,
    CopyStride,
    Progress,
    Hung,
    CollectiveTimes,
    WorkerFailed,
    WorkerRaised,
    Finished,
    Replicas,
    ForkFallback,
    Learned,
    Drained,
    Leaving,
    Disconnecting,
    Gone,
    HeartbeatAck,
    CloseAck,
)
TO_MEMBER = (
    Welcome,
    Redirect,
    RequestVote,
    ConfigChange,
    LeaderSnapshot,
    Assign,
    PlanCopies,
    FetchCopy,
    Standby,
    Evicted,
    Drain,
    WriteStacks,
    BreakWorker,
    Restore,
    Preload,
    Heartbeat,
    LeaseRenewal,
    Close,
    ShutdownComplete,
    NodeVerdict,
)
