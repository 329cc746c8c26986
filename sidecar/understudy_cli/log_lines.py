"""Which lines of a trainer container's log belong to a rank and a round, and the stacks and the newest collectives that
the log contains. Pure.

A worker's line begins with `[rank 3] `. It has no round, but when workers start, the launcher writes a line with it:
`understudy launcher: round=EPOCH.TERM.ROUND workers started ranks=…`. So a line belongs to the round of the newest such
line before it. A line before the first of these has no round.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_RANK = re.compile(r"\[rank ([0-9]{1,7})\] ")
_ROUND = re.compile(
    r"understudy launcher: round=[0-9]+\.[0-9]+\.([0-9]{1,15}) workers started ranks=([0-9]{1,7})-([0-9]{1,7})/"
)
_DUMP = re.compile(
    r"understudy launcher: round=[0-9]+\.[0-9]+\.([0-9]{1,15}) worker local_rank=[0-9]+ rank=([0-9]{1,7}) made no step "
    r"for (.*): its stacks follow"
)
#: Lines of faulthandler.
_STACK = re.compile(r'(?:Current thread|Thread) 0x[0-9a-fA-F]+|  File "|  \.\.\.|  <')
#: Frames of the fork server, below the script. The path of a pod's folder would make equal stacks differ in local mode.
_BELOW_SCRIPT = "/understudy_zygote/"
#: The thread of Understudy that writes the newest collectives. Its only frame.
_OUR_THREAD = "/understudy_torch/last_collectives.py"
#: Its line: understudy_torch/last_collectives.py has the form.
_COLLECTIVES = "understudy collectives: "
_OF_GROUP = re.compile(
    r"([\w.:+-]{1,48})/([\w.:+-]{1,48}) (gloo|nccl):([\w.:+-]{1,48})=([0-9]{1,15})"
    r"(?: waits ([\w.:+-]{1,48})=([0-9]{1,15}))?",
    re.ASCII,
)
MOST_GROUPS = 16
_THREAD_ID = re.compile(r"(thread|Thread) 0x[0-9a-fA-F]+")
STACK_LINES = 2_000
#: Ranks of one pod. A line with more was not written by a launcher.
MOST_RANKS = 1_024


@dataclass(frozen=True)
class Wanted:
    """rank, round: None for all."""

    rank: int | None = None
    round: int | None = None


class LogFilter:
    """Decides about the lines of one container, in their order."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._round: int | None = None
        self.has_prefixes = False  # whether any line had the prefix of a rank

    def takes(self, line: str) -> bool:
        started = _started_in(line)
        if started is not None:
            self._round = started[0]
        prefix = _RANK.match(line)
        self.has_prefixes = self.has_prefixes or prefix is not None
        if self._wanted.round is not None and self._round != self._wanted.round:
            return False
        if self._wanted.rank is None:
            return True
        if started is not None:
            return self._wanted.rank in started[1]
        return prefix is not None and int(prefix[1]) == self._wanted.rank


def _started_in(line: str) -> tuple[int, range] | None:
    """The round and the ranks in a launcher's line about the start of its workers; None for any other line."""
    found = _ROUND.match(line)
    if found is None:
        return None
    ranks = range(int(found[2]), int(found[3]) + 1)
    return (int(found[1]), ranks) if len(ranks) <= MOST_RANKS else None


@dataclass(frozen=True)
class Collective:
    """number: in its process group."""

    operation: str
    number: int


@dataclass(frozen=True)
class GroupPosition:
    """A rank's position in one process group. group: its backend and name. title: of the group, for users.

    entered: the newest collective that the rank has entered. waits: the oldest one that is not complete there.
    """

    group: str
    title: str
    entered: Collective
    waits: Collective | None


@dataclass(frozen=True)
class Dump:
    """The stacks of one worker. since: for how long it had made no step. lines: as faulthandler wrote them.

    positions: None if the worker has not written its newest collectives.
    """

    rank: int
    round: int
    since: str
    lines: tuple[str, ...]
    positions: tuple[GroupPosition, ...] | None = None

    @property
    def comparable(self) -> tuple[str, ...]:
        """Without the ids of threads, which differ in each process."""
        return tuple(_THREAD_ID.sub(r"\1", line) for line in self.lines)


@dataclass
class _Collected:
    rank: int
    round: int
    since: str
    lines: list[str] = field(default_factory=list)
    positions: tuple[GroupPosition, ...] | None = None


def newest_dumps(lines: Iterable[str]) -> dict[int, Dump]:
    """The newest stacks of each rank in the log of one container, without the ranks that wrote none."""
    return {dump.rank: dump for dump in dumps(lines)}


def dumps(lines: Iterable[str], round_number: int | None = None) -> tuple[Dump, ...]:
    """The stacks in the log of one container, of this round or of any, in their order."""
    found: list[_Collected] = []
    open_dumps: dict[int, _Collected] = {}  # by rank
    for line in lines:
        dump = _DUMP.match(line)
        if dump is not None:
            collected = open_dumps[int(dump[2])] = _Collected(int(dump[2]), int(dump[1]), dump[3])
            found.append(collected)
            continue
        prefix = _RANK.match(line)
        of_rank = None if prefix is None else open_dumps.get(int(prefix[1]))
        if prefix is None or of_rank is None or len(of_rank.lines) >= STACK_LINES:
            continue
        text = line[prefix.end() :]
        if text.startswith(_COLLECTIVES):
            of_rank.positions = positions(text)
        elif _OUR_THREAD in text:
            del of_rank.lines[-1:]  # the line that names the thread
        elif _STACK.match(text) and _BELOW_SCRIPT not in text:
            of_rank.lines.append(text)
    wanted = (x for x in found if x.lines and round_number in (None, x.round))
    return tuple(Dump(x.rank, x.round, x.since, tuple(x.lines), x.positions) for x in wanted)


def positions(line: str) -> tuple[GroupPosition, ...] | None:
    """What a worker has written about its collectives; None if the line has another form."""
    parts = line.removeprefix(_COLLECTIVES).split(", ", MOST_GROUPS)
    found = [_OF_GROUP.fullmatch(part) for part in parts]
    if len(parts) > MOST_GROUPS or None in found:
        return None
    return tuple(_position(part) for part in found if part is not None)


def _position(found: re.Match[str]) -> GroupPosition:
    name, description, backend, operation, number = found.group(1, 2, 3, 4, 5)
    title = f"group {name}" if description in ("_", "undefined") else f"group {name} ({description})"
    waits = None if found[6] is None else Collective(found[6], int(found[7]))
    return GroupPosition(f"{backend} {name}", title, Collective(operation, int(number)), waits)


@dataclass(frozen=True)
class RoundLines:
    """The lines that workers wrote in one round, as (rank, text), and the ranks that the container had then."""

    ranks: range
    lines: tuple[tuple[int, str], ...]

    @classmethod
    def read(cls, lines: Iterable[str], round_number: int | None) -> "RoundLines":
        """round_number: None for the newest. If the beginning of the log was cut off, its lines before the first round
        count as lines of this round.
        """
        ranks, found = range(0), list[tuple[int, str]]()
        is_wanted = True
        for line in lines:
            started = _started_in(line)
            if started is not None:
                number, of_round = started
                if round_number is not None and number > round_number:
                    return cls(ranks or of_round, tuple(found))
                is_wanted = round_number in (None, number)
                if is_wanted:
                    ranks, found = of_round, []
                continue
            prefix = _RANK.match(line)
            if is_wanted and prefix is not None:
                found.append((int(prefix[1]), line[prefix.end() :]))
        return cls(ranks, tuple(found))


@dataclass(frozen=True)
class StackGroup:
    """Ranks with the same stacks."""

    ranks: tuple[int, ...]
    round: int
    since: str
    lines: tuple[str, ...]


def grouped(dumps: Iterable[Dump]) -> tuple[StackGroup, ...]:
    """The dumps of the newest round that has any. The smallest group is first: often one rank in a hang differs."""
    found = list(dumps)
    newest = max((dump.round for dump in found), default=0)
    groups: dict[tuple[str, ...], list[Dump]] = {}
    for dump in sorted(found, key=lambda dump: dump.rank):
        if dump.round == newest:
            groups.setdefault(dump.comparable, []).append(dump)
    ordered = sorted(groups.values(), key=lambda group: (len(group), group[0].rank))
    return tuple(
        StackGroup(tuple(dump.rank for dump in group), newest, group[0].since, group[0].lines) for group in ordered
    )


def ranges(numbers: Iterable[int]) -> str:
    """0-2, 5."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in parts)
