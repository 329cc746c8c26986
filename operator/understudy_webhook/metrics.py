"""What Prometheus is told by the webhook: its answers, how long they took, and until when its certificate lasts."""

from typing import Any

from understudy_operator.metrics.book import Book

ANSWER_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
ENDPOINTS = ("mutate", "validate")
INJECTED, ALLOWED, REFUSED = "Injected", "Allowed", "Refused"
#: What was sent was no review; a bug.
MALFORMED, FAILED = "Malformed", "Failed"
RESULTS = (INJECTED, ALLOWED, REFUSED, MALFORMED, FAILED)


class WebhookMetrics:
    def __init__(self) -> None:
        self.book = book = Book()
        self._requests = book.counter(
            "understudy_webhook_requests_total",
            "Reviews that were asked for. Refused: told what is wrong; Malformed: no review; Failed: a bug.",
            ("endpoint", "result"),
        )
        for endpoint in ENDPOINTS:
            for result in RESULTS:
                self._requests.labels(endpoint, result)
        self._seconds = book.histogram(
            "understudy_webhook_request_seconds", "How long an answer took.", ("endpoint",), ANSWER_S
        )
        self._ends = book.gauge(
            "understudy_webhook_certificate_expiry_timestamp_seconds",
            "When the certificate that is served ends, in Unix time; NaN before there is one.",
        )
        self._ends.set(float("nan"))

    def answered(self, endpoint: str, result: str, seconds: float) -> None:
        self._requests.labels(endpoint, result).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def certificate_ends(self, at: float) -> None:
        self._ends.set(at)


def result_of(response: dict[str, Any]) -> str:
    if not response["allowed"]:
        return REFUSED
    return INJECTED if "patch" in response else ALLOWED
