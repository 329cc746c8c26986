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
- Two shards of different layouts (shard.py) have different Leases. So a replica that has acquired its Lease does not
  lead yet. First it reads the Leases of the other layouts (other_layouts.py). If one of them is held, it releases its
  own. Of two replicas that acquire Leases of different layouts, at least one reads after the other one has written. So
  at most one of them leads, whatever their times are.
- A renewal that was answered after the previous one could have expired starts a new leadership: a replica of another
  layout may have read the expired Lease meanwhile. So the replica reads the other Leases again before it leads.

                  Read: free or own        Read: of another       Written              Failed
    standby       ReadOtherLeases          Wait, then ReadLease   holder               Wait, then ReadLease
    holder        ReadOtherLeases          standby                ReadOtherLeases      Wait, then ReadLease
    leader        WriteLease               standby                leader, then Wait    Wait, then ReadLease
    (after renew_deadline: standby, ReadLease)

                  Other layouts: free      Other layouts: one is held
    standby       WriteLease               Wait, then ReadLease
    holder        leader, then Wait        WriteLease (release), then Wait
"""

from dataclasses import dataclass
from zlib import crc32

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
class ReadOtherLeases:
    """Read the Leases of the other layouts."""


@dataclass(frozen=True)
class WriteLease:
    """Write this into the Lease: as an update of that version, or as a new object."""

    lease: Lease
    replaces: Lease | None


@dataclass(frozen=True)
class Wait:
    seconds: float


Step = ReadLease | ReadOtherLeases | WriteLease | Wait


class LeaseCandidate:
    """`now` is this process's own monotonic clock."""

    def __init__(self, identity: str, times: LeaseTimes) -> None:
        self._identity, self._times = identity, times
        #: Two replicas that have released their Leases for each other do not retry at the same moment.
        self._conflict_pause_s = READ_EVERY_S * (1 + crc32(identity.encode()) % 1000 / 1000)
        self._lease: Lease | None = None
        self._first_seen = 0.0
        self._must_read = True  # before anything else
        self._not_before = NEVER
        self._renewed_at = NEVER  # when the last renewal that was answered was sent
        self._are_others_free = False  # by a read since the last read of the own Lease
        self._is_confirmed = False  # the other layouts' Leases were free after this replica had acquired its own
        self._must_release = False

    @property
    def leads_until(self) -> float:
        return self._renewed_at + self._times.renew_deadline

    def leads(self, now: float) -> bool:
        """Whether to start reconciles."""
        return self._is_confirmed and self._holds_lease(now)

    def may_write_for_s(self, now: float) -> float:
        """How long a running reconcile may send writes."""
        return max(0.0, self._renewed_at + self._times.writes_until - now) if self._is_confirmed else 0.0

    def next(self, now: float) -> Step:
        if now < self._not_before:
            return Wait(self._not_before - now)
        if self._must_read:
            return ReadLease()
        if self._holds_lease(now):
            if not self._is_confirmed:
                return self._released() if self._must_release else ReadOtherLeases()
            renew_at = self._renewed_at + self._times.retry_period
            return Wait(renew_at - now) if now < renew_at else self._write()
        if self._free(now):
            return self._write() if self._are_others_free else ReadOtherLeases()
        self._must_read = True
        assert self._lease is not None
        expires_in_s = self._first_seen + self._lease.duration_s - now
        self._not_before = now + min(READ_EVERY_S, expires_in_s)
        return Wait(self._not_before - now)

    def on_lease_read(self, lease: Lease | None, now: float) -> None:
        """lease: None if the Lease does not exist."""
        if lease is None or self._lease is None or lease.version != self._lease.version:
            self._first_seen = now
        self._lease, self._must_read, self._are_others_free = lease, False, False
        if lease is not None and lease.holder != self._identity:
            self._renewed_at = NEVER

    def on_other_leases_read(self, *, is_one_held: bool, now: float) -> None:
        if self._holds_lease(now):
            self._is_confirmed, self._must_release = not is_one_held, is_one_held
        elif is_one_held:
            self._must_read, self._not_before = True, now + READ_EVERY_S
        else:
            self._are_others_free = True

    def on_lease_written(self, lease: Lease, sent_at: float, now: float) -> None:
        """A write that was sent at that time was answered."""
        self._lease, self._first_seen, self._must_read = lease, sent_at, False
        if lease.holder != self._identity:  # released, because the Lease of another layout is held
            self._renewed_at, self._is_confirmed, self._must_release = NEVER, False, False
            self._must_read, self._not_before = True, now + self._conflict_pause_s
            return
        if now >= self._renewed_at + self._times.lease_duration:
            self._is_confirmed, self._must_release = False, False
        self._renewed_at = sent_at

    def on_failure(self, now: float) -> None:
        """A read or a write was rejected, or has no answer."""
        self._must_read, self._not_before = True, now + RETRY_S

    def release(self, now: float) -> WriteLease | None:
        """The write on shutdown; from here on this replica does not lead."""
        is_holder, self._renewed_at = self._holds_lease(now), NEVER
        return self._released() if is_holder else None

    def _holds_lease(self, now: float) -> bool:
        return now < self.leads_until

    def _released(self) -> WriteLease:
        assert self._lease is not None, "this replica has written it"
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
