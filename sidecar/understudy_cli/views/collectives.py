"""Finds the rank that has not entered the collective in which the others wait. Pure.

All ranks of a process group enter its collectives in the same order, so their numbers can be compared. A rank is late
in a group if its newest collective is older than each one in which another rank of the group waits. A late rank may
itself wait for another rank in another group: then the other rank is the cause. So only late ranks that wait in no
collective are named. If each of them waits, they are named only if the collectives of all ranks are known: then no
rank is left for which they could wait.

The flight recorders do not contain all that a rank can wait for: sends, receives, `monitored_barrier`, the store. So
of several late ranks, those whose stacks are outside of torch.distributed are named. If more ranks are late than
wait, none is named.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from understudy_cli.log_lines import Collective, GroupPosition, ranges

#: By rank. None: the rank has written its stacks, and not its collectives.
Positions = Mapping[int, Sequence[GroupPosition] | None]
_OfGroup = Mapping[int, GroupPosition]


@dataclass(frozen=True)
class LateRanks:
    ranks: tuple[int, ...]
    evidence: str


def late_ranks(positions: Positions, outside: Collection[int]) -> LateRanks | None:
    """outside: the ranks whose stacks are outside of torch.distributed."""
    known = {rank: of_rank for rank, of_rank in sorted(positions.items()) if of_rank is not None}
    waiting = {rank for rank, of_rank in known.items() if any(each.waits for each in of_rank)}
    late = {rank: of_group for of_group in _groups(known) for rank in _late_in(of_group)}
    named = [rank for rank in late if rank not in waiting]
    if not named and len(known) == len(positions):
        named = list(late)
    named = [rank for rank in named if rank in outside] or named
    if not named or len(named) > len(waiting.difference(named)):
        return None
    of_group = late[named[0]]
    named = sorted(rank for rank in named if late[rank] is of_group)
    text = f"{_oldest_wait(of_group, named)}, and {'it has' if len(named) == 1 else 'they have'} not entered it"
    own = [each for each in known[named[0]] if each.waits is not None]
    return LateRanks(tuple(named), f"{text}: {_waits({named[0]: own[0]})}" if own else text)


def unknown_rank(positions: Positions) -> LateRanks | None:
    """The only rank that has not written its collectives, if all others wait in one collective."""
    known = {rank: of_rank for rank, of_rank in sorted(positions.items()) if of_rank is not None}
    unknown = [rank for rank in positions if rank not in known]
    waits = [{(each.group, each.waits) for each in of_rank if each.waits is not None} for of_rank in known.values()]
    if len(unknown) != 1 or not waits or len(waits[0]) != 1 or any(each != waits[0] for each in waits):
        return None
    of_group = next(of_group for of_group in _groups(known) if any(each.waits for each in of_group.values()))
    text = f"{_oldest_wait(of_group)}. It has not written its collectives, so it may have entered this one, too"
    return LateRanks((unknown[0],), text)


def _groups(known: Mapping[int, Sequence[GroupPosition]]) -> Iterator[_OfGroup]:
    """The positions of each process group, by rank. The group in which most ranks wait is last."""
    groups: dict[str, dict[int, GroupPosition]] = {}
    for rank, of_rank in known.items():
        for each in of_rank:
            groups.setdefault(each.group, {})[rank] = each
    yield from sorted(groups.values(), key=lambda of_group: sum(each.waits is not None for each in of_group.values()))


def _late_in(of_group: _OfGroup) -> list[int]:
    waits = sorted(each.waits.number for each in of_group.values() if each.waits is not None)

    def is_late(each: GroupPosition) -> bool:
        others = waits[1:] if each.waits is not None and each.waits.number == waits[0] else waits
        return bool(others) and each.entered.number < others[0]

    return [rank for rank, each in of_group.items() if is_late(each)]


def _oldest_wait(of_group: _OfGroup, without: Collection[int] = ()) -> str:
    """The ranks that wait in the oldest collective of the group, without these ranks."""
    waits = {rank: each for rank, each in of_group.items() if each.waits is not None and rank not in without}
    oldest = min(_number(each) for each in waits.values())
    return _waits({rank: each for rank, each in waits.items() if _number(each) == oldest})


def _waits(of_group: _OfGroup) -> str:
    """These ranks wait in one collective."""
    first = next(iter(of_group.values()))
    operation = first.waits or first.entered
    ranks = f"rank {ranges(of_group)} waits" if len(of_group) == 1 else f"ranks {ranges(of_group)} wait"
    return f"{ranks} in {operation.operation} {operation.number} of {first.title}"


def _number(position: GroupPosition) -> int:
    return (position.waits or Collective("", 0)).number
