"""The rank that the others waited for, from the logs of a job. Pure.

At a hang and at the timeout of a collective, the ranks that report first are those that wait, so status may name one of
them. The logs show more:

- Hang: all workers have written their stacks, and those with a flight recorder of torch their newest collectives. The
  suspect is the rank that has not entered the collective in which the others wait (collectives.py). If the collectives
  show none, the stacks decide: if at most half of the ranks are outside of torch.distributed, the
  others wait for these. Otherwise, the ranks of the smallest group of equal stacks are the suspects, if the group is
  smaller than half of the ranks. Only main threads are compared: one rank alone may have threads for its logs. If the
  stacks show none either, the suspect is the only rank that has not written its collectives.
- Timeout of a collective: the ranks that waited have written a traceback. The suspects are those that have written
  none, if they are at most half of the ranks.

If all stacks are equal, or all ranks have written a traceback, there is no suspect.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from understudy_cli.facts import Cause, Recovery
from understudy_cli.log_lines import Dump, RoundLines, dumps, ranges
from understudy_cli.views.collectives import LateRanks, late_ranks, unknown_rank
from understudy_cli.views.phrases import subject

#: The innermost frames of a stack that are shown.
FRAMES = 12
#: How gloo, NCCL and torch's store report that a peer did not answer.
_TIMEOUT = re.compile(
    r"gloo/.*timed out|collective operation timeout|monitoredBarrier|DistStoreError.*timed out|wait timeout",
    re.IGNORECASE,
)
_TRACEBACK = "Traceback (most recent call last):"
_THREAD = re.compile(r"(?:Current thread|Thread) 0x")
_IN_TORCH_DISTRIBUTED = "/torch/distributed/"


@dataclass(frozen=True)
class Source:
    """The pod and the node of a log, as far as they are known."""

    pod: str
    node: str


Logs = Mapping[Source, Sequence[str]]


@dataclass(frozen=True)
class Suspects:
    """evidence: why these ranks. stack: of the first of them, from its innermost frame on; empty if it wrote none."""

    ranks: tuple[int, ...]
    place: str
    evidence: str
    stack: tuple[str, ...] = ()


def need_logs(recovery: Recovery) -> bool:
    """Whether the logs may show more than the recovery."""
    return recovery.fault == "Hang" or is_timeout(recovery)


def is_timeout(recovery: Recovery) -> bool:
    return recovery.fault == "Process" and _TIMEOUT.search(recovery.cause.message) is not None


def suspects(recovery: Recovery, logs: Logs) -> Suspects | None:
    """logs: from the fault's round or longer."""
    if not need_logs(recovery):
        return None
    failed_round = None if not recovery.round else recovery.round - 1
    return _at_hang(logs, failed_round) if recovery.fault == "Hang" else _at_timeout(logs, failed_round)


# Hang -----------------------------------------------------------------------------------------------------------------


def _at_hang(logs: Logs, failed_round: int | None) -> Suspects | None:
    found = {dump.rank: (dump, source) for source, lines in logs.items() for dump in dumps(lines, failed_round)}
    newest = max((dump.round for dump, _ in found.values()), default=0)
    of_round = {rank: dump for rank, (dump, _) in sorted(found.items()) if dump.round == newest}
    mains = {rank: _main_thread(dump) for rank, dump in of_round.items()}
    outside = [rank for rank, stack in mains.items() if not any(_IN_TORCH_DISTRIBUTED in line for line in stack)]
    positions = {rank: dump.positions for rank, dump in of_round.items()}
    late = late_ranks(positions, outside) or _by_stacks(mains, outside) or unknown_rank(positions)
    if late is None:
        return None
    first = late.ranks[0]
    return Suspects(late.ranks, _place(late.ranks, found[first][1]), late.evidence, mains[first][:FRAMES])


def _by_stacks(mains: Mapping[int, tuple[str, ...]], outside: list[int]) -> LateRanks | None:
    """outside: the ranks whose stacks are outside of torch.distributed."""
    others = [rank for rank in mains if rank not in outside]
    evidence = "{} in torch.distributed, and its stack is elsewhere"
    if not outside or len(outside) > len(others):
        outside = _smallest_group(mains)
        others = [rank for rank in mains if rank not in outside]
        evidence = "{} at one place, and its stack is elsewhere"
    if not outside:
        return None
    return LateRanks(tuple(outside), evidence.format(f"{_named(others)} wait{'' if len(others) > 1 else 's'}"))


def _main_thread(dump: Dump) -> tuple[str, ...]:
    """Its frames. faulthandler writes the main thread last."""
    begins = [number for number, line in enumerate(dump.lines) if _THREAD.match(line)]
    return dump.lines[begins[-1] + 1 :] if begins else dump.lines


def _smallest_group(mains: Mapping[int, tuple[str, ...]]) -> list[int]:
    """The ranks with the rarest stack; empty if they are half of all ranks or more."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, stack in mains.items():
        groups.setdefault(stack, []).append(rank)
    smallest = min(groups.values(), key=len, default=[])
    return smallest if 2 * len(smallest) < len(mains) else []


# Timeout --------------------------------------------------------------------------------------------------------------


def _at_timeout(logs: Logs, failed_round: int | None) -> Suspects | None:
    found = {source: RoundLines.read(lines, failed_round) for source, lines in logs.items()}
    ranks = {rank: source for source, of_log in found.items() for rank in of_log.ranks}
    failed = {rank for of_log in found.values() for rank, text in of_log.lines if _TRACEBACK in text}
    waited = sorted(rank for rank in ranks if rank in failed)
    silent = sorted(rank for rank in ranks if rank not in failed)
    if not silent or len(silent) > len(waited):
        return None
    text = f"no error until {_named(waited)} waited too long in a collective, and ended with an error"
    return Suspects(tuple(silent), _place(silent, ranks[silent[0]]), text)


# Words ----------------------------------------------------------------------------------------------------------------


def _named(ranks: Iterable[int]) -> str:
    listed = list(ranks)
    return f"rank{'s' if len(listed) > 1 else ''} {ranges(listed)}"


def _place(ranks: Sequence[int], source: Source) -> str:
    """The pod and the node only of a single rank."""
    return subject(Cause(ranks[0], source.pod, source.node)) if len(ranks) == 1 else _named(ranks)
