"""The dashboard of a fake cluster, in this process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from tests.ui.browser import LIMIT_S
from tests.ui.fake_cluster import FakeCluster
from understudy_cli.dashboard.fleets import cluster_fleets
from understudy_cli.dashboard.server import Board, application, follow


@asynccontextmanager
async def serving(cluster: FakeCluster, port: int = 0) -> AsyncIterator[str]:
    """Its address, such as http://127.0.0.1:40000/. Every page is complete: each kind of object was listed before."""
    board = Board()
    following = asyncio.ensure_future(follow(board, cluster_fleets(cluster.api(), ("",))))
    try:
        async with asyncio.timeout(LIMIT_S):
            while not board.fleet.is_complete:
                await board.wait(board.fleet, LIMIT_S)
        async with serving_board(board, port) as url:
            yield url
    finally:
        following.cancel()


@asynccontextmanager
async def serving_board(board: Board, port: int = 0) -> AsyncIterator[str]:
    """The address of the pages of what this board shows."""
    runner = web.AppRunner(application(board, ()), shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()
