"""Remembers the nodes of deleted pods, because a coordinator may report their faults later: for example, to a replica
that became the leader after the pod was deleted.
"""

from collections import deque

from understudy_operator.plan.facts.cluster_objects import Stay

KEPT_S = 600.0
MOST_KEPT = 20_000


class GonePods:
    """By owner: namespace and uid."""

    def __init__(self) -> None:
        self._gone: dict[tuple[str, str], deque[Stay]] = {}  # the owner of the newest one is last

    def add(self, owner: tuple[str, str], stay: Stay, now: float) -> None:
        """A pod is gone since now."""
        stays = self._gone.pop(owner, None)
        self._gone[owner] = stays = deque(maxlen=MOST_KEPT) if stays is None else stays
        stays.append(stay)
        for other in list(self._gone):
            if not _is_old(self._gone[other][-1], now):
                break
            del self._gone[other]

    def of_owner(self, owner: tuple[str, str], now: float) -> tuple[Stay, ...]:
        """The oldest first."""
        stays = self._gone.get(owner)
        if stays is None:
            return ()
        while stays and _is_old(stays[0], now):
            stays.popleft()
        if not stays:
            del self._gone[owner]
        return tuple(stays)

    def __len__(self) -> int:
        return sum(map(len, self._gone.values()))


def _is_old(stay: Stay, now: float) -> bool:
    return stay.until is not None and stay.until < now - KEPT_S
