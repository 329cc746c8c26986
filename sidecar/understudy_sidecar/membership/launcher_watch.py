"""Whether the pod's launcher responds: a member counts only while it does. Pure.

A launcher that is stopped, or that sleeps uninterruptibly in the kernel, keeps its connection, and its sidecar still
responds to the coordinator: without this check, the next round would wait for the launcher forever.

Rules: the sidecar pings the launcher three times within the timeout. Any message of the launcher is an answer. If the
sidecar itself was not scheduled, the launcher has the whole timeout again.
"""

from understudy_protocol.launcher import Ping

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
