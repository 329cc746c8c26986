"""GET /metrics, on a port of its own: whoever may scrape needs no way to anything else."""

from collections.abc import Callable, Mapping

from aiohttp import web

from understudy_operator.bounded_server import PROBE_LIMITS, BoundedServer
from understudy_operator.metrics.book import CONTENT_TYPE

ENV_PORT = "UNDERSTUDY_METRICS_PORT"


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

    def metrics(request: web.BaseRequest, _: bytes) -> web.Response:
        if request.path != "/metrics":
            return web.Response(status=404, text="GET /metrics\n")
        return web.Response(body=text(), headers={"Content-Type": CONTENT_TYPE})

    server = BoundedServer(metrics, PROBE_LIMITS)
    await server.listen(port)
    return server
