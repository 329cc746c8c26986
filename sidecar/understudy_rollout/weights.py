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
that ended last is done already (unless what it brought is Lost), and so is the Abandon of one whose Begin never came;
if that comes late, it is refused. A Begin whose fence (epoch, term, round of the job) is older than the newest is
refused: it comes from a trainer that has been replaced. All that is known can be taken out (`known`) and put back
(`of`), by a gateway that is restarted. No I/O and no clock here.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Union

Fence = tuple[int, int, int]
NO_FENCE: Fence = (0, 0, 0)
VERSION_CHARACTERS = 128


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


@dataclass(frozen=True)
class Held:
    """Which weights, and why they are not Fresh."""

    state: State = State.UNCERTAIN
    version: str = ""
    reason: str = NEVER_UPDATED


@dataclass(frozen=True)
class Known:
    """All that a Weights knows."""

    now: Held = Held()
    before: Held = Held()  # what an update that touches nothing leaves
    update: str = ""  # the one that runs
    ended: str = ""  # the one that ended last
    committed: bool = False  # whether that was
    fence: Fence = NO_FENCE


class Weights:
    """state, and with it: version (of the weights while FRESH, of those on their way while UPDATING) and reason."""

    def __init__(self) -> None:
        self.state = State.UNCERTAIN
        self.version = ""
        self.reason = NEVER_UPDATED
        self.update = ""  # the id of the one that runs
        self._before = Held()
        self._ended = ("", False)  # the update that ended last, and whether it was committed
        self._fence = NO_FENCE

    @classmethod
    def fresh(cls, version: str) -> "Weights":
        """Of a server that was started with these weights."""
        weights = cls()
        weights.state, weights.version, weights.reason = State.FRESH, version, ""
        return weights

    @classmethod
    def of(cls, known: Known) -> "Weights":
        weights = cls()
        weights._become(known.now)
        weights.update, weights._before = known.update, known.before
        weights._ended, weights._fence = (known.ended, known.committed), known.fence
        return weights

    def known(self) -> Known:
        return Known(self._held(), self._before, self.update, *self._ended, self._fence)

    def handle(self, event: Event) -> None:
        """Raises Refused."""
        if isinstance(event, Begin):
            self._begin(event)
        elif isinstance(event, Lost):
            self._become(Held(State.UNCERTAIN, "", event.reason))
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
            self._before = Held(State.UNCERTAIN, "", lost)
        else:
            self._before = self._held()
        self._fence, self.update = event.fence, event.update
        reason = f"weights of version {event.version} are on their way"
        self._become(Held(State.UPDATING, event.version, reason))

    def _end(self, event: Union[Commit, Abandon]) -> None:
        commits = isinstance(event, Commit)
        if event.update != self.update:
            if (event.update, commits) == self._ended and (self.state is State.FRESH or not commits):
                return
            if isinstance(event, Abandon) and not event.touched and not self.update:
                self._ended = (event.update, commits)
                return
            now = f"update {self.update} runs" if self.update else f"it is {self.state.value}"
            raise Refused(f"update {event.update} does not run here ({now}): begin it first")
        if isinstance(event, Commit):
            self._become(Held(State.FRESH, self.version, ""))
        elif event.touched:
            self._become(Held(State.UNCERTAIN, "", event.reason))
        else:
            self._become(self._before)
        self.update, self._ended = "", (event.update, commits)

    def _held(self) -> Held:
        return Held(self.state, self.version, self.reason)

    def _become(self, held: Held) -> None:
        self.state, self.version, self.reason = held.state, held.version, held.reason


def version_of(given: object) -> str:
    """The version as text that an HTTP header can carry: gateways write it into each answer. Raises ValueError."""
    expected = "a name of these weights that no others have: an int, or text such as 'step-700'"
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
