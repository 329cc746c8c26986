"""`python -m benchmarks.rollout.engine`: inference servers that do nothing but take a configured time.

/N/PATH is a call to server N. /N/slow?path=P&seconds=S makes its calls of P take S seconds; with a negative S they
fail. All other calls take CALL_S, as an engine's would; a health check answers at once.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop
from aiohttp import web

CALL_S = 0.05


async def serve() -> None:
    slow: dict[tuple[str, str], float] = {}

    async def change(request: web.Request) -> web.Response:
        slow[request.match_info["n"], request.query["path"]] = float(request.query["seconds"])
        return web.Response()

    async def health(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(text="well")

    async def call(request: web.Request) -> web.Response:
        await request.read()
        seconds = slow.get((request.match_info["n"], "/" + request.match_info["path"]), CALL_S)
        if seconds < 0:
            return web.Response(status=500, text="it failed, as configured")
        await asyncio.sleep(seconds)
        return web.Response(text="ok")

    app = web.Application()
    app.router.add_post("/{n}/slow", change)
    app.router.add_get("/{n}/health_generate", health)
    app.router.add_post("/{n}/{path:.*}", call)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    uvloop.run(serve())
