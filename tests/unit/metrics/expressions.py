"""Which metrics an expression of PromQL asks for, and with which labels: by a parser of PromQL."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import promql_parser

from scripts.metrics_docs import programs

#: Of histograms.
SUFFIXES = ("_bucket", "_sum", "_count")
#: That a target has, or Prometheus and its rules add.
GIVEN = {"le", "pod", "namespace", "job", "instance", "service", "container", "understudy_dev_job_name"}
#: Of the process itself: the client library's.
PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}


@dataclass(frozen=True)
class Query:
    name: str
    labels: frozenset[str]  # that it is selected by


def known() -> dict[str, frozenset[str]]:
    """Every series that our programs have, and its labels."""
    found: dict[str, frozenset[str]] = {name: frozenset() for name in PROCESS}
    for described in (each for program in programs().values() for each in program):
        labels = frozenset(described.labels)
        if described.kind == "Histogram":
            found |= {f"{described.name}{suffix}": labels for suffix in SUFFIXES}
        else:
            found[described.name] = labels
    return found


def find_queries(expression: str) -> list[Query]:
    """Raises ValueError where it is no PromQL."""
    return list(_selectors(promql_parser.parse(expression)))


def grouped(expression: str) -> set[str]:
    """The labels that results are grouped by."""
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
    """What it asks for that nobody tells."""
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
