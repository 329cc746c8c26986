"""The metrics and labels that a PromQL expression selects, found by a parser of PromQL."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import promql_parser

from scripts.metrics_docs import programs

#: Suffixes of histograms.
SUFFIXES = ("_bucket", "_sum", "_count")
#: Labels that a target has, or that Prometheus and its rules add.
GIVEN = {"le", "pod", "namespace", "job", "instance", "service", "container", "understudy_dev_job_name"}
#: Metrics of the process itself, from the client library.
PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}


@dataclass(frozen=True)
class Query:
    name: str
    labels: frozenset[str]  # in its selector


def known() -> dict[str, frozenset[str]]:
    """Every series that our programs report, and its labels."""
    found: dict[str, frozenset[str]] = {name: frozenset() for name in PROCESS}
    for described in (each for program in programs().values() for each in program):
        labels = frozenset(described.labels)
        if described.kind == "Histogram":
            found |= {f"{described.name}{suffix}": labels for suffix in SUFFIXES}
        else:
            found[described.name] = labels
    return found


def find_queries(expression: str) -> list[Query]:
    """Raises ValueError if it is no PromQL."""
    return list(_selectors(promql_parser.parse(expression)))


def grouped(expression: str) -> set[str]:
    """The labels by which results are grouped."""
    return set(_groupings(promql_parser.parse(expression)))


def _selectors(node: Any) -> Iterator[Query]:
    if isinstance(node, promql_parser.VectorSelector):
        yield Query(node.name or "", frozenset(matcher.name for matcher in node.matchers.matchers))
    for child in _children(node):
        yield from _selectors(child)


def _groupings(node: Any) -> Iterator[str]:
    if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
        yield from node.modifier.labels
    for child in _children(node):
        yield from _groupings(child)


def _children(node: Any) -> list[Any]:
    single = [getattr(node, name, None) for name in ("expr", "lhs", "rhs", "vector_selector", "vs", "param")]
    return [child for child in (*single, *getattr(node, "args", ())) if isinstance(child, promql_parser.Expr)]


def wrong(expression: str) -> list[str]:
    """The selected metrics and labels that no program reports."""
    result = known()
    found = [f"no program has {each.name}" for each in find_queries(expression) if each.name not in result]
    here = [each for each in find_queries(expression) if each.name in result]
    found += [
        f"{each.name} has no label {label}"
        for each in here
        for label in sorted(each.labels - result[each.name] - GIVEN)
    ]
    labels = frozenset[str]().union(*(result[each.name] for each in here)) | GIVEN
    return found + [f"nothing of it has label {label}" for label in sorted(grouped(expression) - labels)]
