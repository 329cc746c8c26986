"""Remembers the nodes of deleted pods. A coordinator may report their faults later: for example, to a replica that
became the leader after the pod was deleted. And a deleted pod has provably ended if its node is ready (elections.py).

Tenants write the owners of their pods. So the limit is that of a namespace, and not of an owner.
"""

from collections import Counter, OrderedDict, deque

from understudy_operator.plan.facts.cluster_objects import Stay

KEPT_S = 600.0
#: Of a namespace.
MOST_KEPT = 20_000


class GonePods:
    """By owner: namespace and uid."""

    def __init__(self) -> None:
        #: The owner of the newest one is last. Each has at least one.
        self._gone: OrderedDict[tuple[str, str], deque[Stay]] = OrderedDict()
        self._kept = Counter[str]()  # by namespace

    def add(self, owner: tuple[str, str], stay: Stay, now: float) -> None:
        """A pod is gone since now."""
        self._gone.setdefault(owner, deque()).append(stay)
        self._gone.move_to_end(owner)
        self._kept[owner[0]] += 1
        while _is_old(self._gone[first := next(iter(self._gone))][-1], now):
            self._forget(first, len(self._gone[first]))
        if self._kept[owner[0]] > MOST_KEPT:
            has_older = len(self._gone[owner]) > 1
            self._forget(owner if has_older else next(x for x in self._gone if x[0] == owner[0]), 1)

    def of_owner(self, owner: tuple[str, str], now: float) -> tuple[Stay, ...]:
        """The oldest first."""
        while owner in self._gone and _is_old(self._gone[owner][0], now):
            self._forget(owner, 1)
        return tuple(self._gone.get(owner, ()))

    def __len__(self) -> int:
        return self._kept.total()

    def _forget(self, owner: tuple[str, str], count: int) -> None:
        """Its oldest ones."""
        stays = self._gone[owner]
        for _ in range(count):
            stays.popleft()
        if not stays:
            del self._gone[owner]
        self._kept[owner[0]] -= count
        if not self._kept[owner[0]]:
            del self._kept[owner[0]]


def _is_old(stay: Stay, now: float) -> bool:
    return stay.until is not None and stay.until < now - KEPT_S
