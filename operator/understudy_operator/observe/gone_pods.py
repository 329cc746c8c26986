"""Remembers the nodes of a job's deleted pods, because a coordinator may report their faults later."""

from collections import deque

from understudy_operator.plan.facts.cluster_objects import Pod, Stay

KEPT_S = 600.0
MOST_KEPT = 20_000


class GonePods:
    def __init__(self) -> None:
        self._present: tuple[Pod, ...] = ()
        self._gone: deque[Stay] = deque(maxlen=MOST_KEPT)

    def update(self, pods: tuple[Pod, ...], now: float) -> tuple[Stay, ...]:
        """pods: all current pods. Returns the stays of deleted pods, the oldest first."""
        if pods is not self._present:
            present_uids = {pod.uid for pod in pods}
            gone = (pod for pod in self._present if pod.uid not in present_uids and pod.node)
            self._gone.extend(Stay(pod.name, pod.node, pod.created_at, now) for pod in gone)
            self._present = pods
        while self._gone and self._gone[0].until is not None and self._gone[0].until < now - KEPT_S:
            self._gone.popleft()
        return tuple(self._gone)

    def clear(self) -> None:
        """Another job has the name now."""
        self._present = ()
        self._gone.clear()
