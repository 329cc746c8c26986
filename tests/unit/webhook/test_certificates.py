"""Certificates: files that somebody else keeps, and self-made ones; a real TLS server, real openssl, no restart."""

import asyncio
import base64
import json
import shutil
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.unit.operator.fake_api import FakeApi
from tests.unit.webhook.golden import IMAGE, pod
from understudy_webhook import openssl
from understudy_webhook.certificates import Files, KeptByAnother, SelfMade, SelfMadeSettings
from understudy_webhook.rotation import LIFE_S, Made, first_of, is_due, with_bundle
from understudy_webhook.serving import Serving

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
HOST = "localhost"
SECRET = "/api/v1/namespaces/system/secrets/hook-tls"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
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
    """As the API server does, on a connection of its own, believing that bundle alone. Raises aiohttp.ClientError."""
    context = ssl.create_default_context(cadata=bundle)
    url = f"https://{HOST}:{port}/mutate"
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session,
        session.post(url, data=json.dumps(body)) as answer,
    ):
        answer.raise_for_status()
        told: dict[str, Any] = await answer.json()
        return told


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 (what it waits for tells nobody)
            await asyncio.sleep(0.01)


def write(folder: Path, made: Made) -> None:
    (folder / "tls.crt").write_text(made.certificate)
    (folder / "tls.key").write_text(made.key)


async def test_files_are_served_and_a_renewed_pair_from_the_next_connection_on(tmp_path: Path) -> None:
    first, second = await openssl.make([HOST], LIFE_S), await openssl.make([HOST], LIFE_S)
    async with listening() as (serving, port):
        keeper = asyncio.create_task(Files(tmp_path, serving, every_s=0.01).run())
        assert not serving.is_ready
        write(tmp_path, first)
        await until(lambda: serving.is_ready)
        assert (await ask(port, first.authority))["response"]["allowed"]
        # When half of the new pair is there, then the former one is served on
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


class Replica:
    def __init__(self, api: FakeApi, folder: Path, serving: Serving, now: Callable[[], float]) -> None:
        folder.mkdir()
        kinds = ("mutatingwebhookconfigurations/hook", "validatingwebhookconfigurations/hook")
        settings = SelfMadeSettings("system", "hook-tls", [HOST], kinds, folder)
        self.keeper = SelfMade(settings, api, serving, now)


def an_api() -> FakeApi:
    api = FakeApi()
    webhook = {"name": "inject.understudy.dev", "clientConfig": {"service": {"name": "hook"}}}
    metadata = {"annotations": {"understudy.dev/certificates": "SelfMade"}}
    api.put(
        f"{CONFIGURATIONS}/mutatingwebhookconfigurations/hook", {"metadata": metadata, "webhooks": [webhook, webhook]}
    )
    return api


def trusted(api: FakeApi) -> str:
    (bundle,) = {
        x["clientConfig"]["caBundle"]
        for x in api.objects[f"{CONFIGURATIONS}/mutatingwebhookconfigurations/hook"]["webhooks"]
    }
    return base64.b64decode(bundle).decode()


async def test_two_replicas_share_a_certificate_that_the_first_makes_and_the_api_server_trusts_it(
    tmp_path: Path,
) -> None:
    api = an_api()
    async with listening() as (one, port), listening() as (two, other_port):
        now = 1_790_000_000.0
        first = Replica(api, tmp_path / "a", one, lambda: now)
        second = Replica(api, tmp_path / "b", two, lambda: now)
        await first.keeper.once()
        await second.keeper.once()
        assert [path for method, path in api.calls if method == "POST"] == [SECRET]
        for each in (port, other_port):
            assert (await ask(each, trusted(api)))["response"]["allowed"]


async def test_a_renewal_leaves_no_moment_in_which_a_replica_is_not_trusted(tmp_path: Path) -> None:
    api = an_api()
    times = [0.0]
    async with listening() as (one, port), listening() as (two, other_port):
        first = Replica(api, tmp_path / "a", one, lambda: times[0])
        second = Replica(api, tmp_path / "b", two, lambda: times[0])
        await first.keeper.once()
        await second.keeper.once()
        former = trusted(api)
        until_s = await openssl.ends_at(base64.b64decode(api.objects[SECRET]["data"]["tls.crt"]).decode())
        # Given two thirds of its life are over, when the first replica looks
        times[0] = until_s - LIFE_S / 3 + 1
        await first.keeper.once()
        # Then both are believed, whatever each of them serves
        for each in (port, other_port):
            assert (await ask(each, trusted(api)))["response"]["allowed"]
        assert trusted(api) != former
        # And the other replica, which finds it done, gives the API server the time to hear of it, too
        times[0] = 0.0  # openssl has dated it by the machine's clock
        await first.keeper.once()
        await second.keeper.once()
        assert (await ask(other_port, former))["response"]["allowed"]
        # And after the next look of each the new one is served by both
        await second.keeper.once()
        for each in (port, other_port):
            assert (await ask(each, first_of(trusted(api))))["response"]["allowed"]
        assert one.is_ready


async def test_of_two_that_renew_at_once_one_wins_and_the_other_takes_what_it_made(tmp_path: Path) -> None:
    api = an_api()
    async with listening() as (one, port), listening() as (two, other_port):
        first = Replica(api, tmp_path / "a", one, lambda: 1_790_000_000.0)
        second = Replica(api, tmp_path / "b", two, lambda: 1_790_000_000.0)
        await asyncio.gather(first.keeper.once(), second.keeper.once())
        await asyncio.gather(first.keeper.once(), second.keeper.once())
        for each in (port, other_port):
            assert (await ask(each, trusted(api)))["response"]["allowed"]


async def test_a_trust_that_somebody_has_removed_comes_back(tmp_path: Path) -> None:
    api = an_api()
    async with listening() as (serving, _):
        replica = Replica(api, tmp_path / "a", serving, lambda: 1_790_000_000.0)
        await replica.keeper.once()
        bundle = trusted(api)
        for webhook in api.objects[f"{CONFIGURATIONS}/mutatingwebhookconfigurations/hook"]["webhooks"]:
            del webhook["clientConfig"]["caBundle"]
        await replica.keeper.once()
        assert trusted(api) == bundle


async def test_after_a_change_of_mode_a_replica_of_the_former_mode_leaves_the_new_trust_alone(tmp_path: Path) -> None:
    # given a replica that makes its certificate, and has it trusted
    api = an_api()
    async with listening() as (serving, _):
        replica = Replica(api, tmp_path / "a", serving, lambda: 1_790_000_000.0)
        await replica.keeper.once()
        # when the chart sets another mode and its caBundle, and that replica still runs
        configuration = api.objects[f"{CONFIGURATIONS}/mutatingwebhookconfigurations/hook"]
        configuration["metadata"]["annotations"]["understudy.dev/certificates"] = "Provided"
        for webhook in configuration["webhooks"]:
            webhook["clientConfig"]["caBundle"] = base64.b64encode(b"theirs").decode()
        await replica.keeper.once()
        # then the API server trusts what the chart has set
        assert trusted(api) == "theirs"


async def test_a_secret_without_a_certificate_is_made_anew(tmp_path: Path) -> None:
    api = an_api()
    api.put(SECRET, {"kind": "Secret", "metadata": {"name": "hook-tls"}, "data": {"tls.crt": "bm8="}})
    async with listening() as (serving, port):
        await Replica(api, tmp_path / "a", serving, lambda: 1_790_000_000.0).keeper.once()
        assert (await ask(port, trusted(api)))["response"]["allowed"]


async def test_a_secret_that_cert_manager_keeps_is_not_written_and_not_served(tmp_path: Path) -> None:
    # Given one without ca.crt, as its ACME issuers make them: for us there would be nothing in it to go on with
    api = an_api()
    annotations = {"cert-manager.io/certificate-name": "hook"}
    kept = {"kind": "Secret", "metadata": {"name": "hook-tls", "annotations": annotations}, "data": {"tls.crt": "bm8="}}
    api.put(SECRET, kept)
    async with listening() as (serving, _):
        # When the webhook, which is to make its own, finds it, then it says whose it is, and what to do
        with pytest.raises(KeptByAnother, match=r"hook-tls is kept by cert-manager \(Certificate hook\): delete it"):
            await Replica(api, tmp_path / "a", serving, lambda: 1_790_000_000.0).keeper.once()
        assert api.objects[SECRET]["data"] == kept["data"]
        assert {method for method, _ in api.calls} == {"GET"}
        assert not serving.is_ready


async def test_a_server_answers_garbage_with_400_and_lives(tmp_path: Path) -> None:
    made = await openssl.make([HOST], LIFE_S)
    write(tmp_path, made)
    async with listening() as (serving, port):
        serving.load(tmp_path / "tls.crt", tmp_path / "tls.key")
        with pytest.raises(aiohttp.ClientResponseError, match="400"):
            await ask(port, made.authority, {"not": "a review"})
        assert (await ask(port, made.authority))["response"]["allowed"]


def test_a_certificate_is_due_once_a_third_of_its_life_is_left() -> None:
    made = Made("c", "k", "a", until=1000 + LIFE_S)
    assert not is_due(made, 1000)
    assert not is_due(made, 1000 + LIFE_S * 2 / 3 - 1)
    assert is_due(made, 1000 + LIFE_S * 2 / 3 + 1)
    assert is_due(None, 1000)


def test_a_configuration_that_trusts_it_already_or_that_another_keeps_is_not_written() -> None:
    own = {"annotations": {"understudy.dev/certificates": "SelfMade"}}
    assert with_bundle({"metadata": own, "webhooks": [{"clientConfig": {"caBundle": "QQ=="}}]}, "QQ==") is None
    assert with_bundle({"metadata": own, "webhooks": [{"clientConfig": {}}]}, "QQ==") == {
        "metadata": own,
        "webhooks": [{"clientConfig": {"caBundle": "QQ=="}}],
    }
    for other in ({}, {"annotations": None}, {"annotations": {"understudy.dev/certificates": "Provided"}}):
        assert with_bundle({"metadata": other, "webhooks": [{"clientConfig": {}}]}, "QQ==") is None
