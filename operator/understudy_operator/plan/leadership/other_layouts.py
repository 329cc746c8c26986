"""Whether a shard of another layout (shard.py) holds its Lease, as one replica has read these Leases.

Rules:
- A Lease is held until its holder has released it, or until it has not changed for its duration. The duration counts
  from the answer in which this replica saw that state first, so clocks are not compared.
- Only a read that was requested after this time proves that the Lease has not changed. A replica that renews the Lease
  after that read starts a new leadership, and reads this replica's Lease before it leads (lease_election.py).
- A leader releases the Leases that it has found expired. Otherwise each later leader would wait for them again.
"""

from collections.abc import Mapping

from understudy_operator.plan.leadership.lease_election import Lease


class OtherLayouts:
    def __init__(self) -> None:
        self._first_seen: dict[str, tuple[str, float]] = {}  # by name: version, time

    def held_lease(self, leases: Mapping[str, Lease], requested_at: float, now: float) -> str:
        """The name of a Lease that is held; "" if there is none. leases: those of all other layouts, by name, as read
        by a request that was sent at requested_at and answered now.
        """
        known, self._first_seen = self._first_seen, {}
        held = ""
        for name, lease in sorted(leases.items()):
            version, first_seen = known.get(name, ("", now))
            if version != lease.version:
                first_seen = now
            self._first_seen[name] = (lease.version, first_seen)
            if lease.holder and requested_at - first_seen < lease.duration_s:
                held = held or name
        return held
