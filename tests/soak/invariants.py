"""Invariants of a soak. Pure: functions over records, each with a sentence for each violation.

The losses are compared by tests/e2e/undisturbed.py, and the recovery from a fault with a known victim by
tests/e2e/truth.py. These invariants hold after any sequence of faults:

- A rank starts at most once in a round.
- Each pause of a training has an entry in `recoveries` with its seconds, to 10 % or 0.2 s; each entry that has ended
  has such a pause.
- No job has failed or restarted as a whole, and the restarts in place are at most its budget.
- The parts of a job's time in `status.goodput` are its wall time, to 1 %.
- The resources of a process or the cluster do not grow by more than a bound per hour.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

from tests.e2e.truth import Fault, Pause, Steps, is_open, unix
from tests.soak.draw import Draw, Expectation, Kind, Pod, expectation, hit

Raw = dict[str, Any]

#: Growth per hour of each process: MB of resident memory, and open files; and of the number of each kind of object.
BOUNDS_PER_HOUR = {"MB": 32.0, "files": 12.0, "objects": 8.0}
#: Of the wall time.
SUM_ERROR = 0.01
#: A worker that was asked for memory allocates 2 GiB until the kernel ends it. First writes run at 0.17 GB/s or more.
ALLOCATION_S = 15.0
#: Shorter series have no meaningful trend. Growth during the start of a process does not count.
MIN_SERIES_S, WARM_UP_S = 1800.0, 300.0


@dataclass(frozen=True)
class Start:
    """A worker has started, according to its own report."""

    round: str
    rank: int
    host: str
    pid: int


@dataclass(frozen=True)
class Sample:
    """at: Unix seconds. unit: a key of BOUNDS_PER_HOUR."""

    at: float
    series: str
    unit: str
    value: float


@dataclass(frozen=True)
class Trend:
    series: str
    unit: str
    per_hour: float

    @property
    def is_leak(self) -> bool:
        return self.per_hour > BOUNDS_PER_HOUR[self.unit]


def ranks_twice(starts: Iterable[Start]) -> list[str]:
    places: dict[tuple[str, int], list[str]] = {}
    for start in starts:
        places.setdefault((start.round, start.rank), []).append(f"{start.host} as process {start.pid}")
    return [
        f"rank {rank} has started {len(found)} times in round {token}: on {', on '.join(found)}"
        for (token, rank), found in sorted(places.items())
        if len(found) > 1
    ]


def untruthful(entries: Sequence[Raw], steps: Steps, since: float, *, lacks_steps: bool = False) -> list[str]:
    """The entries and pauses that ended after `since`. entries: of `recoveries`, without open ones.

    steps: of one observer, such as the first rank, in all rounds. lacks_steps: perhaps not the last ones of a round, so
    the length of a pause is not known.
    """
    found: list[str] = []
    measured = [pause for pause in pauses_between_rounds(steps) if pause.first > since]
    resumed = [entry for entry in entries if not is_open(entry) and unix(entry.get("resumedAt", _NEVER)) > since]
    for entry in resumed:
        at, seconds = unix(entry["resumedAt"]), entry.get("pauseSeconds")
        nearest = min(measured, key=lambda pause: abs(pause.first - at), default=None)
        if nearest is None:
            found.append(f"the recovery that ended at {at:.3f}: no step of a new round was seen")
        elif abs(nearest.first - at) > nearest.allowed_s:
            found.append(f"resumedAt: expected {nearest.first:.3f} ± {nearest.allowed_s:.3f}, status reports {at:.3f}")
        elif not lacks_steps and (seconds is None or abs(seconds - nearest.seconds) > nearest.allowed_s):
            expected = f"{nearest.seconds:.3f} ± {nearest.allowed_s:.3f}"
            found.append(f"pauseSeconds: expected {expected}, status reports {seconds}")
    for pause in measured:
        if not any(abs(unix(entry["resumedAt"]) - pause.first) <= pause.allowed_s for entry in resumed):
            found.append(f"recoveries: none for the {pause.seconds:.3f} s until {pause.first:.3f} without a step")
    return found


_NEVER = "1970-01-01T00:00:00Z"


def pauses_between_rounds(steps: Steps) -> list[Pause]:
    """From the last step of one round to the first step of the next one that made steps."""
    by_round: dict[Any, list[float]] = {}
    for step in chain(*steps.values()):
        by_round.setdefault(step.round, []).append(step.at)
    times = [sorted(by_round[token]) for token in sorted(by_round)]
    return [Pause(before[-1], after[0]) for before, after in pairwise(times)]


#: The kind that status has to report. Without a ready spare, a pod is recreated.
_REPORTED_AS = {
    Kind.WORKER: "Process",
    Kind.MEMORY: "Process",
    Kind.POD: "Pod",
    Kind.NODE: "Node",
    Kind.PARTITION: "Node",
    Kind.FREEZE: "Node",
}


def expected_fault(drawn: Draw, job: str, pods: Sequence[Pod], workers: int) -> Fault | None:
    """The report that status must have about a training that a fault stops for certain; None if its victim is not
    certain.

    workers: of each pod. A pod whose workers failed before may be replaced at the next failure.
    """
    struck, kind = hit(drawn, job, pods), _REPORTED_AS.get(drawn.kind)
    if len(struck) != 1 or kind is None or expectation(drawn, job, pods) is not Expectation.STOPS:
        return None
    strategies = ("InPlace", "SpareSwap", "PodRecreate") if kind == "Process" else ("SpareSwap", "PodRecreate")
    pod = struck[0]
    fault = Fault(kind, strategies, pod.name, pod.node, pod.rank * workers)
    if drawn.kind is not Kind.MEMORY:
        return fault
    # If the kernel also kills the fork server, each worker of the pod ends with it.
    return replace(fault, effective_within_s=ALLOCATION_S, ranks=workers)


def exceeds_budget(status: Raw, budget: int) -> list[str]:
    found = []
    in_place = int(status.get("recoveriesByStrategy", {}).get("inPlace", 0))
    if in_place > budget:
        found.append(f"recoveriesByStrategy.inPlace: {in_place}, and the budget is {budget}")
    if status.get("phase") == "Failed" or status.get("terminalState") == "Failed":
        found.append("the job has failed")
    if status.get("restarts", 0) > 0:
        found.append(f"restarts: {status['restarts']}, and no fault allows a restart of the whole job")
    return found


def unaccounted(status: Raw) -> list[str]:
    """Of a job that has not ended: the parts are compared with the wall time until `since`."""
    goodput = status.get("goodput")
    if goodput is None:
        return ["goodput: missing"]
    wall_s, parts = unix(goodput["since"]) - unix(goodput["startTime"]), goodput["seconds"]
    total_s = sum(parts.values())
    if abs(total_s - wall_s) > SUM_ERROR * wall_s:
        return [f"goodput: the parts are {total_s:.1f} s, the wall time is {wall_s:.1f} s: {parts}"]
    return []


def trends(samples: Iterable[Sample]) -> list[Trend]:
    """The trend of each series that is long enough, by the least squares of its samples."""
    by_series: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        by_series.setdefault((sample.series, sample.unit), []).append(sample)
    found = []
    for (series, unit), own in sorted(by_series.items()):
        first = min(sample.at for sample in own)
        counted = [(x.at - first, x.value) for x in own if x.at - first >= WARM_UP_S]
        if counted and max(at for at, _ in counted) >= MIN_SERIES_S and len(counted) >= 3:
            found.append(Trend(series, unit, round(3600 * _slope(counted), 2)))
    return found


def _slope(points: Sequence[tuple[float, float]]) -> float:
    mean_x, mean_y = (sum(column) / len(points) for column in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def percentiles(seconds: Sequence[float], shares: Sequence[float] = (0.5, 0.9, 1.0)) -> list[float]:
    """By the nearest rank: each is a measured time."""
    ordered = sorted(seconds)
    return [ordered[max(0, math.ceil(share * len(ordered)) - 1)] for share in shares] if ordered else []
