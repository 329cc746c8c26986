"""The weights of one replica: a state machine that the trainer keeps for each replica, and a gateway for its own.

    state      event             next                      what it does
    ---------  ----------------  ------------------------  ----------------------------------------------------------
    any        Begin             UPDATING                  stores the previous weights, or none if an update never ended
    UPDATING   JoinGroup         UPDATING                  stores the group, until a Commit or a WeightsLost
    UPDATING   Commit            FRESH                     the version is the update's
    UPDATING   Abandon, whole    FRESH, UNCERTAIN          the previous state
    UPDATING   Abandon, touched  UNCERTAIN                 with the reason
    any        WeightsLost       UNCERTAIN                 its engine has ended, and its weights with it
    any        a late event      UNCERTAIN                 the event is rejected

Rules: requests are admitted only when FRESH. UNCERTAIN ends only with the Commit of an update. Events name their
update. An event of an update that does not run is rejected, with two exceptions: a repeated event of the update that
ended last is already done (unless its weights are lost), and so is the Abandon of an update whose Begin never came; if
that Begin comes late, it is rejected. A Begin whose fence (epoch, term, round of the job) is older than the newest is
rejected: its trainer has been replaced.

A late event is an UpdateCall, a JoinGroup, a Commit or an Abandon (touched) of an update that neither runs nor ended
last: a newer update has replaced it, and its trainer may have written to the server since. An update that runs at that
time can no longer be committed, but it can be undone. A restarted gateway reads the whole state with `known` and
restores it with `of`. No I/O and no clock here.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NoReturn, Optional, Union

Fence = tuple[int, int, int]
NO_FENCE: Fence = (0, 0, 0)
VERSION_CHARACTERS = 128


class WeightsState(Enum):
    FRESH = "Fresh"
    UPDATING = "Updating"
    UNCERTAIN = "Uncertain"


@dataclass(frozen=True)
class Group:
    """The process group of one update: rank 0 is the trainer, then come the replicas' ranks in their order."""

    address: str
    port: int
    world_size: int
    name: str  # unique for each update: a late member of an old group finds no peer
    backend: str = "nccl"


class EventRejected(Exception):
    """An event of an update that does not run on this replica, or no longer."""


@dataclass(frozen=True)
class Begin:
    update: str  # its id
    version: str  # of the weights that it brings
    fence: Fence = NO_FENCE


@dataclass(frozen=True)
class UpdateCall:
    """A call of this update to the server, or a query whether it still runs."""

    update: str
    fence: Fence = NO_FENCE


@dataclass(frozen=True)
class JoinGroup:
    """The server is about to join this group."""

    update: str
    group: Group


@dataclass(frozen=True)
class Commit:
    update: str


@dataclass(frozen=True)
class Abandon:
    update: str
    touched: bool
    reason: str


@dataclass(frozen=True)
class WeightsLost:
    reason: str


Event = Union[Begin, UpdateCall, JoinGroup, Commit, Abandon, WeightsLost]
NEVER_UPDATED = "no update has reached this server yet"


@dataclass(frozen=True)
class WeightsStatus:
    """The state of the weights, and why they are not Fresh."""

    state: WeightsState = WeightsState.UNCERTAIN
    version: str = ""
    reason: str = NEVER_UPDATED


@dataclass(frozen=True)
class Known:
    """The whole state of a Weights."""

    now: WeightsStatus = WeightsStatus()
    before: WeightsStatus = WeightsStatus()  # restored by an update that touches nothing
    update: str = ""  # the running one
    ended: str = ""  # the one that ended last
    committed: bool = False  # whether `ended` was committed
    fence: Fence = NO_FENCE
    group: Optional[Group] = None  # the group that the server had to join, and that no complete update has left since


@dataclass(frozen=True)
class PreviousState:
    """The state before an update: the previous weights, and the group that was not left."""

    weights: WeightsStatus
    group: Optional[Group] = None


class Weights:
    """state, version (of the weights if FRESH, of the coming ones if UPDATING) and reason."""

    def __init__(self) -> None:
        self.state = WeightsState.UNCERTAIN
        self.version = ""
        self.reason = NEVER_UPDATED
        self.update = ""  # the id of the running one
        self._before = WeightsStatus()
        self._ended = ("", False)  # the update that ended last, and whether it was committed
        self._fence = NO_FENCE
        self._group: Optional[Group] = None

    @classmethod
    def fresh(cls, version: str) -> "Weights":
        """For a server that was started with these weights."""
        weights = cls()
        weights.state, weights.version, weights.reason = WeightsState.FRESH, version, ""
        return weights

    @classmethod
    def of(cls, known: Known) -> "Weights":
        weights = cls()
        weights._become(known.now)
        weights.update, weights._before = known.update, known.before
        weights._ended, weights._fence = (known.ended, known.committed), known.fence
        weights._group = known.group
        return weights

    def known(self) -> Known:
        return Known(self._status(), self._before, self.update, *self._ended, self._fence, self._group)

    def previous(self) -> PreviousState:
        """For the update that has just begun."""
        return PreviousState(self._before, self._group)

    def found(self, status: WeightsStatus) -> None:
        """Take over a gateway's state, which is newer. In an update it is the state before that update."""
        if self.state is WeightsState.UPDATING:
            self._before = status
        elif status.state is WeightsState.UPDATING:
            self._become(WeightsStatus(WeightsState.UNCERTAIN, "", f"another update was running: {status.reason}"))
        else:
            self._become(status)

    def handle(self, event: Event) -> None:
        """Raises EventRejected."""
        if isinstance(event, Begin):
            self._begin(event)
        elif isinstance(event, WeightsLost):
            self._become(WeightsStatus(WeightsState.UNCERTAIN, "", event.reason))
            self.update, self._group = "", None
        elif isinstance(event, UpdateCall):
            self._check_runs(event.update, f" of round {_dotted(event.fence)}")
        elif isinstance(event, JoinGroup):
            self._check_runs(event.update)
            self._group = event.group
        else:
            self._end(event)

    def _begin(self, event: Begin) -> None:
        if event.fence < self._fence:
            raise EventRejected(
                f"update {event.update} is of round {_dotted(event.fence)}, and a trainer of the newer round "
                f"{_dotted(self._fence)} has replaced this one: stop this trainer"
            )
        if event.update == self._ended[0]:
            raise EventRejected(f"update {event.update} has already ended here: begin another one")
        if event.update == self.update:
            return
        if self.update:
            lost = f"update {self.update} to version {self.version} did not finish"
            if self.state is WeightsState.UNCERTAIN:
                lost = self.reason
            self._before = WeightsStatus(WeightsState.UNCERTAIN, "", lost)
        else:
            self._before = self._status()
        self._fence, self.update = event.fence, event.update
        reason = f"the weights are being updated to version {event.version}"
        self._become(WeightsStatus(WeightsState.UPDATING, event.version, reason))

    def _end(self, event: Union[Commit, Abandon]) -> None:
        commits = isinstance(event, Commit)
        if event.update != self.update:
            if (event.update, commits) == self._ended and (self.state is WeightsState.FRESH or not commits):
                return
            if isinstance(event, Abandon) and not event.touched and not self.update:
                self._ended = (event.update, commits)
                return
            if event.update == self._ended[0] or (isinstance(event, Abandon) and not event.touched):
                raise EventRejected(self._does_not_run(event.update))
            self._refuse_late(event.update)
        self.update, self._ended = "", (event.update, commits and self.state is WeightsState.UPDATING)
        if commits and self.state is not WeightsState.UPDATING:
            raise EventRejected(f"update {event.update} cannot be committed: {self.reason}")
        if commits:
            self._become(WeightsStatus(WeightsState.FRESH, self.version, ""))
            self._group = None
        elif isinstance(event, Abandon) and event.touched:
            self._become(WeightsStatus(WeightsState.UNCERTAIN, "", event.reason))
        elif self.state is WeightsState.UPDATING:
            self._become(self._before)

    def _check_runs(self, update: str, of_round: str = "") -> None:
        if update == self.update:
            return
        if update == self._ended[0]:
            raise EventRejected(f"update {update}{of_round} has already ended here: begin another one")
        self._refuse_late(update, of_round)

    def _refuse_late(self, update: str, of_round: str = "") -> NoReturn:
        refusal = self._does_not_run(update, of_round)
        if self.state is not WeightsState.UNCERTAIN:
            reason = "continued after a newer update had replaced it, and may have written to the server"
            self._become(WeightsStatus(WeightsState.UNCERTAIN, "", f"update {update}{of_round} {reason}"))
        raise EventRejected(refusal)

    def _does_not_run(self, update: str, of_round: str = "") -> str:
        now = f"update {self.update} runs" if self.update else f"it is {self.state.value}"
        return f"update {update}{of_round} does not run here ({now}): begin it first"

    def _status(self) -> WeightsStatus:
        return WeightsStatus(self.state, self.version, self.reason)

    def _become(self, status: WeightsStatus) -> None:
        self.state, self.version, self.reason = status.state, status.version, status.reason


def version_of(given: object) -> str:
    """The version as text for an HTTP header, which gateways add to each answer. Raises ValueError."""
    expected = "a unique name of these weights: an int, or text such as 'step-700'"
    if isinstance(given, bool) or not isinstance(given, (int, str)):
        raise ValueError(f"version: expected {expected}; got {type(given).__name__} {given!r:.80}")
    version = str(given)
    if not 0 < len(version) <= VERSION_CHARACTERS:
        raise ValueError(f"version: expected {expected}, of 1 to {VERSION_CHARACTERS} characters; got {len(version)}")
    if not (version.isascii() and version.isprintable() and version == version.strip()):
        rule = "printable ASCII without a space at either end, because an HTTP header carries it"
        raise ValueError(f"version: expected {rule}; got {version!r}")
    return version


def _dotted(fence: Fence) -> str:
    return ".".join(map(str, fence))
