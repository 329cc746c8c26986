"""GET /metrics on a separate port, so a scraper needs access to nothing else."""

import time
from collections.abc import Callable, Mapping
from http import HTTPStatus

from understudy_operator.metrics.metric_book import CONTENT_TYPE
from understudy_operator.runtime.probe_server import ProbeServer, Reply

ENV_PORT = "UNDERSTUDY_METRICS_PORT"
#: For this long all callers get the same text, so frequent scrapes cost little time.
FRESH_S = 0.2


def port_of(env: Mapping[str, str]) -> int | None:
    """None: do not serve. Raises ValueError."""
    text = env.get(ENV_PORT, "")
    if not text:
        return None
    if not (text.isdecimal() and 0 < int(text) < 65536):
        raise ValueError(f"{ENV_PORT} is {text!r}: set it to a port (chart: metrics.port), or unset it")
    return int(text)


async def serve(text: Callable[[], bytes], port: int) -> ProbeServer:
    """The caller closes the server."""
    calculated, at = b"", float("-inf")

    def metrics(path: str) -> Reply:
        nonlocal calculated, at
        if path != "/metrics":
            return Reply(b"GET /metrics\n", HTTPStatus.NOT_FOUND)
        if time.monotonic() - at > FRESH_S:
            calculated, at = text(), time.monotonic()
        return Reply(calculated, content_type=CONTENT_TYPE)

    server = ProbeServer(metrics)
    await server.listen(port)
    return server
