"""The gateway in front of a real SGLang: an update during streams and health checks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from understudy_rollout import Replica, WeightUpdate
from understudy_rollout.engines import SglangEngine
from understudy_rollout.gateway import Gateway
from understudy_rollout.gateway.app import GatewayApp
from understudy_rollout.gateway.flights import InFlightRequests
from understudy_rollout.gateway.listener import address_of, listener_at
from understudy_rollout.gateway.proxy import Proxy
from understudy_rollout.gateway.weights_file import open_weights_file

VERSION_HEADER = "Understudy-Weight-Version"

pytestmark = pytest.mark.timeout(600)
LONG = {"max_new_tokens": 50, "temperature": 0, "ignore_eos": True}


@asynccontextmanager
async def gateway_of(server: str, file: Path) -> AsyncIterator[str]:
    keeper = open_weights_file(file, listener_at(address_of(server)), "v3")
    app = GatewayApp(InFlightRequests(keeper), Proxy(server), "secret").application()
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def test_an_update_behind_the_gateway_ends_streams_and_rejects_requests(
    sglang: str, models: Path, tmp_path: Path
) -> None:
    async def story() -> None:
        engine = SglangEngine(sglang)
        async with gateway_of(sglang, tmp_path / "weights.json") as url, aiohttp.ClientSession() as client:
            admission = Gateway(url, "secret")
            one = Replica("rollout-0", engine, admission=admission)

            async def answer() -> tuple[int, str]:
                body = {"input_ids": [5, 6, 7], "sampling_params": {**LONG, "max_new_tokens": 4}}
                async with client.post(url + "/generate", json=body) as response:
                    content = await response.json()
                    assert set(content.get("output_ids", ())) <= {int(response.headers.get(VERSION_HEADER, "v0")[1:])}
                    return response.status, response.headers.get(VERSION_HEADER, content.get("error", {}).get("type"))

            assert await answer() == (200, "v3")
            # given an answer that streams, and a client that checks the server's health
            body = {"input_ids": [5, 6, 7], "sampling_params": LONG, "stream": True}
            stream = await client.post(url + "/generate", json=body)
            first = json.loads((await stream.content.readline()).removeprefix(b"data: "))
            assert set(first["output_ids"]) == {3}
            probe = asyncio.ensure_future(client.get(url + "/health"))
            # when an update begins
            async with WeightUpdate([one], version="v4") as update:
                # then the gateway answers both, and forwards no other request
                with pytest.raises(aiohttp.ClientError):
                    await stream.content.read()
                assert (await probe).status == 200
                async with client.get(url + "/health") as health:
                    assert (health.status, "being updated" in await health.text()) == (200, True)
                assert await answer() == (503, "weights_updating")
                await update.load(str(models / "4"))
            # and after it the new weights answer
            assert await answer() == (200, "v4")
            async with client.get(url + "/health") as health:
                assert (health.status, await health.text()) == (200, "")
            stream.close()

    asyncio.run(story())
