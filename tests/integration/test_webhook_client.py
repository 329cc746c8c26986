"""The real API server presents to the webhook the client certificate of its configuration in docs/how-to/install.md."""

import asyncio
import base64
import json
import re
from pathlib import Path

import pytest

from tests.cluster.paths import CHECKOUT
from tests.integration.conftest import ApiServer, an_api_server
from tests.integration.test_chart_applied import must
from tests.ports import free_port
from tests.unit.webhook.golden import IMAGE
from tests.unit.webhook.golden import pod as golden_pod
from tests.unit.webhook.test_certificates import HOST, write
from tests.unit.webhook.test_hostile_callers import called, certificate, results
from understudy_webhook import openssl
from understudy_webhook.rotation import CertificateSet
from understudy_webhook.serving import Clients, Serving

LIFE_S = 90 * 24 * 3600.0

PAGE = CHECKOUT / "docs" / "how-to" / "install.md"
FENCE = re.compile(r"^ *```yaml\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def files_of_the_page(folder: Path, port: int) -> Path:
    """The files in the page's section for the API server, with this folder's paths and this webhook's address."""
    (section,) = [part for part in PAGE.read_text().split("\n## ") if part.startswith("Callers of the webhook")]
    admission, kubeconfig = FENCE.findall(section)
    config, kube = folder / "admission.yaml", folder / "webhooks.kubeconfig"
    config.write_text(admission.replace("/etc/kubernetes/webhooks.kubeconfig", str(kube)))
    kube.write_text(
        kubeconfig.replace("understudy-webhook.understudy-system.svc", f"{HOST}:{port}")
        .replace("/etc/kubernetes/pki/webhook-client.crt", str(folder / "ours" / "crt"))
        .replace("/etc/kubernetes/pki/webhook-client.key", str(folder / "ours" / "key"))
    )
    assert str(folder) in config.read_text()
    assert kube.read_text().count(str(folder)) == 2
    return config


def configured(server: ApiServer, port: int, made: CertificateSet) -> str:
    """The output of kubectl, which applies a configuration that calls this webhook for all labelled pods."""
    bundle = base64.b64encode(made.authority.encode()).decode()
    webhook = {
        "name": "inject.understudy.dev",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "timeoutSeconds": 5,
        "clientConfig": {"url": f"https://{HOST}:{port}/mutate", "caBundle": bundle},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "objectSelector": {"matchLabels": {"understudy.dev/inject": "enabled"}},
    }
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
    whole = {**kind, "metadata": {"name": "hook"}, "webhooks": [webhook]}
    return server.kubectl("apply", "-f", "-", stdin=json.dumps(whole)).stdout


def injected(server: ApiServer, field: str = "name") -> str:
    """Names of a dry-run pod's init containers, or another field of theirs, or the error."""
    words = ("create", "--dry-run=server", "-o", f"jsonpath={{.spec.initContainers[*].{field}}}", "-f", "-")
    pod = golden_pod("job") | {"apiVersion": "v1", "kind": "Pod"}
    pod["metadata"]["namespace"] = "default"
    result = server.kubectl(*words, stdin=json.dumps(pod))
    return result.stdout or result.stderr


@pytest.mark.attack(
    "D2",
    "calls the webhook as a pod, beside an API server with a client certificate",
    before="every caller got an answer",
)
async def test_the_api_server_presents_the_pages_certificate_and_other_callers_get_no_answer(
    tmp_path: Path,
) -> None:
    # given the API server as the page configures it, and the webhook with the certificate's authority
    port = free_port()
    _, authority = await certificate(tmp_path / "ours", "kube-apiserver")
    config = files_of_the_page(tmp_path, port)
    made = await openssl.make_certificate([HOST], LIFE_S)
    write(tmp_path, made)
    serving = Serving(IMAGE, clients=Clients(authority, frozenset({"kube-apiserver"})))
    serving.load(tmp_path / "tls.crt", tmp_path / "tls.key")
    await serving.listen(port)
    try:
        with an_api_server(f"--admission-control-config-file={config}") as server:
            assert "created" in await asyncio.to_thread(configured, server, port, made)
            async with asyncio.timeout(30):
                while (found := await asyncio.to_thread(injected, server)) == "":
                    pass  # the API server needs a moment to load its configuration
            # then its call is answered, and a pod's call is not
            assert found.split()[0] == "understudy-sidecar"
            assert await called(port, made, None) == "no answer"
    finally:
        await serving.close()
    assert set(results(serving)) == {"Injected"}


async def test_a_reader_of_the_webhooks_secret_that_gets_its_traffic_answers_in_its_place(tmp_path: Path) -> None:
    """A limit that docs/explanation/security.md states."""
    port, made = free_port(), await openssl.make_certificate([HOST], LIFE_S)
    write(tmp_path, made)
    with an_api_server() as server:
        # given an account that can read Secrets in the namespace of the webhook's certificate
        files = (f"--cert={tmp_path / 'tls.crt'}", f"--key={tmp_path / 'tls.key'}")
        must(server.kubectl("create", "secret", "tls", "understudy-webhook-tls", *files))
        must(server.kubectl("create", "role", "reader", "--verb=get", "--resource=secrets"))
        must(server.kubectl("create", "rolebinding", "reader", "--role=reader", "--user=reader"))
        read = must(server.kubectl("get", "secret", "understudy-webhook-tls", "-o", "json", "--as=reader"))
        for name, text in json.loads(read)["data"].items():
            (tmp_path / f"stolen-{name}").write_bytes(base64.b64decode(text))
        # when it serves with this certificate at the address that the API server calls
        serving = Serving("example.com/evil:1")
        serving.load(tmp_path / "stolen-tls.crt", tmp_path / "stolen-tls.key")
        await serving.listen(port)
        try:
            assert "created" in await asyncio.to_thread(configured, server, port, made)
            async with asyncio.timeout(30):
                while (found := await asyncio.to_thread(injected, server, "image")) == "":
                    pass  # the API server needs a moment to load its configuration
        finally:
            await serving.close()
    # then the API server applies its patch to labeled pods
    assert found.split()[0] == "example.com/evil:1"
