"""Which members keep the copies of the snapshots of which pods. Pure: the same facts give the same placement.

Rules: a copy goes to another pod, in another zone if there is one, otherwise to another node if there is one. A zone is
a topology domain, or a node whose domain is unknown. Each member keeps the copies of at most as many pods as the job
wants copies: its memory has room for these. A holder stays as long as it is a member and no better zone is there.
Spares come first: a spare that gets the ranks whose copies it keeps fetches nothing. Then the largest other zone gives
the next holder, so that the last pods find one, too. A pod that finds only members of its own zone changes with a pod
that does not. The work is O(n log n).
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple


class Site(NamedTuple):
    """A member that may keep copies. domain: "" if it is unknown."""

    uid: str
    node: str
    domain: str = ""
    has_ranks: bool = True

    @property
    def zone(self) -> tuple[str, str]:
        return (self.domain, "") if self.domain else ("", self.node)


def place_copies(
    owners: Sequence[Site], members: Sequence[Site], previous: Sequence[Sequence[str]], copies: int
) -> list[tuple[str, ...]]:
    """The uids of the holders of each owner: `copies` of them, or fewer if there are too few members.

    previous: the holders of the previous placement.
    """
    placed: list[tuple[str, ...]] = [() for _ in owners]
    for number in range(copies):
        before = [uids[number] if number < len(uids) else "" for uids in previous]
        holders = _Pass(owners, members, before, placed).run()
        placed = [(*uids, *filter(None, [holder])) for uids, holder in zip(placed, holders, strict=True)]
    return _filled(owners, members, placed, copies)


def _filled(
    owners: Sequence[Site], members: Sequence[Site], placed: list[tuple[str, ...]], copies: int
) -> list[tuple[str, ...]]:
    """Give members with room to the owners that lack copies: in a pass, a member gets one copy at most."""
    kept = Counter(uid for uids in placed for uid in uids)
    room = [site.uid for site in members for _ in range(copies - kept[site.uid])]
    for number, owner in enumerate(owners):
        if lacking := copies - len(placed[number]):
            fitting = [uid for uid in dict.fromkeys(room) if uid not in (owner.uid, *placed[number])][:lacking]
            placed[number] = (*placed[number], *fitting)
            for uid in fitting:
                room.remove(uid)
    return placed


class _Pass:
    """One copy of each owner. A member gets at most one."""

    def __init__(
        self, owners: Sequence[Site], members: Sequence[Site], previous: Sequence[str], placed: list[tuple[str, ...]]
    ) -> None:
        self._owners, self._previous, self._placed = owners, previous, placed
        self._free = {site.uid: site for site in members}
        self._zones = Counter(site.zone for site in members)
        self._has_nodes = len({site.node for site in members}) > 1
        self._holders: list[Site | None] = [None] * len(owners)

    def run(self) -> list[str]:
        self._keep()
        largest = sorted(self._unplaced(), key=lambda number: -self._zones[self._owners[number].zone])
        for has_ranks in (False, True):
            self._spread(largest, has_ranks=has_ranks)
        if len(self._zones) > 1:
            self._exchange(self._is_apart)
        for number in self._unplaced():
            self._take(number, self._nearest(number))
        self._exchange(self._may_hold)
        return ["" if site is None else site.uid for site in self._holders]

    def _keep(self) -> None:
        for number, uid in enumerate(self._previous):
            site = self._free.get(uid)
            if site is not None and self._may_hold(number, site) and self._is_best(self._owners[number], site):
                self._take(number, site)

    def _spread(self, numbers: Iterable[int], *, has_ranks: bool) -> None:
        """Give each owner a member of the largest other zone."""
        zones: dict[tuple[str, str], list[Site]] = defaultdict(list)
        for site in reversed(self._free.values()):
            if site.has_ranks is has_ranks:
                zones[site.zone].append(site)
        heap = [(-len(sites), zone) for zone, sites in zones.items()]
        heapq.heapify(heap)
        for number in numbers:
            if self._holders[number] is not None:
                continue
            skipped = []
            while heap:
                entry = heapq.heappop(heap)
                sites = zones[entry[1]]
                if entry[1] == self._owners[number].zone or not self._may_hold(number, sites[-1]):
                    skipped.append(entry)
                    continue
                self._take(number, sites.pop())
                skipped += [(-len(sites), entry[1])] if sites else []
                break
            for entry in skipped:
                heapq.heappush(heap, entry)

    def _exchange(self, fits: Callable[[int, Site], bool]) -> None:
        """Each owner without a holder takes the holder of another owner, which takes a free member."""
        others: Iterator[int] = iter([n for n, site in enumerate(self._holders) if site is not None])
        for number in self._unplaced():
            for other in others:
                held = self._holders[other]
                free = next((x for x in self._free.values() if fits(other, x)), None)
                if held is not None and fits(number, held) and free is not None:
                    self._take(other, free)
                    self._holders[number] = held
                    break

    def _is_apart(self, number: int, site: Site) -> bool:
        return site.zone != self._owners[number].zone and self._may_hold(number, site)

    def _nearest(self, number: int) -> Site | None:
        """A member of the owner's own zone: the previous holder, one on another node, or any."""
        owner, previous = self._owners[number], self._previous[number]
        fitting = [site for site in self._free.values() if self._may_hold(number, site)]
        return min(fitting, key=lambda site: (site.node == owner.node, site.uid != previous), default=None)

    def _unplaced(self) -> list[int]:
        return [number for number, site in enumerate(self._holders) if site is None]

    def _may_hold(self, number: int, site: Site) -> bool:
        return site.uid != self._owners[number].uid and site.uid not in self._placed[number]

    def _is_best(self, owner: Site, site: Site) -> bool:
        if len(self._zones) > 1:
            return site.zone != owner.zone
        return site.node != owner.node or not self._has_nodes

    def _take(self, number: int, site: Site | None) -> None:
        if site is not None:
            del self._free[site.uid]
            self._holders[number] = site
