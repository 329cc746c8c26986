"""Which of the operator's replicas acts: one replica's half of the election over a Lease.

Rules:
- The Lease belongs to who has written its name into it, for its duration from then on. Nobody's clock is compared with
  another's: a standby counts the duration from when it first saw that state of the Lease, so clocks may differ.
- A leader renews every retry_period. It counts its time from when it sent the last renewal that was answered, and stops
  leading renew_deadline after that: it begins no reconcile any more. A reconcile that runs may send writes for half of
  the time that the lease still has. The other half is for a write that is on its way: it arrives before another replica
  may begin. What arrives later still is fenced by its resourceVersion.
- Only an answered write makes a leader. After one without an answer, or that was refused, it looks first: the Lease may
  be its own by now, or somebody else's.
- Who stops in peace writes an empty holder: the next one begins at its next look.

                  Looked, free or own      Looked, somebody's     Wrote                Failed
    stands by     Write                    Rest, then Look        leads, then Rest     Rest, then Look
    leads         Write                    stands by              leads on, Rest       Rest, then Look
    (the time is over: stands by, Look)
"""

from dataclasses import dataclass

#: How often a standby looks. It takes over within the lease duration and one look from the leader's last renewal, and
#: within one look from a lease that was given back.
LOOK_EVERY_S = 0.5
#: After a look or a write that failed.
RETRY_S = 0.2
NEVER = float("-inf")


@dataclass(frozen=True)
class Times:
    """In seconds, by client-go's names and with its defaults: they survive an API server that answers in 2 s."""

    lease_duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0

    @property
    def writes_until(self) -> float:
        """After the last renewal: a reconcile that was begun in time may send writes."""
        return (self.renew_deadline + self.lease_duration) / 2

    @property
    def call(self) -> float:
        """Of one look or one renewal. After a renewal that fails there is time for a look and for another one."""
        return 0.3 * self.renew_deadline


@dataclass(frozen=True)
class Lease:
    """As it is kept by the API server. version changes with each write."""

    holder: str
    duration_s: float
    version: str
    acquired: str = ""  # RFC 3339, for people
    transitions: int = 0


@dataclass(frozen=True)
class Look:
    """Read the Lease."""


@dataclass(frozen=True)
class Write:
    """Put this into the Lease: over the state of that version, or as a new one."""

    lease: Lease
    takes_over: bool  # it was not ours
    over: Lease | None


@dataclass(frozen=True)
class Rest:
    for_s: float


class Candidate:
    """`now` is this process's own steady clock."""

    def __init__(self, identity: str, times: Times) -> None:
        self._identity, self._times = identity, times
        self._lease: Lease | None = None
        self._first_seen = 0.0
        self._looks = True  # before anything else
        self._not_before = NEVER
        self._renewed_at = NEVER  # when the last renewal that was answered was sent

    @property
    def leads_until(self) -> float:
        return self._renewed_at + self._times.renew_deadline

    def leads(self, now: float) -> bool:
        """Whether to begin reconciles."""
        return now < self.leads_until

    def may_write_for_s(self, now: float) -> float:
        """How long writes of a reconcile that was begun may be sent."""
        return max(0.0, self._renewed_at + self._times.writes_until - now)

    def next(self, now: float) -> Look | Write | Rest:
        if now < self._not_before:
            return Rest(self._not_before - now)
        if self._looks:
            return Look()
        if self.leads(now):
            renew_at = self._renewed_at + self._times.retry_period
            return Rest(renew_at - now) if now < renew_at else self._write()
        if self._free(now):
            return self._write()
        self._looks = True
        assert self._lease is not None
        expires_in_s = self._first_seen + self._lease.duration_s - now
        self._not_before = now + min(LOOK_EVERY_S, expires_in_s)
        return Rest(self._not_before - now)

    def looked(self, lease: Lease | None, now: float) -> None:
        """What the Lease is; None if there is none."""
        if lease is None or self._lease is None or lease.version != self._lease.version:
            self._first_seen = now
        self._lease, self._looks = lease, False
        if lease is not None and lease.holder != self._identity:
            self._renewed_at = NEVER

    def wrote(self, lease: Lease, asked_at: float) -> None:
        """A write was answered, that was sent at that time."""
        self._lease, self._first_seen, self._looks = lease, asked_at, False
        self._renewed_at = asked_at

    def failed(self, now: float) -> None:
        """A look or a write was refused, or has no answer."""
        self._looks, self._not_before = True, now + RETRY_S

    def release(self, now: float) -> Write | None:
        """What to write on a stop in peace; from here on this replica does not lead."""
        led, self._renewed_at = self.leads(now), NEVER
        if not led or self._lease is None:
            return None
        return Write(Lease("", 1.0, "", "", self._lease.transitions), False, self._lease)

    def _free(self, now: float) -> bool:
        held = self._lease
        if held is None or held.holder in ("", self._identity):
            return True
        return now - self._first_seen >= held.duration_s

    def _write(self) -> Write:
        over = self._lease
        ours = over is not None and over.holder == self._identity
        acquired = over.acquired if ours and over is not None else ""
        transitions = 0 if over is None else over.transitions + (0 if ours else 1)
        return Write(Lease(self._identity, self._times.lease_duration, "", acquired, transitions), not ours, over)
