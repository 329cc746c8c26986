"""The process that renews the webhook's own certificate: real openssl, and servers that mount its Secret."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.unit.charts.certificates import Mounted
from tests.unit.operator.fake_api import FakeApi
from tests.unit.webhook.test_certificates import HOST, ask, listening, until
from understudy_webhook import openssl
from understudy_webhook.certificates import CertificateFiles
from understudy_webhook.keeper import CertificateKeeper, KeeperSettings, ManagedByAnother, settings_for
from understudy_webhook.rotation import CertificateSet, first_of, is_renewal_due, with_bundle

LIFE_S = 90 * 24 * 3600.0

SECRET = "/api/v1/namespaces/system/secrets/hook-tls"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
CONFIGURATION = f"{CONFIGURATIONS}/mutatingwebhookconfigurations/hook"
KINDS = ("mutatingwebhookconfigurations/hook", "validatingwebhookconfigurations/hook")
NOW = 1_790_000_000.0


def an_api() -> FakeApi:
    api = FakeApi()
    webhook = {"name": "inject.understudy.dev", "clientConfig": {"service": {"name": "hook"}}}
    metadata = {"annotations": {"understudy.dev/certificate-mode": "SelfSigned"}}
    api.put(CONFIGURATION, {"metadata": metadata, "webhooks": [webhook, webhook]})
    return api


def a_keeper(api: FakeApi, now: Callable[[], float] = lambda: NOW) -> CertificateKeeper:
    return CertificateKeeper(KeeperSettings("system", "hook-tls", [HOST], KINDS, settle_s=0.0), api, now)


def trusted(api: FakeApi) -> str:
    (bundle,) = {x["clientConfig"]["caBundle"] for x in api.objects[CONFIGURATION]["webhooks"]}
    return base64.b64decode(bundle).decode()


def served(api: FakeApi) -> dict[str, str]:
    """The certificate in the Secret."""
    return {name: base64.b64decode(text).decode() for name, text in api.objects[SECRET]["data"].items()}


class Replica:
    """A replica of the webhook. The test decides when a kubelet updates the Secret in its folder."""

    def __init__(self, port: int, mounted: Mounted) -> None:
        self.port, self.mounted = port, mounted

    async def answers(self, bundle: str) -> bool:
        return bool((await ask(self.port, bundle))["response"]["allowed"])


@asynccontextmanager
async def replicas(api: FakeApi, folder: Path) -> AsyncIterator[list[Replica]]:
    async with listening() as (one, port), listening() as (two, other_port):
        mounted = [Mounted(folder / name) for name in ("a", "b")]
        for each in mounted:
            each.write(served(api))
        files = [
            CertificateFiles(x.folder, serving, every_s=0.01) for x, serving in zip(mounted, (one, two), strict=True)
        ]
        tasks = [asyncio.create_task(each.run()) for each in files]
        await until(lambda: one.is_ready and two.is_ready)
        yield [Replica(port, mounted[0]), Replica(other_port, mounted[1])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_all_replicas_serve_the_secrets_certificate_and_the_api_server_trusts_it(tmp_path: Path) -> None:
    api = an_api()
    await a_keeper(api).run_once()
    async with replicas(api, tmp_path) as both:
        for replica in both:
            assert await replica.answers(trusted(api))


async def test_the_api_server_trusts_an_authority_before_the_secret_has_its_certificate() -> None:
    # when the first certificate is created, and then renewed
    api, times = an_api(), [NOW]
    keeper = a_keeper(api, lambda: times[0])
    await keeper.run_once()
    times[0] = await openssl.ends_at(served(api)["tls.crt"]) - LIFE_S / 3 + 1
    await keeper.run_once()
    # then each time the configuration was written first
    writes = [path for method, path in api.calls if method in ("POST", "PUT")]
    assert writes == [CONFIGURATION, SECRET, CONFIGURATION, SECRET]


async def test_all_replicas_are_trusted_at_each_moment_of_a_renewal(tmp_path: Path) -> None:
    # given two replicas, and a certificate after two thirds of its lifetime
    api, times = an_api(), [NOW]
    keeper = a_keeper(api, lambda: times[0])
    await keeper.run_once()
    previous = trusted(api)
    async with replicas(api, tmp_path) as both:
        times[0] = await openssl.ends_at(served(api)["tls.crt"]) - LIFE_S / 3 + 1
        # when it is renewed, and one of the replicas has the new one
        await keeper.run_once()
        assert first_of(trusted(api)) != first_of(previous)
        both[0].mounted.write(served(api))
        async with asyncio.timeout(10):
            while not await _answers(both[0], first_of(trusted(api))):  # noqa: ASYNC110 (nothing tells of it)
                await asyncio.sleep(0.01)
        # then both are trusted, although they serve different certificates
        for replica in both:
            assert await replica.answers(trusted(api))
        assert await both[1].answers(previous)


async def _answers(replica: Replica, bundle: str) -> bool:
    try:
        return await replica.answers(bundle)
    except OSError:
        return False


async def test_a_keeper_that_ends_before_it_writes_the_secret_does_not_change_the_served_certificate(
    tmp_path: Path,
) -> None:
    # given a renewal that ends between the two writes
    api, times = an_api(), [NOW]
    keeper = a_keeper(api, lambda: times[0])
    await keeper.run_once()
    async with replicas(api, tmp_path) as both:
        times[0] = await openssl.ends_at(served(api)["tls.crt"]) - LIFE_S / 3 + 1
        api.deny = lambda method, path: OSError("killed") if (method, path) == ("PUT", SECRET) else None
        with pytest.raises(OSError, match="killed"):
            await keeper.run_once()
        # then the certificates of the replicas are trusted
        for replica in both:
            assert await replica.answers(trusted(api))
        # and so they are after the next keeper has renewed the certificate
        api.deny = lambda *_: None
        await a_keeper(api, lambda: times[0]).run_once()
        for replica in both:
            assert await replica.answers(trusted(api))


async def test_if_two_keepers_renew_at_once_one_wins_and_the_other_trusts_its_certificate(tmp_path: Path) -> None:
    api = an_api()
    await asyncio.gather(a_keeper(api).run_once(), a_keeper(api).run_once())
    assert [path for method, path in api.calls if method == "POST"] == [SECRET, SECRET]
    async with replicas(api, tmp_path) as both:
        for replica in both:
            assert await replica.answers(trusted(api))


async def test_a_removed_authority_is_restored() -> None:
    api = an_api()
    keeper = a_keeper(api)
    await keeper.run_once()
    bundle = trusted(api)
    for webhook in api.objects[CONFIGURATION]["webhooks"]:
        del webhook["clientConfig"]["caBundle"]
    await keeper.run_once()
    assert trusted(api) == bundle


async def test_the_keeper_of_a_previous_mode_does_not_change_the_new_authority() -> None:
    # given a certificate that exists and is trusted
    api = an_api()
    keeper = a_keeper(api)
    await keeper.run_once()
    # when the chart sets another mode and its caBundle, and the keeper still runs
    configuration = api.objects[CONFIGURATION]
    configuration["metadata"]["annotations"]["understudy.dev/certificate-mode"] = "Provided"
    for webhook in configuration["webhooks"]:
        webhook["clientConfig"]["caBundle"] = base64.b64encode(b"theirs").decode()
    await keeper.run_once()
    # then the API server trusts the chart's authority
    assert trusted(api) == "theirs"


async def test_a_secret_without_a_certificate_is_replaced() -> None:
    api = an_api()
    api.put(SECRET, {"kind": "Secret", "metadata": {"name": "hook-tls"}, "data": {"tls.crt": "bm8="}})
    await a_keeper(api).run_once()
    assert await openssl.ends_at(served(api)["tls.crt"]) > 0
    assert first_of(served(api)["ca.crt"]) == first_of(trusted(api))


async def test_a_secret_of_cert_manager_is_not_written() -> None:
    # given a Secret without ca.crt, as its ACME issuers create it
    api = an_api()
    annotations = {"cert-manager.io/certificate-name": "hook"}
    kept = {"kind": "Secret", "metadata": {"name": "hook-tls", "annotations": annotations}, "data": {"tls.crt": "bm8="}}
    api.put(SECRET, kept)
    # when the keeper finds it, then the error names its manager, and what to do
    with pytest.raises(ManagedByAnother, match=r"hook-tls is managed by cert-manager \(Certificate hook\): delete it"):
        await a_keeper(api).run_once()
    assert api.objects[SECRET]["data"] == kept["data"]
    assert {method for method, _ in api.calls} == {"GET"}


@pytest.mark.parametrize("wrong", ["", "hook", "system/", "/hook"])
def test_a_webhook_without_namespace_or_name_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="set it to the webhook's namespace/name"):
        settings_for(wrong)


def test_the_webhook_names_the_secret_the_configurations_and_the_hosts() -> None:
    settings = settings_for("system/hook")
    assert (settings.namespace, settings.secret, settings.configurations) == ("system", "hook-tls", KINDS)
    assert settings.names[0] == "hook.system.svc"


def test_a_certificate_is_due_once_a_third_of_its_lifetime_is_left() -> None:
    made = CertificateSet("c", "k", "a", until=1000 + LIFE_S)
    assert not is_renewal_due(made, 1000)
    assert not is_renewal_due(made, 1000 + LIFE_S * 2 / 3 - 1)
    assert is_renewal_due(made, 1000 + LIFE_S * 2 / 3 + 1)
    assert is_renewal_due(None, 1000)


def test_a_configuration_that_trusts_the_certificate_or_has_another_manager_is_not_written() -> None:
    own = {"annotations": {"understudy.dev/certificate-mode": "SelfSigned"}}
    assert with_bundle({"metadata": own, "webhooks": [{"clientConfig": {"caBundle": "QQ=="}}]}, "QQ==") is None
    assert with_bundle({"metadata": own, "webhooks": [{"clientConfig": {}}]}, "QQ==") == {
        "metadata": own,
        "webhooks": [{"clientConfig": {"caBundle": "QQ=="}}],
    }
    for other in ({}, {"annotations": None}, {"annotations": {"understudy.dev/certificate-mode": "Provided"}}):
        assert with_bundle({"metadata": other, "webhooks": [{"clientConfig": {}}]}, "QQ==") is None
