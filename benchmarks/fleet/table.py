"""The cost of a fault in both fleets, and the extrapolation to a larger one, computed from the records. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.fleet.plan import Case
from benchmarks.goals import UNDERSTUDY
from benchmarks.records import Record
from benchmarks.tables import Row, number

TARGET_PODS = 100_000
CORE = 100.0  # percent


@dataclass(frozen=True)
class Medians:
    """Of one size, with one process of the operator."""

    pods: int
    values: dict[tuple[str, str], float]  # case, metric

    def get(self, case: Case, metric: str) -> float:
        """Raises KeyError if it was not measured."""
        return self.values[case, metric]

    @property
    def nodes(self) -> float:
        return self.get(Case.IDLE, "nodes")

    def fault_cpu_ms(self, case: Case = Case.FAULTS) -> float:
        """The CPU time that one fault adds to that of the case `labels`."""
        usual_s = self.get(Case.LABELS, "cpu_percent") / 100 * self.get(case, "measured_s")
        return 1000 * (self.get(case, "cpu_s") - usual_s) / self.get(case, "faults")

    def fault_writes(self, case: Case = Case.FAULTS) -> float:
        more = self.get(case, "writes_per_s") - self.get(Case.LABELS, "writes_per_s")
        return more * self.get(case, "measured_s") / self.get(case, "faults")


def medians(records: Sequence[Record]) -> list[Medians]:
    """The smallest size first."""
    found: dict[int, dict[tuple[str, str], float]] = {}
    for x in records:
        if x.system == UNDERSTUDY and x.median is not None:
            found.setdefault(x.size, {})[x.case, x.metric] = x.median
    return [Medians(pods, found[pods]) for pods in sorted(found)]


def cost_rows(records: Sequence[Record]) -> list[Row]:
    """A heading, then a row for each cost with the ratio of the largest fleet to the smallest."""
    sizes = medians(records)
    rows: list[Row] = [("cost", *(f"{x.pods:,} pods" for x in sizes), "ratio")]
    costs: dict[str, Callable[[Medians], float]] = {
        "CPU time of a fault, ms": lambda x: x.fault_cpu_ms(),
        "API writes of a fault": lambda x: x.fault_writes(),
        "CPU time of a verdict, ms": lambda x: x.fault_cpu_ms(Case.VERDICTS),
        "API writes of a verdict": lambda x: x.fault_writes(Case.VERDICTS),
        "memory of the operator, MB": lambda x: x.get(Case.IDLE, "rss_mb"),
        "memory of all programs, MB": lambda x: x.get(Case.IDLE, "all_programs_mb"),
    }
    for name, cost in costs.items():
        try:
            values = [cost(x) for x in sizes]
        except KeyError:  # a case was not measured
            continue
        rows.append((name, *map(_shown, values), _shown(values[-1] / values[0]) if values[0] > 0 else ""))
    return rows


@dataclass(frozen=True)
class Linear:
    """base + node * nodes + pod * pods."""

    base: float
    node: float
    pod: float

    def at(self, nodes: float, pods: float) -> float:
        return self.base + self.node * nodes + self.pod * pods


def fitted(small: Medians, large: Medians, metric: str, loaded: Case) -> Linear:
    """A node's part from the fleets without jobs; a pod's part is the rest of the large fleet in the case `loaded`."""
    empty = [x.get(Case.EMPTY, metric) for x in (small, large)]
    node = (empty[1] - empty[0]) / (large.nodes - small.nodes)
    return Linear(empty[1] - node * large.nodes, node, (large.get(loaded, metric) - empty[1]) / large.pods)


def extrapolation_rows(records: Sequence[Record]) -> list[Row]:
    """A heading, then rows if there are two sizes with all cases. The last one is the size that fills a core."""
    sizes = medians(records)
    head = ("operator", "base", "a node", "a pod", "measured", f"EXTRAPOLATED to {TARGET_PODS:,} pods")
    try:
        small, large = sizes[0], sizes[1]
        memory = fitted(small, large, "rss_mb", Case.IDLE)
        quiet = fitted(small, large, "cpu_percent", Case.LABELS)
        per_s = large.get(Case.FAULTS, "faults") / large.get(Case.FAULTS, "measured_s") / large.pods
        faults = Linear(0.0, 0.0, per_s * large.fault_cpu_ms() / 10)
    except (IndexError, KeyError):
        return [head]
    nodes_per_pod = large.nodes / large.pods
    busy = Linear(quiet.base, quiet.node, quiet.pod + faults.pod)
    fitting = {"memory, MB": memory, "CPU without faults, %": quiet, "CPU of faults, %": faults}
    rows = [
        (
            name,
            *(f"{x:.3g}" for x in (fit.base, fit.node, fit.pod)),
            *(_shown(fit.at(pods * nodes_per_pod, pods)) for pods in (large.pods, TARGET_PODS)),
        )
        for name, fit in fitting.items()
    ]
    most = (CORE - busy.base) / (busy.node * nodes_per_pod + busy.pod)
    return [head, *rows, ("pods that fill one core", "", "", "", "", f"{round(most, -3):,.0f}")]


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else number(value)
