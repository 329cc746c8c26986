"""The phase of a coordinator and the running or newest round: facts and their transitions. Decides nothing.

coordinator.py has the table of the phases. A transition of RoundState changes the phase and all that depends on it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from understudy_protocol.enums import NO_ROUND, RoundToken

#: If not all workers have started after this time, status names their pods.
START_S = 5.0
#: In a job of more than FEW members, the coordinator checks for a round again after about the time that a check takes.
FEW = 100
CHECK_S_PER_MEMBER = 2e-6


class RoundPhase(Enum):
    REBUILDING = "rebuilding"
    WAITING = "waiting"
    RUNNING = "running"
    CLOSED = "closed"


@dataclass
class RoundState:
    token: RoundToken  # perhaps of an older term; its number may be below `newest_known`
    size: int  # members of the running or newest round
    phase: RoundPhase = RoundPhase.WAITING
    is_first: bool = True  # no round was ever formed
    newest_known: int = field(init=False)  # the newest round number that was known when the coordinator's term began
    vacant_since: float | None = None
    newcomers: frozenset[str] = frozenset()  # until a round: uids of members that had no coordinator before this one
    gathers_until: float = 0.0  # no round is formed earlier: related losses and failures are still being reported
    start_due: float | None = None  # when status names the pods whose workers do not run yet; None: done
    formed_at: float = 0.0  # when the newest round was formed; for a previous coordinator's round: when this term began
    first_started_at: float | None = None  # when a member reported first that its workers were spawned
    started_at: float | None = None  # when all workers of the running round were spawned
    stepped: RoundToken = NO_ROUND  # the newest round in which any worker has reported a step
    stepping_since: float | None = None  # the first step of the running round, if it was made in this term

    def __post_init__(self) -> None:
        self.newest_known = self.token.round

    @property
    def number(self) -> int:
        """Never decreases, although members may continue a round with a lower number than a round that broke."""
        return max(self.token.round, self.newest_known)

    # Transitions ------------------------------------------------------------------------------------------------------

    def rebuild(self) -> None:
        """A member reports a round that was not known."""
        self.phase, self.is_first = RoundPhase.REBUILDING, False

    def take_over(self, token: RoundToken, size: int) -> None:
        """Restore the round that the members come from, before it is adopted or interrupted."""
        self.token, self.size = token, size

    def adopt(self, formed_at: float) -> None:
        """All ranks of the previous round are claimed, and train."""
        self.phase, self.is_first, self.formed_at = RoundPhase.RUNNING, False, formed_at

    def interrupt(self, newcomers: Iterable[str], now: float) -> None:
        """The previous round is incomplete, or broken."""
        self.phase, self.is_first, self.vacant_since = RoundPhase.WAITING, False, now
        self.newcomers = frozenset(newcomers)

    def form(self, token: RoundToken, size: int, now: float) -> None:
        self.token, self.size, self.phase, self.is_first = token, size, RoundPhase.RUNNING, False
        self.vacant_since = self.first_started_at = self.started_at = self.stepping_since = None
        self.newcomers = frozenset()
        self.formed_at, self.start_due = now, now + START_S

    def end(self, now: float) -> None:
        """A fault, or the loss of an active: the round is over if it was running."""
        if self.phase is RoundPhase.RUNNING:
            self.phase = RoundPhase.WAITING
            self.vacant_since, self.started_at, self.stepping_since = now, None, None

    def close(self) -> None:
        self.phase = RoundPhase.CLOSED

    def gather(self, until: float) -> None:
        """Form no round before this time: related losses and failures are reported until then."""
        self.gathers_until = until

    # The running round ------------------------------------------------------------------------------------------------

    def on_start_due(self) -> None:
        self.start_due = None

    def on_member_started(self, now: float) -> None:
        """The workers of a member were spawned."""
        self.first_started_at = self.first_started_at or now

    def on_started(self, now: float) -> None:
        """All workers were spawned."""
        self.started_at = now

    def on_long_run(self) -> None:
        self.started_at = None

    def on_step(self, now: float) -> bool:
        """Whether this is the first step of the round."""
        is_first, self.stepped, self.started_at = self.stepped != self.token, self.token, None
        self.stepping_since = now if is_first else self.stepping_since
        return is_first

    def restore_step(self, token: RoundToken) -> None:
        """A member or a previous coordinator knows that workers of this round have made a step."""
        self.stepped = token


@dataclass
class RoundCheck:
    """When to check whether a round can be formed; with 10,000 members not at each of their messages."""

    is_requested: bool = True  # a change since the last check may allow a round
    _not_before: float = 0.0
    _checked_at: float = 0.0

    def request(self) -> None:
        self.is_requested = True

    def is_allowed(self, now: float) -> bool:
        return now >= self._not_before

    def has_passed(self, times: Iterable[float], now: float) -> bool:
        """Whether one of these times has come since the last check."""
        return any(self._checked_at < at <= now for at in times)

    def on_check(self, members: int, now: float) -> None:
        self.is_requested, self._checked_at = False, now
        self._not_before = now + CHECK_S_PER_MEMBER * members if members > FEW else now

    def deadline(self) -> float | None:
        return self._not_before if self.is_requested else None
