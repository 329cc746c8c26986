"""The webhook's /metrics about its answers and its certificate; a real TLS server, real openssl."""

import asyncio
import contextlib
import math
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.unit.operator.metrics.reading import scraped
from tests.unit.webhook.golden import IMAGE, pod
from tests.unit.webhook.test_certificates import HOST, REVIEW, ask, listening, until, write
from understudy_webhook import openssl
from understudy_webhook.certificates import CertificateFiles
from understudy_webhook.metrics import result_of
from understudy_webhook.review import mutate
from understudy_webhook.serving import Serving

ALLOWED = "Allowed"
INJECTED = "Injected"
REFUSED = "Refused"

LIFE_S = 90 * 24 * 3600.0

ENDS = ("understudy_webhook_certificate_expiry_timestamp_seconds",)


def read_metrics(serving: Serving) -> dict[tuple[str, ...], float]:
    return scraped(serving.metrics.book.text())


def counted(serving: Serving) -> dict[tuple[str, ...], float]:
    return {
        key[1:]: n for key, n in read_metrics(serving).items() if key[0] == "understudy_webhook_requests_total" and n
    }


async def test_answers_are_counted_by_endpoint_and_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = await openssl.make_certificate([HOST], LIFE_S)
    write(tmp_path, made)
    async with listening() as (serving, port):
        serving.load(tmp_path / "tls.crt", tmp_path / "tls.key")
        await ask(port, made.authority)
        with pytest.raises(aiohttp.ClientResponseError, match="400"):
            await ask(port, made.authority, {"not": "a review"})
        monkeypatch.setattr("understudy_webhook.review.inject", lambda *_: 1 / 0)
        with pytest.raises(aiohttp.ClientResponseError, match="500"):
            await ask(port, made.authority)
        context = ssl.create_default_context(cadata=made.authority)
        job = {**REVIEW, "request": {"uid": "u-2", "kind": {"kind": "Job"}, "object": {"metadata": {}, "spec": {}}}}
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(connector=connector) as session:
            await session.post(f"https://{HOST}:{port}/validate", json=job)
        result = counted(serving)
        assert {key: result[key] for key in result if key[0] == "mutate"} == {
            ("mutate", "Injected"): 1,
            ("mutate", "Malformed"): 1,
            ("mutate", "Failed"): 1,
        }
        assert sum(n for key, n in result.items() if key[0] == "validate") == 1
        assert read_metrics(serving)[("understudy_webhook_request_seconds_count", "mutate")] == 3


@pytest.mark.attack("D1", "a review whose texts are to appear in metrics", before="there were none, too")
async def test_metrics_contain_no_text_of_a_review(tmp_path: Path):
    made = await openssl.make_certificate([HOST], LIFE_S)
    write(tmp_path, made)
    async with listening() as (serving, port):
        serving.load(tmp_path / "tls.crt", tmp_path / "tls.key")
        metadata = {"name": "stolen-text", "namespace": "stolen-text", "labels": {"stolen-text": "stolen-text"}}
        for kind in ("Pod", "stolen-text"):
            request = {
                "uid": "stolen-text",
                "name": "stolen-text",
                "namespace": "stolen-text",
                "operation": "stolen-text",
                "kind": {"kind": kind},
                "object": {"metadata": metadata, "spec": {}},
            }
            with contextlib.suppress(aiohttp.ClientResponseError):
                await ask(port, made.authority, {**REVIEW, "request": request})
        assert sum(counted(serving).values()) == 2
        assert b"stolen-text" not in serving.metrics.book.text()


def test_a_result_has_the_api_servers_name():
    def result(review: dict[str, Any]) -> str:
        answer = mutate(review, IMAGE)
        return result_of(answer["response"])

    request: dict[str, Any] = {"uid": "u", "kind": {"kind": "Pod"}, "object": pod("job")}
    assert result(request) == INJECTED
    assert result({**request, "object": {"metadata": {}, "spec": {"containers": []}}}) == ALLOWED
    assert result({**request, "object": {**pod("job"), "spec": {"containers": []}}}) == REFUSED


async def test_the_expiry_of_a_certificate_from_files_and_of_the_next_one_is_reported(tmp_path: Path):
    short, long = await openssl.make_certificate([HOST], 86400.0), await openssl.make_certificate([HOST], LIFE_S)
    async with listening() as (serving, _):
        assert math.isnan(read_metrics(serving)[ENDS])
        keeper = asyncio.create_task(CertificateFiles(tmp_path, serving, every_s=0.01).run())
        for made in (short, long):
            write(tmp_path, made)
            await until(lambda expected=made.until: read_metrics(serving)[ENDS] == expected)  # type: ignore[misc]
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
