"""The chart with a fake cert-manager, which issues and renews its Certificates: two replicas of the webhook that mount
the Secret, and callers that trust the injected CA bundle. Rendered by the real helm, served by the real server.
"""

import asyncio
import re
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.paths import CHECKOUT, Paths
from tests.unit.charts.certificates import CertManager, Mounted, Secret
from tests.unit.webhook.test_certificates import listening
from understudy_webhook.certificates import CertificateFiles

HELM = Paths.from_environment().binaries / "helm"
NAME = "understudy-webhook"
CALLED = f"{NAME}.system.svc"  # the name that the API server calls, and expects in the certificate
MODE = "webhook.certificates.mode=CertManager"
GO_DURATION = re.compile(r"(\d+)([hms])")
Raw = dict[str, Any]


def rendered(*settings: str) -> list[Raw]:
    result = [word for setting in (MODE, *settings) for word in ("--set", setting)]
    command = [
        str(HELM),
        "template",
        "understudy",
        str(CHECKOUT / "charts/understudy"),
        "--namespace",
        "system",
        *result,
    ]
    done = subprocess.run([*command, "--set", "crds.enabled=false"], check=True, capture_output=True, text=True)
    return [item for item in yaml.safe_load_all(done.stdout) if item]


def only(items: list[Raw], kind: str, name: str = NAME) -> Raw:
    (found,) = [item for item in items if (item["kind"], item["metadata"]["name"]) == (kind, name)]
    return found


def configurations(items: list[Raw]) -> list[Raw]:
    found = [item for item in items if item["kind"].endswith("WebhookConfiguration")]
    assert len(found) == 2
    return found


def seconds(duration: str) -> int:
    return sum(int(number) * {"h": 3600, "m": 60, "s": 1}[unit] for number, unit in GO_DURATION.findall(duration))


async def shown(port: int, bundle: str) -> bytes:
    """The certificate that a caller receives, with only that bundle as trust. Raises SSLCertVerificationError."""
    context = ssl.create_default_context(cadata=bundle)
    _, writer = await asyncio.open_connection("localhost", port, ssl=context, server_hostname=CALLED)
    certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return certificate


def der(certificate: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificate)


@dataclass
class Replica:
    port: int
    mounted: Mounted

    async def until_shows(self, certificate: str, bundle: str) -> None:
        async with asyncio.timeout(10):
            while await shown(self.port, bundle) != der(certificate):  # noqa: ASYNC110 (what it waits for tells nobody)
                await asyncio.sleep(0.01)


@asynccontextmanager
async def two_replicas(folder: Path, secret: Secret) -> AsyncIterator[list[Replica]]:
    async with AsyncExitStack() as stack:
        replicas, keepers = [], []
        for name in ("a", "b"):
            mounted = Mounted(folder / name)
            mounted.write(secret)
            serving, port = await stack.enter_async_context(listening())
            keepers.append(asyncio.create_task(CertificateFiles(mounted.folder, serving, every_s=0.01).run()))
            replicas.append(Replica(port, mounted))
            async with asyncio.timeout(10):
                while not serving.is_ready:  # noqa: ASYNC110 (what it waits for tells nobody)
                    await asyncio.sleep(0.01)
        try:
            yield replicas
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)


async def test_a_renewed_certificate_is_loaded_without_a_restart_and_always_trusted(tmp_path: Path) -> None:
    # given cert-manager's certificate for the chart's objects, in the Secret that the pods mount
    items = rendered()
    (volume,) = only(items, "Deployment")["spec"]["template"]["spec"]["volumes"]
    issuer = CertManager(items, tmp_path)
    first = await issuer.issue(NAME)
    assert issuer.secrets[volume["secret"]["secretName"]] == first
    previous_bundle, also = map(issuer.bundle, configurations(items))
    assert previous_bundle == also
    async with two_replicas(tmp_path, first) as (one, other):
        for replica in (one, other):
            assert await shown(replica.port, previous_bundle) == der(first["tls.crt"])
        # when it is renewed, and has arrived on the node of one replica
        second = await issuer.issue(NAME)
        assert second["tls.key"] != first["tls.key"]
        one.mounted.write(second)
        await one.until_shows(second["tls.crt"], previous_bundle)
        # then both are trusted, with the previous caBundle and with the next one
        newer_bundle = issuer.bundle(configurations(items)[0])
        for bundle in (previous_bundle, newer_bundle):
            assert await shown(one.port, bundle) == der(second["tls.crt"])
            assert await shown(other.port, bundle) == der(first["tls.crt"])
        # and the other replica loads it, too
        other.mounted.write(second)
        await other.until_shows(second["tls.crt"], newer_bundle)


async def test_certificates_are_trusted_under_the_previous_and_the_renewed_authority(tmp_path: Path) -> None:
    items = rendered()
    issuer = CertManager(items, tmp_path)
    first = await issuer.issue(NAME)
    async with two_replicas(tmp_path, first) as (one, other):
        # when the authority is renewed, and then the certificate
        authority = await issuer.issue(f"{NAME}-ca")
        assert authority["tls.crt"] != first["ca.crt"]
        second = await issuer.issue(NAME)
        assert second["ca.crt"] == authority["tls.crt"]
        one.mounted.write(second)
        # then each is trusted under each
        await one.until_shows(second["tls.crt"], first["ca.crt"])
        for bundle in (first["ca.crt"], second["ca.crt"]):
            assert await shown(one.port, bundle) == der(second["tls.crt"])
            assert await shown(other.port, bundle) == der(first["tls.crt"])


async def test_the_certificate_of_another_installation_is_not_trusted(tmp_path: Path) -> None:
    # given two installations of it
    items = rendered()
    one, stranger = (CertManager(items, tmp_path) for _ in range(2))
    served, other = await one.issue(NAME), await stranger.issue(NAME)
    async with two_replicas(tmp_path, served) as replicas:
        with pytest.raises(ssl.SSLCertVerificationError):
            await shown(replicas[0].port, other["ca.crt"])


def test_a_certificate_has_its_usages_and_is_renewed_in_time() -> None:
    spec = only(rendered(), "Certificate")["spec"]
    assert "server auth" in spec["usages"]
    assert spec["dnsNames"] == [CALLED, f"{CALLED}.cluster.local"]
    assert spec["privateKey"]["rotationPolicy"] == "Always"
    # the alert fires a week before the certificate expires
    assert 7 * 86400 < seconds(spec["renewBefore"]) < seconds(spec["duration"]) / 2
    authority = only(rendered(), "Certificate", f"{NAME}-ca")["spec"]
    assert (authority["isCA"], "cert sign" in authority["usages"]) == (True, True)
    # the authority is valid for longer than any certificate that it has signed
    assert seconds(authority["renewBefore"]) > 2 * seconds(spec["duration"])


async def test_without_a_configured_issuer_the_authoritys_key_is_in_a_secret_of_the_release(tmp_path: Path) -> None:
    """A limit that docs/explanation/security.md states."""
    items = rendered()
    issuer = CertManager(items, tmp_path)
    await issuer.issue(NAME)
    # given the issuer of the webhook's certificate, then the Secret of its key is in its namespace, that of the release
    authority = only(items, "Issuer", f"{NAME}-ca")
    assert authority["metadata"]["namespace"] == "system"
    assert "PRIVATE KEY" in issuer.secrets[authority["spec"]["ca"]["secretName"]]["tls.key"]


def test_a_configured_issuer_is_used_and_no_other_is_created() -> None:
    result = (
        "webhook.certificates.issuerRef.kind=ClusterIssuer",
        "webhook.certificates.issuerRef.name=internal",
        "webhook.certificates.duration=24h",
        "webhook.certificates.renewBefore=8h30m",
    )
    items = rendered(*result)
    spec = only(items, "Certificate")["spec"]
    assert spec["issuerRef"] == {"kind": "ClusterIssuer", "name": "internal"}
    assert (spec["duration"], spec["renewBefore"]) == ("24h", "8h30m")
    assert [item["kind"] for item in items if item["apiVersion"] == "cert-manager.io/v1"] == ["Certificate"]


def test_the_chart_does_not_write_to_a_secret_of_cert_manager() -> None:
    items = rendered()
    kept = {item["spec"]["secretName"] for item in items if item["kind"] == "Certificate"}
    assert kept.isdisjoint(item["metadata"]["name"] for item in items if item["kind"] == "Secret")
    # and its name differs from that of a self-signed certificate's Secret, if the mode is changed
    deployment = only(rendered("webhook.certificates.mode=SelfSigned"), "Deployment")
    (volume,) = deployment["spec"]["template"]["spec"]["volumes"]
    assert volume["secret"]["secretName"] not in kept
