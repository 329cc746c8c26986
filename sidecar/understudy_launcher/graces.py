"""Until when workers that got SIGTERM may save. Pure: the caller brings the time.

Rules: the pod's own grace, once its SIGTERM has come, bounds every other: at its end the kubelet kills, so ours ends a
margin earlier, and the exit code is the launcher's and not the kubelet's 137. Within it the sidecar's order counts. One
that is repeated can only shorten what is left, for a sidecar that comes back may not know when it said so first; but a
close takes a drain's place: no next round waits for these workers any more.
"""

from typing import Optional

#: SIGKILL comes so long before the pod's grace period ends.
GRACE_MARGIN_S = 2.0
GRACE_MARGIN_FRACTION = 0.1


class Graces:
    """`pod_s` is the pod's termination grace period."""

    def __init__(self, pod_s: float) -> None:
        self.pod_s = pod_s
        self.pod_by: Optional[float] = None  # the end of the pod's own, less the margin; None before its SIGTERM
        self._order_by: Optional[float] = None

    def pod_ends(self, now: float, at_most_s: Optional[float] = None) -> None:
        """at_most_s: its node goes before the pod's own grace is over."""
        self.pod_s = self.pod_s if at_most_s is None else min(at_most_s, self.pod_s)
        self.pod_by = now + self.pod_s - min(GRACE_MARGIN_S, GRACE_MARGIN_FRACTION * self.pod_s)

    def shorten(self, by: float) -> None:
        self._order_by = by if self._order_by is None else min(by, self._order_by)

    def replace(self, by: float) -> None:
        self._order_by = by

    def forget_order(self) -> None:
        """A new round has new workers."""
        self._order_by = None

    def over_at(self) -> Optional[float]:
        """When what is left is to be killed; None while nobody has asked the workers to end."""
        ends = [end for end in (self.pod_by, self._order_by) if end is not None]
        return min(ends, default=None)
