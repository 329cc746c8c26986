"""GET /metrics, on a port of its own: whoever may scrape needs no way to anything else."""

from collections.abc import Callable, Mapping

from aiohttp import web

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


async def serve(text: Callable[[], bytes], port: int) -> web.AppRunner:
    """To be cleaned up by the caller."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=text(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()
    return runner
