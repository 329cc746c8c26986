"""The webhook's metrics for Prometheus: its answers, their duration, and the expiry of its certificate."""

from typing import Any

from understudy_operator.metrics.metric_book import MetricBook
from understudy_operator.runtime.bounded_server import Drop

ANSWER_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
ENDPOINTS = ("mutate", "validate")
INJECTED, ALLOWED, REFUSED = "Injected", "Allowed", "Refused"
#: The body is not a review; the answer took too long; the caller's certificate has another name; a bug.
MALFORMED, EXPENSIVE, UNKNOWN_CALLER, FAILED = "Malformed", "Expensive", "UnknownCaller", "Failed"
RESULTS = (INJECTED, ALLOWED, REFUSED, MALFORMED, EXPENSIVE, UNKNOWN_CALLER, FAILED)


class WebhookMetrics:
    def __init__(self) -> None:
        self.book = book = MetricBook()
        self._requests = book.counter(
            "understudy_webhook_requests_total",
            "Requests. Refused: the object was rejected; Malformed: the request is not a review; Expensive: the "
            "answer took too long; UnknownCaller: the certificate of the caller has another name; Failed: a bug.",
            ("endpoint", "result"),
        )
        for endpoint in ENDPOINTS:
            for result in RESULTS:
                self._requests.labels(endpoint, result)
        self._seconds = book.histogram(
            "understudy_webhook_request_seconds", "Duration of an answer.", ("endpoint",), ANSWER_S
        )
        self._dropped = book.counter(
            "understudy_webhook_dropped_total",
            "Connections and requests that were dropped. Crowded: other addresses needed the place; Slow: no complete "
            "request in time; Handshake: no TLS, or no trusted client certificate; TooLarge: the body was not read.",
            ("reason",),
        )
        for reason in Drop:
            self._dropped.labels(reason.value)
        self._ends = book.gauge(
            "understudy_webhook_certificate_expiry_timestamp_seconds",
            "Expiry of the certificate that is served, in Unix time. NaN before there is one.",
        )
        self._ends.set(float("nan"))

    def count_request(self, endpoint: str, result: str, seconds: float) -> None:
        self._requests.labels(endpoint, result).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def count_drop(self, reason: str) -> None:
        self._dropped.labels(reason).inc()

    def certificate_ends(self, at: float) -> None:
        self._ends.set(at)


def result_of(response: dict[str, Any]) -> str:
    if not response["allowed"]:
        return REFUSED
    return INJECTED if "patch" in response else ALLOWED
