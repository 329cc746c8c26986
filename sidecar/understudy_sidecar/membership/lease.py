"""The last time at which the coordinator was certainly the leader, as one member can know it.

A relay between the two pods cannot change messages, but can delay them: a message that arrives does not prove that its
sender still runs. So the member answers each Heartbeat, and the coordinator confirms the answer by its number: at the
moment of the answer it was the leader. Session messages can only be decrypted in order, so a relay that delivers a
confirmation has delivered all messages that the coordinator sent before.
"""

#: Heartbeats come every few seconds. The limit bounds the memory if a coordinator never confirms an answer.
MAX_UNCONFIRMED = 8


class Lease:
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
