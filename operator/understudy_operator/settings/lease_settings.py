"""The chart's settings for the replicas' Lease, from the environment: UNDERSTUDY_LEASE (namespace/name), and
UNDERSTUDY_LEASE_TIMES (operator.leaderElection: lease duration, renew deadline and retry period, in seconds).

Read before anything starts: a wrong value ends the operator with a message that contains the fix.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from understudy_operator.plan.leadership.lease_election import LeaseTimes

ENV_LEASE = "UNDERSTUDY_LEASE"
ENV_TIMES = "UNDERSTUDY_LEASE_TIMES"


@dataclass(frozen=True)
class LeaseSettings:
    lease: tuple[str, str] | None = None  # namespace and name; None: this operator has no other replica
    times: LeaseTimes = field(default_factory=LeaseTimes)


def read_lease_settings(env: Mapping[str, str]) -> LeaseSettings:
    """Raises ValueError with the cause."""
    place = env.get(ENV_LEASE, "")
    namespace, _, name = place.partition("/")
    if place and not (namespace and name):
        raise ValueError(f"{ENV_LEASE} is {place!r}: set it to a Lease, as namespace/name")
    return LeaseSettings((namespace, name) if place else None, _times(env.get(ENV_TIMES, "")))


def _times(text: str) -> LeaseTimes:
    if not text:
        return LeaseTimes()
    parts = text.split(",")
    if len(parts) != 3 or not all(part.isascii() and part.isdecimal() and len(part) < 6 for part in parts):
        raise ValueError(
            f"{ENV_TIMES} is {text!r}: set it to lease duration, renew deadline and retry period in whole seconds, "
            "such as 15,10,2"
        )
    lease, deadline, period = map(float, parts)
    # A renewal without an answer takes 0.3 of the deadline. Then there must be time for one look and one renewal.
    if not 4.0 <= 4 * period <= deadline < lease:
        raise ValueError(
            f"{ENV_TIMES} is {text!r}: the lease duration has to be longer than the renew deadline, the renew deadline "
            "at least four times the retry period, and the retry period at least 1"
        )
    return LeaseTimes(lease, deadline, period)
