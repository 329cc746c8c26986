"""How long ago the coordinator certainly was in office, as one member can know it.

A relay between the two pods cannot change messages, but can delay them: that one arrives does not show that its sender
still runs. So the member answers each Heartbeat, and the coordinator confirms the answer by its number: at the moment
of the answer it was in office. Session messages open in their order only, so a relay that lets a confirmation
through has let everything through that the coordinator sent before it.
"""

#: Heartbeats come every few seconds. A coordinator that asks without confirming any answer fills no memory.
MAX_UNCONFIRMED = 8


class Lease:
    """All times in seconds of the member's monotonic clock."""

    def __init__(self, now: float) -> None:
        self.renewed_at = now
        self._sent_at: dict[int, float] = {}  # by heartbeat: when the answer was sent that is not confirmed yet

    def begin(self, now: float) -> None:
        """The handshake has just shown that the coordinator responds. Its heartbeats have numbers of their own."""
        self.renewed_at = now
        self._sent_at = {}

    def on_answer(self, heartbeat: int, now: float) -> None:
        self._sent_at.setdefault(heartbeat, now)
        if len(self._sent_at) > MAX_UNCONFIRMED:
            del self._sent_at[min(self._sent_at)]

    def on_confirmation(self, heartbeat: int) -> None:
        """A number that no answer had changes nothing."""
        self.renewed_at = max(self.renewed_at, self._sent_at.get(heartbeat, self.renewed_at))
        self._sent_at = {number: at for number, at in self._sent_at.items() if number > heartbeat}
