"""GET /healthz: 200 while all that is to run does, else 500, and the kubelet starts the container anew. GET /readyz:
200 once the store has been filled: from then on this replica leads, or can take over at once. Both say in a word what
it is.

An API server that is away changes neither: an operator that started anew would know less.
"""

from aiohttp import web

from understudy_operator.operator import Operator


async def serve(operator: Operator, port: int) -> web.AppRunner:
    """To be cleaned up by the caller."""

    async def healthz(_: web.Request) -> web.Response:
        return _told(operator, operator.alive)

    async def readyz(_: web.Request) -> web.Response:
        return _told(operator, operator.alive and operator.synced)

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()
    return runner


def _told(operator: Operator, well: bool) -> web.Response:
    what = "leads" if operator.leads() else "stands by" if operator.synced else "fills its store"
    return web.Response(text=f"{what}\n", status=200 if well else 500)
