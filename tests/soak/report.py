"""A soak's results from its journal: benchmarks/results/soak.json, and rows for docs/contributors/benchmarks.md. Pure.

The JSON has each measured pause, so that the percentiles can be computed again, and each violation with its fault, its
sentences, and the folder in the cache with logs, statuses and the training's own report.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tests.soak.draw import Kind
from tests.soak.invariants import BOUNDS_PER_HOUR, Sample, Trend, percentiles, trends

Raw = dict[str, Any]
Row = tuple[str, ...]

#: Every soak checks them; in the order of the table.
INVARIANTS = {
    "losses": "every step has the loss of a run without faults (relative tolerance 1e-6)",
    "ranks": "a rank starts once in a round",
    "budget": "no job fails, and restarts in place stay within the budget",
    "truth": "status reports pauses to 10 % or 0.2 s, and the fault if its victim is certain",
    "recovery": "each training continues within the limit, and only the faults that have to stop it do",
    "answers": "rollout servers answer with whole weights",
    "leaks": "memory, open files and objects do not grow by more than the bound",
}


def summary(entries: Sequence[Raw]) -> Raw:
    outcomes = [entry for entry in entries if entry["event"] == "outcome"]
    began = [entry for entry in entries if entry["event"] == "began"]
    found = trends(samples_of(entries))
    return {
        "seed": began[0]["seed"] if began else None,
        "commits": list(dict.fromkeys(entry["commit"] for entry in began)),
        "pieces": len(began),
        "hours": round(sum(entry.get("seconds", 0.0) for entry in outcomes) / 3600, 2),
        "network": began[-1]["network"] if began else None,
        "lives": sum(entry["event"] == "life" for entry in entries),
        "steps": sum(entry["steps"] for entry in entries if entry["event"] == "life"),
        "answers": sum(entry.get("answers", 0) for entry in outcomes),
        "faults": {kind.value: _of_kind(kind, outcomes) for kind in Kind},
        "checks": {**Counter(name for entry in outcomes for name in entry.get("checked", ())), "leaks": len(found)},
        "trends": {"bounds_per_hour": BOUNDS_PER_HOUR, "steepest": _steepest(found)},
        "violations": [*(entry for entry in entries if entry["event"] == "violation"), *_leaks(found)],
    }


def samples_of(entries: Iterable[Raw]) -> list[Sample]:
    """All series. Each run of the process has its own series, because the jobs of two runs are different."""
    piece, found = 0, []
    for entry in entries:
        piece += entry["event"] == "began"
        if entry["event"] == "samples":
            at = entry["at"]
            found += [Sample(at, f"{series} ({piece})", unit, value) for series, unit, value in entry["values"]]
    return found


def _of_kind(kind: Kind, outcomes: Iterable[Raw]) -> Raw:
    own = [entry for entry in outcomes if entry.get("kind") == kind.value]
    paused = sorted(seconds for entry in own for seconds in entry.get("paused_s", {}).values())
    results = Counter(entry["result"] for entry in own)
    reasons = sorted({entry["reason"] for entry in own if entry["result"] == "skipped"})
    return {
        "made": results["made"],
        "skipped": results["skipped"],
        "skipped_because": reasons,
        "interrupted": results["interrupted"],
        "paused_s": paused,
        "p50_p90_max_s": percentiles(paused),
    }


def _leaks(found: Iterable[Trend]) -> Iterator[Raw]:
    """The leaks as violations. The samples in the journal are the evidence."""
    for trend in found:
        if trend.is_leak:
            sentence = f"{trend.series}: {trend.per_hour:g} {trend.unit} more in an hour"
            yield {"event": "violation", "invariant": "leaks", "sentences": [sentence], "evidence": "the journal"}


def _steepest(found: Sequence[Trend]) -> Raw:
    """The series of each unit that grows fastest."""
    steepest: Raw = {}
    for trend in sorted(found, key=lambda one: one.per_hour):
        steepest[trend.unit] = {"series": trend.series, "per_hour": trend.per_hour}
    return steepest


def fault_rows(result: Raw) -> list[Row]:
    rows: list[Row] = [("fault", "made", "skipped", "trainings stopped", "p50 s", "p90 s", "max s")]
    for kind, found in result["faults"].items():
        times = [f"{seconds:.2f}" for seconds in found["p50_p90_max_s"]] or ["", "", ""]
        rows.append((kind, str(found["made"]), str(found["skipped"]), str(len(found["paused_s"])), *times))
    total = [sum(found[name] for found in result["faults"].values()) for name in ("made", "skipped")]
    stopped = [seconds for found in result["faults"].values() for seconds in found["paused_s"]]
    times = [f"{seconds:.2f}" for seconds in percentiles(stopped)] or ["", "", ""]
    rows.append(("all", *map(str, total), str(len(stopped)), *times))
    return rows


def check_rows(result: Raw) -> list[Row]:
    violations = Counter(entry["invariant"] for entry in result["violations"])
    rows: list[Row] = [("invariant", "checks", "violations")]
    for name, sentence in INVARIANTS.items():
        rows.append((sentence, str(result["checks"].get(name, 0)), str(violations[name])))
    return rows


def run_rows(result: Raw) -> list[Row]:
    commits = ", ".join(result["commits"])
    bounds = ", ".join(f"{bound:g} {unit}" for unit, bound in result["trends"]["bounds_per_hour"].items())
    facts = {
        "seed": str(result["seed"]),
        "commits": commits,
        "hours": f"{result['hours']:g}, in {result['pieces']} pieces",
        "trainings that ended with the undisturbed loss": f"{result['lives']}, of {result['steps']:,} steps",
        "answers of rollout servers": f"{result['answers']:,}",
        "slow network by": str(result["network"]),
        "bounds of growth in an hour": bounds,
    }
    return [("", ""), *facts.items()]
