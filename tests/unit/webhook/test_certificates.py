"""The served certificate, from files: a real TLS server, real openssl, no restart."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.unit.webhook.golden import IMAGE, pod
from understudy_webhook import openssl
from understudy_webhook.certificates import CertificateFiles
from understudy_webhook.rotation import CertificateSet
from understudy_webhook.serving import Serving

LIFE_S = 90 * 24 * 3600.0

HOST = "localhost"
REVIEW = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {"uid": "u-1", "kind": {"kind": "Pod"}, "object": pod("job")},
}


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[Serving, int]]:
    serving = Serving(IMAGE)
    port = await serving.listen(0)
    try:
        yield serving, port
    finally:
        await serving.close()


async def ask(port: int, bundle: str, body: object = REVIEW) -> dict[str, Any]:
    """Ask like the API server, on a new connection, with only that bundle as trust. Raises aiohttp.ClientError."""
    context = ssl.create_default_context(cadata=bundle)
    url = f"https://{HOST}:{port}/mutate"
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session,
        session.post(url, data=json.dumps(body)) as answer,
    ):
        answer.raise_for_status()
        result: dict[str, Any] = await answer.json()
        return result


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 (what it waits for tells nobody)
            await asyncio.sleep(0.01)


def write(folder: Path, made: CertificateSet) -> None:
    (folder / "tls.crt").write_text(made.certificate)
    (folder / "tls.key").write_text(made.key)


async def test_a_renewed_pair_of_files_is_served_from_the_next_connection_on(tmp_path: Path) -> None:
    first, second = await openssl.make_certificate([HOST], LIFE_S), await openssl.make_certificate([HOST], LIFE_S)
    async with listening() as (serving, port):
        keeper = asyncio.create_task(CertificateFiles(tmp_path, serving, every_s=0.01).run())
        assert not serving.is_ready
        write(tmp_path, first)
        await until(lambda: serving.is_ready)
        assert (await ask(port, first.authority))["response"]["allowed"]
        # When only half of the new pair is written, then the previous pair is still served
        (tmp_path / "tls.crt").write_text(second.certificate)
        assert (await ask(port, first.authority))["response"]["allowed"]
        (tmp_path / "tls.key").write_text(second.key)

        async def renewed() -> bool:
            try:
                await ask(port, second.authority)
            except aiohttp.ClientError:
                return False
            return True

        async with asyncio.timeout(10):
            while not await renewed():  # noqa: ASYNC110 (what it waits for tells nobody)
                await asyncio.sleep(0.01)
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await ask(port, first.authority)
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)


async def test_a_server_answers_garbage_with_400_and_lives(tmp_path: Path) -> None:
    made = await openssl.make_certificate([HOST], LIFE_S)
    write(tmp_path, made)
    async with listening() as (serving, port):
        serving.load(tmp_path / "tls.crt", tmp_path / "tls.key")
        with pytest.raises(aiohttp.ClientResponseError, match="400"):
            await ask(port, made.authority, {"not": "a review"})
        assert (await ask(port, made.authority))["response"]["allowed"]
