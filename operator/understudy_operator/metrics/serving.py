"""GET /metrics, on a port of its own: whoever may scrape needs no way to anything else."""

import time
from collections.abc import Callable, Mapping

from aiohttp import web

from understudy_operator.bounded_server import PROBE_LIMITS, BoundedServer
from understudy_operator.metrics.book import CONTENT_TYPE

ENV_PORT = "UNDERSTUDY_METRICS_PORT"
#: For so long all callers get the same text. However often they ask, to calculate it takes little time.
FRESH_S = 0.2


def port_of(env: Mapping[str, str]) -> int | None:
    """None: nothing is served. Raises ValueError."""
    told = env.get(ENV_PORT, "")
    if not told:
        return None
    if not (told.isdecimal() and 0 < int(told) < 65536):
        raise ValueError(f"{ENV_PORT} is {told!r}: set it to a port (chart: metrics.port), or leave it out")
    return int(told)


async def serve(text: Callable[[], bytes], port: int) -> BoundedServer:
    """To be closed by the caller."""
    calculated, at = b"", float("-inf")

    def metrics(request: web.BaseRequest, _: bytes) -> web.Response:
        nonlocal calculated, at
        if request.path != "/metrics":
            return web.Response(status=404, text="GET /metrics\n")
        if time.monotonic() - at > FRESH_S:
            calculated, at = text(), time.monotonic()
        return web.Response(body=calculated, headers={"Content-Type": CONTENT_TYPE})

    server = BoundedServer(metrics, PROBE_LIMITS)
    await server.listen(port)
    return server
