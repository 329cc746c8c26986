"""Messages between a member and the sidecar that it has called, over one WebSocket (after the handshake).

The one that was called is in office (a coordinator), or may come into it (an heir, in whose hall callers wait for an
election), or knows who is. A caller's first message is its Join; who it has called answers with Welcome, Candidacy or
Elsewhere. TO_COORDINATOR and TO_MEMBER say who sends what. Times are Unix seconds; ranks are global unless told local.
Fields with a default are newer than version 1 of the protocol, whose senders leave them out.
"""

from dataclasses import dataclass
from typing import Optional

from understudy_protocol.recovery import History
from understudy_protocol.rollouts import UpdateFailure
from understudy_protocol.words import (
    NO_ELECTORATE,
    NO_OFFICE,
    NO_ROUND,
    CloseReason,
    ElectorateVersion,
    FaultClass,
    Office,
    RoundToken,
    Verdict,
    WorkersState,
)


@dataclass(frozen=True)
class Join:
    """The first message of a caller: who the member is, and what it last knew, from which a coordinator that is new in
    office rebuilds its state.
    """

    pod_uid: str
    pod_name: str
    node: str
    ip: str
    index: Optional[int]  # completion index of an active-candidate; None for a spare
    token: RoundToken  # the newest round that it was assigned to, or heard of
    group_rank: Optional[int]  # its place in that round, None while it waits
    workers: WorkersState
    master_port: int  # a free port of this pod, for the store of a round in which it holds rank 0
    office: Office = NO_OFFICE  # the newest that it has heard of, or granted
    electorate: ElectorateVersion = NO_ELECTORATE  # the newest that it has acknowledged
    votes: bool = False  # it keeps what it grants: version 1 could not
    domain: str = ""  # topology domain of its node, as a coordinator has told it; "" while unknown
    group_world_size: int = 0  # members of that round; 0 while unknown
    failure: Optional["WorkerFailed"] = None  # of that round
    leaving: Optional["Leaving"] = None  # its pod was asked to end
    store_port: Optional[int] = None  # see Port; None: it knows of no store but rank 0's own
    history: Optional[History] = None  # from an heir: as the newest coordinator that it knows has told it
    verdict: Optional["NodeVerdict"] = None  # the newest that it was told; None: none
    warm: bool = False  # it waited as a pool's spare before it was of this job
    stepped: RoundToken = NO_ROUND  # the newest round whose workers have reported a step on this pod
    disconnected_s: Optional[float] = None  # seconds since it lost its last coordinator; None: it never had one
    disconnected_silently: bool = False  # then no kernel has closed the connection: the machine does not respond


@dataclass(frozen=True)
class Welcome:
    """A coordinator in office answers a Join: the member is known, and it waits, or its round goes on."""

    token: RoundToken  # of the running or newest round, perhaps an older office's
    office: Office = NO_OFFICE
    heartbeat_s: float = 5.0  # how often the coordinator will be heard
    domain: str = ""  # topology domain of the member's node
    pod_uid: str = ""  # the coordinator's own
    ip: str = ""
    verdict: Optional["NodeVerdict"] = None  # None: it does not know; what the member was told before stays
    renews: bool = False  # it sends LeaseRenewals; False, of an older build: each of its messages extends the lease


@dataclass(frozen=True)
class Elsewhere:
    """From who is not in office, or hands it over: call that pod; "" if it knows of none."""

    pod_uid: str
    ip: str


@dataclass(frozen=True)
class Candidacy:
    """From an heir in whose hall a majority of the electorate waits: it asks for this office."""

    office: Office
    electorate: ElectorateVersion
    pod_uid: str  # the heir's own


@dataclass(frozen=True)
class Grant:
    """The member has stored that it gives this office to who asked, and will give it to nobody else."""

    office: Office


@dataclass(frozen=True)
class Refusal:
    """The member gives the office not, and says what it knows that is newer."""

    office: Office
    electorate: ElectorateVersion


@dataclass(frozen=True)
class Heir:
    """One of those who may come into office: its pod, and where to call it."""

    pod_uid: str
    ip: str


@dataclass(frozen=True)
class Succession:
    """When the voters have changed: whom to call when this coordinator is no more, in this order; and which electorate
    counts once it is acknowledged.
    """

    electorate: ElectorateVersion
    heirs: tuple[Heir, ...]


@dataclass(frozen=True)
class SuccessionAck:
    """The member has stored the electorate's version, and grants nothing to who has an older one."""

    electorate: ElectorateVersion


@dataclass(frozen=True)
class Seat:
    """Which pod holds a group rank, and on which node."""

    group_rank: int
    pod_uid: str
    pod_name: str
    node: str


@dataclass(frozen=True)
class Estate:
    """To heirs: what an office can be taken with. What is not in here members bring back in their Joins."""

    electorate: ElectorateVersion
    voters: tuple[str, ...]  # pod uids
    former_voters: tuple[str, ...]  # of the electorate before; empty once a majority of them has acknowledged
    holder: str  # pod uid of the coordinator
    charges: tuple[float, ...]  # when restarts were charged to the budget, for those who know no history
    recoveries_by_strategy: dict[str, int]
    history: Optional[History] = None
    token: RoundToken = NO_ROUND  # the round of the seats
    seats: tuple[Seat, ...] = ()
    stepped: RoundToken = NO_ROUND  # the newest round that has made a step
    silent: tuple[str, ...] = ()  # uids of the members whose connections to the coordinator went silent


@dataclass(frozen=True)
class Port:
    """The port for the next round's store has changed (the old one went to the workers of this round).

    store_port: of a store that listens already, for one later round; 0: there is none.
    """

    master_port: int
    store_port: int = 0


@dataclass(frozen=True)
class Assign:
    """A round is formed, and the member has a place in it: it kills what runs, acknowledges, and starts its workers."""

    token: RoundToken
    group_rank: int
    group_world_size: int
    rank_offset: int  # global rank of local rank 0
    world_size: int
    master_addr: str
    master_port: int
    reason: str
    agent_store: bool = False  # a store listens there already: no worker serves it


@dataclass(frozen=True)
class Standby:
    """The member holds no rank: it waits as a spare, and ends the workers that it may still have."""

    token: RoundToken


@dataclass(frozen=True)
class GivenUp:
    """The member is none any more, for what its workers have done: its launcher exits, so that its pod is replaced.

    Also in answer to a Join.
    """

    office: Office
    reason: str


@dataclass(frozen=True)
class Ack:
    """At once after an Assign: it has arrived. Who does not send it in time counts as lost."""

    token: RoundToken


@dataclass(frozen=True)
class Started:
    """All workers of the member are spawned."""

    token: RoundToken


@dataclass(frozen=True)
class WorkerFailed:
    """A worker exited with another code than 0, or a signal ended it."""

    token: RoundToken
    local_rank: int
    exit_code: Optional[int]  # None if a signal ended it
    signal: Optional[str]  # e.g. SIGKILL
    message: str
    at: float


@dataclass(frozen=True)
class Finished:
    """All workers of the member exited 0."""

    token: RoundToken


@dataclass(frozen=True)
class Progress:
    """A completed step. Sent for the first step of a round, then at most twice a second.

    pause_s: as in the launcher's Stepped.
    """

    token: RoundToken
    step: int
    total: Optional[int]
    median_step_s: float  # over the newest steps of this round; 0 while unknown
    at: float
    pause_s: Optional[float] = None


@dataclass(frozen=True)
class Hung:
    """The member's workers make no steps any more: the slowest of them. Told repeatedly while it lasts.

    Also the answer to WriteStacks, once, where no worker of the member has made a step in this round.
    """

    token: RoundToken
    local_rank: int
    step: int  # its newest; -1: none in this round
    at: float  # when it made that; 0.0: it made none
    silent_s: float  # how long ago that was, or the start of the workers


@dataclass(frozen=True)
class Replicas:
    """What one worker knows of the rollout servers that it updates: whole, in place of what it told before.

    The worker tells its sidecar in the same words, at the beginning and at the end of each update.
    """

    token: RoundToken
    rank: int  # the worker's
    fresh: int
    updating: int
    uncertain: int
    version: str  # of its newest whole update; "" before
    failure: Optional[UpdateFailure] = None  # of the update that has ended just now


@dataclass(frozen=True)
class StartsFresh:
    """Workers of this pod start as new processes, although they were to be forked: what keeps them from it.

    Sent when that changes, and after each Welcome where something does.
    """

    reason: str  # "": they are forked again


@dataclass(frozen=True)
class Leaving:
    """The pod was asked to end: its workers may still save, for at most grace_s. Faulty: they are dead already."""

    reason: str
    grace_s: float
    verdict: Verdict = Verdict.UNKNOWN


@dataclass(frozen=True)
class NodeVerdict:
    """What is held about the member's node, in place of what was told before."""

    verdict: Verdict
    reason: str = ""
    until: Optional[float] = None  # when it expires; None: not by itself
    fault_class: Optional[FaultClass] = None  # None: nothing is held, or a sender that knows of none
    grace_s: Optional[float] = None  # how long the node stays; None: as long as its pods may take
    at: float = 0.0  # when the operator has said so: the newest counts; 0: not known


@dataclass(frozen=True)
class Drain:
    """A member leaves, and a save may need every rank: SIGTERM to the workers, and at most so long for them."""

    token: RoundToken
    grace_s: float


@dataclass(frozen=True)
class WriteStacks:
    """No worker of the round has made a step in time: the member's launcher logs stacks, and it answers with Hung."""

    token: RoundToken


@dataclass(frozen=True)
class Drained:
    """All workers of the member have ended after a Drain."""

    token: RoundToken


@dataclass(frozen=True)
class Apart:
    """The member hangs up to look for another coordinator; its workers go on."""

    reason: str


@dataclass(frozen=True)
class Gone:
    """This pod can take part in no round any more."""

    reason: str
    local_rank: Optional[int] = None  # of the worker that cannot be killed, if that is the reason
    launcher_lives: bool = False  # its launcher has not ended: the pod goes on until the operator deletes it


@dataclass(frozen=True)
class Heartbeat:
    """Regularly (see heartbeat_s of Welcome), and at once where the training, or the coordinator, has stood still."""

    number: int
    token: RoundToken


@dataclass(frozen=True)
class HeartbeatAck:
    """At once after a Heartbeat: the sidecar responds. A member that leaves several unanswered counts as lost."""

    number: int


@dataclass(frozen=True)
class LeaseRenewal:
    """At once after a HeartbeatAck: the coordinator was in office after the member had sent that answer.

    No other message extends the member's lease: a relay may have delayed it.
    """

    number: int


@dataclass(frozen=True)
class Close:
    """The rendezvous has ended for good: to every member at once, and to who joins later."""

    reason: CloseReason
    message: str


@dataclass(frozen=True)
class CloseAck:
    """The close has arrived, and is recorded."""


@dataclass(frozen=True)
class Adjourned:
    """Every member has acknowledged the close: nobody will ask for it any more."""


TO_COORDINATOR = (
    Join,
    Grant,
    Refusal,
    SuccessionAck,
    Port,
    Ack,
    Started,
    Progress,
    Hung,
    WorkerFailed,
    Finished,
    Replicas,
    StartsFresh,
    Drained,
    Leaving,
    Apart,
    Gone,
    HeartbeatAck,
    CloseAck,
)
TO_MEMBER = (
    Welcome,
    Elsewhere,
    Candidacy,
    Succession,
    Estate,
    Assign,
    Standby,
    GivenUp,
    Drain,
    WriteStacks,
    Heartbeat,
    LeaseRenewal,
    Close,
    Adjourned,
    NodeVerdict,
)
