"""Which weights one replica holds: a state machine that the trainer keeps for each replica, and a gateway for its own.

    state      event             next                      what it does
    ---------  ----------------  ------------------------  ----------------------------------------------------------
    any        Begin             UPDATING                  remembers what was there; after an update with no end: none
    UPDATING   Commit            FRESH                     the version is the update's
    UPDATING   Abandon, whole    FRESH, UNCERTAIN          what was there before
    UPDATING   Abandon, touched  UNCERTAIN                 with the reason
    any        Lost              UNCERTAIN                 its engine is gone, and with it what it held

Rules: generation is admitted only when FRESH. UNCERTAIN ends only with the Commit of an update, never by itself.
Commit and Abandon name their update: of another than the one that runs they are refused, but a repetition of the one
that ended last is done already, and so is the Abandon of one whose Begin never came; if that comes late, it is refused.
A Begin whose fence (epoch, term, round of the job) is older than the newest is refused: it comes from a trainer that
has been replaced. No I/O and no clock here.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Union

Fence = tuple[int, int, int]
NO_FENCE: Fence = (0, 0, 0)


class State(Enum):
    FRESH = "Fresh"
    UPDATING = "Updating"
    UNCERTAIN = "Uncertain"


class Refused(Exception):
    """An event of an update that is not, or no longer, this replica's."""


@dataclass(frozen=True)
class Begin:
    update: str  # its id
    version: str  # of the weights that it brings
    fence: Fence = NO_FENCE


@dataclass(frozen=True)
class Commit:
    update: str


@dataclass(frozen=True)
class Abandon:
    update: str
    touched: bool
    reason: str


@dataclass(frozen=True)
class Lost:
    reason: str


Event = Union[Begin, Commit, Abandon, Lost]
NEVER_UPDATED = "no update has reached this server yet"


class Weights:
    """state, and with it: version (of the weights while FRESH, of those on their way while UPDATING) and reason."""

    def __init__(self) -> None:
        self.state = State.UNCERTAIN
        self.version = ""
        self.reason = NEVER_UPDATED
        self.update = ""  # the id of the one that runs
        self._before = (State.UNCERTAIN, "", NEVER_UPDATED)
        self._ended = ("", False)  # the update that ended last, and whether it was committed
        self._fence = NO_FENCE

    @classmethod
    def fresh(cls, version: str) -> "Weights":
        """Of a server that was started with these weights."""
        weights = cls()
        weights.state, weights.version, weights.reason = State.FRESH, version, ""
        return weights

    def handle(self, event: Event) -> None:
        """Raises Refused."""
        if isinstance(event, Begin):
            self._begin(event)
        elif isinstance(event, Lost):
            self._become(State.UNCERTAIN, "", event.reason)
            self.update = ""
        else:
            self._end(event)

    def _begin(self, event: Begin) -> None:
        if event.fence < self._fence:
            raise Refused(
                f"update {event.update} is of round {_dotted(event.fence)}, and there was one of round "
                f"{_dotted(self._fence)}: a newer trainer has taken over, end this one"
            )
        if event.update == self._ended[0]:
            raise Refused(f"update {event.update} has ended here already: begin another one")
        if self.state is State.UPDATING and event.update == self.update:
            return
        if self.state is State.UPDATING:
            lost = f"update {self.update} to version {self.version} had no end"
            self._before = (State.UNCERTAIN, "", lost)
        else:
            self._before = (self.state, self.version, self.reason)
        self._fence, self.update = event.fence, event.update
        self._become(State.UPDATING, event.version, f"weights of version {event.version} are on their way")

    def _end(self, event: Union[Commit, Abandon]) -> None:
        commits = isinstance(event, Commit)
        if event.update != self.update:
            if (event.update, commits) == self._ended:
                return
            if isinstance(event, Abandon) and not event.touched and not self.update:
                self._ended = (event.update, commits)
                return
            now = f"update {self.update} runs" if self.update else f"it is {self.state.value}"
            raise Refused(f"update {event.update} does not run here ({now}): begin it first")
        if isinstance(event, Commit):
            self._become(State.FRESH, self.version, "")
        elif event.touched:
            self._become(State.UNCERTAIN, "", event.reason)
        else:
            self._become(*self._before)
        self.update, self._ended = "", (event.update, commits)

    def _become(self, state: State, version: str, reason: str) -> None:
        self.state, self.version, self.reason = state, version, reason


def _dotted(fence: Fence) -> str:
    return ".".join(map(str, fence))
