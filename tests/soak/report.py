"""The results of soaks, for benchmarks/results/soak.json, and their rows for docs/contributors/benchmarks.md. Pure.

The JSON has a list of runs, one for each seed. The runs may come from different machines, and the tables sum them up. A
run has each measured pause, so that the percentiles can be computed again, and each violation with its fault, its
sentences, and the folder in the cache with logs, statuses and the training's own report.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from tests.soak.draw import Kind
from tests.soak.invariants import BOUNDS_PER_HOUR, Sample, Trend, percentiles, trends

Raw = dict[str, Any]
Row = tuple[str, ...]

_BOUNDS = ", ".join(f"{bound:g} {unit}" for unit, bound in BOUNDS_PER_HOUR.items())
#: Every soak checks them; in the order of the table.
INVARIANTS = {
    "losses": "every step has the loss of a run without faults (relative tolerance 1e-9)",
    "ranks": "a rank starts once in a round",
    "budget": "no job fails, and restarts in place stay within the budget",
    "truth": "status reports pauses to 10 % or 0.2 s, and the fault if its victim is certain",
    "goodput": "the parts of a job's time are its wall time to 1 %",
    "recovery": "each training continues within the limit, and only the faults that have to stop it do",
    "answers": "rollout servers answer with whole weights",
    "leaks": f"the memory and open files of a process, and objects, do not grow by more in an hour than: {_BOUNDS}",
}


def summary(entries: Sequence[Raw]) -> Raw:
    outcomes = [entry for entry in entries if entry["event"] == "outcome"]
    began = [entry for entry in entries if entry["event"] == "began"]
    seed = began[0]["seed"] if began else None
    found = trends(samples_of(entries))
    return {
        "seed": seed,
        "commits": list(dict.fromkeys(entry["commit"] for entry in began)),
        "pieces": len(began),
        "hours": round(sum(entry.get("seconds", 0.0) for entry in outcomes) / 3600, 2),
        "network": began[-1]["network"] if began else None,
        "lives": sum(entry["event"] == "life" for entry in entries),
        "steps": sum(entry["steps"] for entry in entries if entry["event"] == "life"),
        "answers": sum(entry.get("answers", 0) for entry in outcomes),
        "faults": {kind.value: _of_kind(kind, outcomes) for kind in Kind},
        "checks": {**Counter(name for entry in outcomes for name in entry.get("checked", ())), "leaks": len(found)},
        "steepest": _steepest(found),
        "violations": [*(entry for entry in entries if entry["event"] == "violation"), *_leaks(found, seed)],
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
    }


def _leaks(found: Iterable[Trend], seed: int | None) -> Iterator[Raw]:
    """The leaks as violations. The samples in the journal are the evidence."""
    for trend in found:
        if trend.is_leak:
            sentence = f"{trend.series}: {trend.per_hour:g} {trend.unit} more in an hour"
            yield {
                "event": "violation",
                "invariant": "leaks",
                "sentences": [sentence],
                "evidence": f"soak/seed-{seed}.jsonl",
            }


def _steepest(found: Sequence[Trend]) -> Raw:
    """The series of each unit that grows fastest."""
    steepest: Raw = {}
    for trend in sorted(found, key=lambda one: one.per_hour):
        steepest[trend.unit] = {"series": trend.series, "per_hour": trend.per_hour}
    return steepest


def with_run(runs: Sequence[Raw], new: Raw) -> list[Raw]:
    """The runs with the new one. It replaces an earlier run of its seed."""
    return sorted([*(run for run in runs if run["seed"] != new["seed"]), new], key=lambda run: run["seed"])


def fault_rows(runs: Sequence[Raw]) -> list[Row]:
    rows: list[Row] = [("fault", "made", "skipped", "trainings stopped", "p50 s", "p90 s", "max s")]
    rows += [(kind.value, *_sums([run["faults"][kind.value] for run in runs])) for kind in Kind]
    rows.append(("all", *_sums([found for run in runs for found in run["faults"].values()])))
    return rows


def _sums(found: Sequence[Raw]) -> Row:
    paused = list(chain.from_iterable(one["paused_s"] for one in found))
    times = [f"{seconds:.2f}" for seconds in percentiles(paused)] or ["", "", ""]
    made, skipped = (sum(one[name] for one in found) for name in ("made", "skipped"))
    return (f"{made:,}", f"{skipped:,}", f"{len(paused):,}", *times)


def check_rows(runs: Sequence[Raw]) -> list[Row]:
    violations = Counter(entry["invariant"] for run in runs for entry in run["violations"])
    rows: list[Row] = [("invariant", "checks", "violations")]
    for name, sentence in INVARIANTS.items():
        checks = sum(run["checks"].get(name, 0) for run in runs)
        rows.append((sentence, f"{checks:,}", str(violations[name])))
    return rows


def run_rows(runs: Sequence[Raw]) -> list[Row]:
    """A row for each run, and their sum. Trainings count if they have ended, each with the undisturbed loss."""
    numbers = ("hours", "pieces", "faults", "trainings", "steps", "answers of rollout servers")
    rows: list[Row] = [("seed", "commits", *numbers, "slow network by")]
    rows += [(str(run["seed"]), ", ".join(run["commits"]), *_numbers([run]), str(run["network"])) for run in runs]
    return [*rows, ("all", "", *_numbers(runs), "")]


def _numbers(runs: Sequence[Raw]) -> Row:
    hours = sum(run["hours"] for run in runs)
    faults = sum(found["made"] for run in runs for found in run["faults"].values())
    pieces, lives, steps, answers = (sum(run[name] for run in runs) for name in ("pieces", "lives", "steps", "answers"))
    return (f"{hours:.2f}", f"{pieces}", f"{faults:,}", f"{lives}", f"{steps:,}", f"{answers:,}")
