"""The metrics of one process: its own registry, and the list from which docs/reference/metrics.md is generated."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: A value for each tuple of label values.
Values = Mapping[tuple[str, ...], float]
log = logging.getLogger(__name__)

# Otherwise each counter has a second series: the time at which this process first counted.
disable_created_metrics()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Described:
    name: str
    kind: str  # Counter, Gauge or Histogram
    text: str
    labels: tuple[str, ...] = ()


class MetricBook:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.described: list[Described] = []
        ProcessCollector(registry=self.registry)

    def counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        self._describe(name, "Counter", text, labels)
        return Counter(name, text, labels, registry=self.registry)

    def histogram(self, name: str, text: str, labels: Sequence[str], buckets: Sequence[float]) -> Histogram:
        self._describe(name, "Histogram", text, labels)
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

    def gauge(self, name: str, text: str) -> Gauge:
        self._describe(name, "Gauge", text, ())
        return Gauge(name, text, registry=self.registry)

    def reading(self, name: str, text: str, labels: Sequence[str], read: Callable[[], Values]) -> None:
        """A gauge that is computed when Prometheus scrapes."""
        self._describe(name, "Gauge", text, labels)
        self.registry.register(_Reading(name, text, labels, read))

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _describe(self, name: str, kind: str, text: str, labels: Sequence[str]) -> None:
        self.described.append(Described(name, kind, text, tuple(labels)))


class _Reading(Collector):
    def __init__(self, name: str, text: str, labels: Sequence[str], read: Callable[[], Values]) -> None:
        self._name, self._text, self._labels, self._read = name, text, tuple(labels), read

    def describe(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(self._name, self._text, labels=self._labels)

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(self._name, self._text, labels=self._labels)
        try:
            values = self._read()
        except Exception:
            log.exception("metric %s could not be computed; all others are served", self._name)
            return
        for labels, value in values.items():
            family.add_metric(labels, value)
        yield family
