"""A member watches its coordinator (is it certainly the leader?) and its launcher (does it respond?). Pure.

The coordinator: a relay between the two pods cannot change messages, but can delay them: a message that arrives does
not prove that its sender still runs. So the member answers each Heartbeat, and the coordinator confirms the answer by
its number: at the moment of the answer it was the leader. Session messages can only be decrypted in order, so a relay
that delivers a confirmation has delivered all messages that the coordinator sent before.

The launcher: one that is stopped, or that sleeps uninterruptibly in the kernel, keeps its connection, and its sidecar
still responds to the coordinator: without this check, the next round would wait for the launcher forever. The sidecar
pings it three times within the timeout. Any message of the launcher is an answer. If the sidecar itself was not
scheduled, the launcher has the whole timeout again.
"""

from understudy_protocol.launcher import Ping

#: Heartbeats come every few seconds. The limit bounds the memory if a coordinator never confirms an answer.
MAX_UNCONFIRMED = 8


class LeaderLease:
    """All times in seconds of the member's monotonic clock."""

    def __init__(self, now: float) -> None:
        self.renewed_at = now
        self._sent_at: dict[int, float] = {}  # by heartbeat: when its answer was sent, until it is confirmed

    def begin(self, now: float) -> None:
        """The handshake has just shown that the coordinator responds. Its heartbeats have numbers of their own."""
        self.renewed_at = now
        self._sent_at = {}

    def on_answer(self, heartbeat: int, now: float) -> None:
        self._sent_at.setdefault(heartbeat, now)
        if len(self._sent_at) > MAX_UNCONFIRMED:
            del self._sent_at[min(self._sent_at)]

    def on_confirmation(self, heartbeat: int) -> None:
        """Ignores a number that no answer had."""
        self.renewed_at = max(self.renewed_at, self._sent_at.get(heartbeat, self.renewed_at))
        self._sent_at = {number: at for number, at in self._sent_at.items() if number > heartbeat}


PINGS = 3
#: If the sidecar checks this much later than planned, it was paused itself.
LATE_S = 1.0


class LauncherWatch:
    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._heard_at: float | None = None  # None: no launcher is connected
        self._ping_at = 0.0
        self._number = 0

    def on_message(self, now: float) -> None:
        """The launcher has connected, or sent a message."""
        if self._heard_at is None:
            self._ping_at = now + self.timeout_s / PINGS
        self._heard_at = now

    def on_disconnected(self) -> None:
        """The launcher's connection has ended."""
        self._heard_at = None

    def deadline(self) -> float | None:
        return None if self._heard_at is None else self._ping_at

    def responds(self, now: float) -> bool:
        """Whether the launcher has answered within the timeout; True if none is connected."""
        return self._heard_at is None or now < self._heard_at + self.timeout_s

    def due_ping(self, now: float) -> Ping | None:
        """A ping that must be sent by now."""
        if self._heard_at is None or now < self._ping_at:
            return None
        if now >= self._ping_at + LATE_S:
            self._heard_at = now
        self._ping_at = now + self.timeout_s / PINGS
        self._number += 1
        return Ping(self._number)
