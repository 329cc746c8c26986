"""Which of the operator's replicas is the leader: one replica's half of the election over a Lease.

Rules:
- The Lease belongs to the replica that has written its name into it, for its duration from then on. Clocks are not
  compared: a standby counts the duration from when it first saw that state of the Lease, so clocks may differ.
- A leader renews every retry_period. It counts its time from when it sent the last renewal that was answered, and stops
  leading renew_deadline after that: it starts no more reconciles. A running reconcile may send writes for half of the
  time that the lease has left. The other half is for writes in transit: they arrive before another replica may start.
  A write that arrives later is fenced by its resourceVersion.
- Only an answered write makes a leader. After a write without an answer, or a rejected one, the replica reads first:
  the Lease may be its own by now, or another replica's.
- A leader that shuts down writes an empty holder: the next one starts after its next read.

                  Read: free or own        Read: of another       Written              Failed
    standby       WriteLease               Wait, then ReadLease   leader, then Wait    Wait, then ReadLease
    leader        WriteLease               standby                leader, then Wait    Wait, then ReadLease
    (after renew_deadline: standby, ReadLease)
"""

from dataclasses import dataclass

#: How often a standby reads. It takes over within the lease duration and one read from the leader's last renewal, and
#: within one read after a leader has shut down.
READ_EVERY_S = 0.5
#: The pause after a failed read or write.
RETRY_S = 0.2
NEVER = float("-inf")


@dataclass(frozen=True)
class LeaseTimes:
    """In seconds, with client-go's names and defaults: they tolerate an API server that answers in 2 s."""

    lease_duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0

    @property
    def writes_until(self) -> float:
        """Seconds after the last renewal in which a running reconcile may send writes."""
        return (self.renew_deadline + self.lease_duration) / 2

    @property
    def call(self) -> float:
        """The time limit of one read or renewal. A failed renewal leaves time for a read and another renewal."""
        return 0.3 * self.renew_deadline


@dataclass(frozen=True)
class Lease:
    """The content of the Lease object. version changes with each write."""

    holder: str
    duration_s: float
    version: str
    acquired: str = ""  # RFC 3339, for people
    transitions: int = 0


@dataclass(frozen=True)
class ReadLease:
    """Read the Lease."""


@dataclass(frozen=True)
class WriteLease:
    """Write this into the Lease: as an update of that version, or as a new object."""

    lease: Lease
    replaces: Lease | None


@dataclass(frozen=True)
class Wait:
    seconds: float


class LeaseCandidate:
    """`now` is this process's own monotonic clock."""

    def __init__(self, identity: str, times: LeaseTimes) -> None:
        self._identity, self._times = identity, times
        self._lease: Lease | None = None
        self._first_seen = 0.0
        self._must_read = True  # before anything else
        self._not_before = NEVER
        self._renewed_at = NEVER  # when the last renewal that was answered was sent

    @property
    def leads_until(self) -> float:
        return self._renewed_at + self._times.renew_deadline

    def leads(self, now: float) -> bool:
        """Whether to start reconciles."""
        return now < self.leads_until

    def may_write_for_s(self, now: float) -> float:
        """How long a running reconcile may send writes."""
        return max(0.0, self._renewed_at + self._times.writes_until - now)

    def next(self, now: float) -> ReadLease | WriteLease | Wait:
        if now < self._not_before:
            return Wait(self._not_before - now)
        if self._must_read:
            return ReadLease()
        if self.leads(now):
            renew_at = self._renewed_at + self._times.retry_period
            return Wait(renew_at - now) if now < renew_at else self._write()
        if self._free(now):
            return self._write()
        self._must_read = True
        assert self._lease is not None
        expires_in_s = self._first_seen + self._lease.duration_s - now
        self._not_before = now + min(READ_EVERY_S, expires_in_s)
        return Wait(self._not_before - now)

    def on_lease_read(self, lease: Lease | None, now: float) -> None:
        """lease: None if the Lease does not exist."""
        if lease is None or self._lease is None or lease.version != self._lease.version:
            self._first_seen = now
        self._lease, self._must_read = lease, False
        if lease is not None and lease.holder != self._identity:
            self._renewed_at = NEVER

    def on_lease_written(self, lease: Lease, sent_at: float) -> None:
        """A write that was sent at that time was answered."""
        self._lease, self._first_seen, self._must_read = lease, sent_at, False
        self._renewed_at = sent_at

    def on_failure(self, now: float) -> None:
        """A read or a write was rejected, or has no answer."""
        self._must_read, self._not_before = True, now + RETRY_S

    def release(self, now: float) -> WriteLease | None:
        """The write on shutdown; from here on this replica does not lead."""
        led, self._renewed_at = self.leads(now), NEVER
        if not led or self._lease is None:
            return None
        return WriteLease(Lease("", 1.0, "", "", self._lease.transitions), self._lease)

    def _free(self, now: float) -> bool:
        lease = self._lease
        if lease is None or lease.holder in ("", self._identity):
            return True
        return now - self._first_seen >= lease.duration_s

    def _write(self) -> WriteLease:
        current = self._lease
        is_own = current is not None and current.holder == self._identity
        acquired = current.acquired if is_own and current is not None else ""
        transitions = 0 if current is None else current.transitions + (0 if is_own else 1)
        return WriteLease(Lease(self._identity, self._times.lease_duration, "", acquired, transitions), current)
