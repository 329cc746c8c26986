"""The deadline until which workers that got SIGTERM may save. Pure: the caller passes the time.

Rules: after the pod's SIGTERM, the pod's own grace period limits every other grace period. The kubelet kills at its
end, so ours ends a margin earlier, and the exit code is the launcher's and not the kubelet's 137. Within that limit the
sidecar's order counts. A repeated order can only shorten the remaining time, because a restarted sidecar may not know
when it first sent the order. But a close replaces a drain's deadline: no next round waits for these workers.
"""

from typing import Optional

#: SIGKILL is sent this long before the pod's grace period ends.
GRACE_MARGIN_S = 2.0
GRACE_MARGIN_FRACTION = 0.1


class Graces:
    """`pod_s` is the pod's termination grace period."""

    def __init__(self, pod_s: float) -> None:
        self.pod_s = pod_s
        self.pod_by: Optional[float] = None  # the end of the pod's grace minus the margin; None before its SIGTERM
        self._order_by: Optional[float] = None

    def pod_ends(self, now: float, at_most_s: Optional[float] = None) -> None:
        """at_most_s: the node remains for this time only."""
        self.pod_s = self.pod_s if at_most_s is None else min(at_most_s, self.pod_s)
        self.pod_by = now + self.pod_s - min(GRACE_MARGIN_S, GRACE_MARGIN_FRACTION * self.pod_s)

    def shorten(self, by: float) -> None:
        self._order_by = by if self._order_by is None else min(by, self._order_by)

    def replace(self, by: float) -> None:
        self._order_by = by

    def forget_order(self) -> None:
        """Called for a new round: its workers are new."""
        self._order_by = None

    def over_at(self) -> Optional[float]:
        """When the remaining workers get SIGKILL; None while they have not been asked to end."""
        ends = [end for end in (self.pod_by, self._order_by) if end is not None]
        return min(ends, default=None)
