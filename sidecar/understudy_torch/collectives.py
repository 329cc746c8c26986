"""When this rank enters the collectives of its steps, from torch's flight recorder, published in the page of step().

The ranks of a training end each step together, so step times do not show which rank is slow. The slow rank is the one
for which the others wait: it enters the collectives last. The coordinator compares the ranks
(understudy_sidecar/membership/slow_ranks.py has the argument).

For each of ten steps in a row, a window, this publishes the first and the last collective: its identity, which is the
same on all ranks of its group, and the time from the end of the step before (the call of step()) to the entry. Both
times are of this machine's clock. So the clocks of two pods are never compared.

Rules: no failure: any error ends the reports of this process. Most calls of step() only compare two
numbers. All ranks have to report the same steps: a window ends at a multiple of STEPS x 2**k, counted from the start of
the round, and each rank chooses k by itself. So the windows of a rank with a larger k are among those of the others.
The time between two windows is at least PERIOD_S, and grows with the number of ranks, so that the coordinator gets at
most 100 reports a second on average. It is also at least COST_FACTOR times the time that the last report took.

With a GPU, the CPU may run ahead of it: then the entry into a collective says nothing about the rank. So a window
counts only if the GPU had completed its work at each call of step(), for example because the script calls loss.item().
"""

import importlib
import os
import sys
import zlib
from bisect import bisect_right
from time import perf_counter, time_ns
from typing import Any, Callable, Optional

ENV_SLOW_RANK_PERCENT = "UNDERSTUDY_SLOW_RANK_PERCENT"  # also in understudy_protocol.pod; 0: no reports
STEPS = 10
#: Words of the page: the number of the report, the steps of the round at its end, the median duration of its steps, for
#: each step two collectives with their times, and the number again, which is written first.
AREA_WORDS = 3 + 4 * STEPS + 1
FIRST_WINDOW = 2 * STEPS  # the first steps compile and allocate
PERIOD_S, PERIOD_PER_RANK_S = 10.0, 0.01
COST_FACTOR = 200  # 0.5 % of the time
NEVER = sys.maxsize
_LONGEST_STRIDE = 1 << 40
BACKENDS = ("gloo", "nccl")
_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
_GROUP_BITS, _SEQUENCE_BITS = 28, 31  # together less than 10**18: msgspec reads more digits slowly

Entry = tuple[int, int]  # Unix nanoseconds, and the identity of the collective


class CollectiveReports:
    """The reports of one process. area: its words of the page. read: the flight recorders as JSON."""

    def __init__(
        self,
        area: memoryview,
        ranks: int,
        read: Callable[[], list[Any]] = lambda: read_flight_recorders(),
        clock: Callable[[], int] = time_ns,
    ) -> None:
        self._area, self._read, self._clock = area, read, clock
        self._period_s = PERIOD_S + PERIOD_PER_RANK_S * ranks
        self._due = FIRST_WINDOW
        self._ends: list[int] = []  # of the newest steps, from the step before the window on
        self._waited = True  # for the GPU, at each of these
        self._last = 0

    @property
    def record_from(self) -> int:
        """The number of the step from which on `on_step` has to be called."""
        return self._due - STEPS

    def on_step(self, number: int) -> int:
        """The step of this number in the round is done. Return the next number for which to call this."""
        try:
            self._on_step(number)
        except Exception:  # noqa: BLE001 - the training must not fail for this
            self._due = NEVER
        return self.record_from

    def _on_step(self, number: int) -> None:
        if number != self._last + 1:
            self._ends, self._waited = [], True
        self._last = number
        self._ends.append(self._clock())
        self._waited = self._waited and has_waited_for_gpu()
        if number < self._due:
            return
        begun, ends = perf_counter(), self._ends
        step_ns = 0
        if len(ends) == STEPS + 1:
            step_ns = sorted(after - before for before, after in zip(ends, ends[1:]))[STEPS // 2]
            steps = _steps(self._read(), ends) if self._waited and step_ns > 0 else None
            if steps is not None:
                self._publish(number, step_ns, steps)
        self._ends, self._waited = ends[-1:], has_waited_for_gpu()
        self._plan(number, step_ns, perf_counter() - begun)

    def _plan(self, number: int, step_ns: int, took_s: float) -> None:
        least_ns = max(self._period_s, COST_FACTOR * took_s) * 1e9
        stride = STEPS
        while stride * max(1, step_ns) < least_ns and stride < _LONGEST_STRIDE:
            stride *= 2
        self._due = (number // stride + 1) * stride if step_ns > 0 else number + STEPS + 1

    def _publish(self, number: int, step_ns: int, steps: list[int]) -> None:
        """The launcher reads the words in their order: if both numbers are equal, it has read one report."""
        area = self._area
        report = area[0] + 1
        area[AREA_WORDS - 1] = report
        area[1], area[2] = number, step_ns
        for index, word in enumerate(steps, 3):
            area[index] = word
        area[0] = report


def make_reports(area: memoryview) -> Optional[CollectiveReports]:
    """None if the job wants no reports, or this process is no rank."""
    if os.environ.get(ENV_SLOW_RANK_PERCENT) == "0":
        return None
    ranks = os.environ.get("WORLD_SIZE", "")
    return CollectiveReports(area, int(ranks)) if ranks.isdecimal() and 1 < int(ranks) < 1 << 24 else None


def has_waited_for_gpu() -> bool:
    """Whether the GPU, if this process uses one, has completed all that it was given."""
    cuda: Any = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return True
    return not cuda.is_current_stream_capturing() and bool(cuda.current_stream().query())


def has_flight_recorder() -> bool:
    """Whether torch.distributed is imported, and has a flight recorder."""
    return bool(_dumps())


def read_flight_recorders() -> list[Any]:
    """The content of each of torch's flight recorders as JSON: NCCL has its own one."""
    return [dump(True, False) for dump in _dumps()]


def _dumps() -> list[Callable[[bool, bool], Any]]:
    """torch is not imported here."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    dumps = (getattr(c10d, name, None) for name in _DUMPS)
    return [dump for dump in dumps if dump is not None]


def entries(recorded: list[Any]) -> list[dict[str, Any]]:
    """The entries of the flight recorders. Content of an unknown form is skipped."""
    json = importlib.import_module("json")  # scripts that report no collectives need not import it
    found: list[dict[str, Any]] = []
    for text in recorded:
        content = json.loads(text)
        listed = content.get("entries") if isinstance(content, dict) else None
        found += [entry for entry in (listed if isinstance(listed, list) else ()) if isinstance(entry, dict)]
    return found


def group(entry: dict[str, Any]) -> tuple[str, str]:
    """The name and the description of its process group; "" if it has none. Only the name is the same on all ranks."""
    of_entry = entry.get("process_group")
    texts = [text for text in (of_entry if isinstance(of_entry, list) else [of_entry])[:2] if isinstance(text, str)]
    name, description = (*texts, "", "")[:2]
    return name, description


def read_entries(recorded: list[Any]) -> list[Entry]:
    """The collectives in the flight recorders, oldest first. Entries of an unknown form are skipped."""
    return sorted(set(filter(None, map(_entry, entries(recorded)))))


def _entry(entry: dict[str, Any]) -> Optional[Entry]:
    if entry.get("is_p2p") is not False:
        return None
    name, (of_group, _) = entry.get("profiling_name"), group(entry)
    at, sequence = entry.get("time_created_ns"), entry.get("collective_seq_id")
    backend = name.partition(":")[0] if isinstance(name, str) else ""
    if backend not in BACKENDS or not of_group or type(at) is not int or type(sequence) is not int:
        return None
    identity = zlib.crc32(f"{backend} {of_group}".encode(errors="replace")) & ((1 << _GROUP_BITS) - 1)
    return at, identity << _SEQUENCE_BITS | sequence & ((1 << _SEQUENCE_BITS) - 1)


def _steps(recorded: list[Any], ends: list[int]) -> Optional[list[int]]:
    """For each step its first and last collective, each with its time after the step before.

    None if a step has no collective, or the flight recorder does not reach back to the first.
    """
    found = read_entries(recorded)
    if not found or found[0][0] > ends[0]:
        return None
    words: list[int] = []
    times = [at for at, _ in found]
    for before, after in zip(ends, ends[1:]):
        of_step = found[bisect_right(times, before) : bisect_right(times, after)]
        if not of_step:
            return None
        for at, collective in (of_step[0], of_step[-1]):
            words += (collective, at - before)
    return words
