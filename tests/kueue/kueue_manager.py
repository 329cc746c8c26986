"""Kueue's manager in its own process; the test plays the rest of a cluster.

There is no Service network: its webhooks' Service is an external name for this machine. There is no kubelet either: the
manager creates a certificate and stores it in a Secret, and the test copies it into the manager's folder.
"""

import base64
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.integration.conftest import ApiServer, running
from tests.kueue.build import Built
from tests.ports import free_port

SYSTEM = "kueue-system"
SERVICE, SECRET = "kueue-webhook-service", "kueue-webhook-server-cert"
#: Only kinds that exist here.
PATHS = ("--v1-pod", "-batch-v1-job", "-kueue-x-k8s-io-")
CONVERTED = ("localqueues", "clusterqueues", "workloads", "cohorts", "multikueueclusters")
START_LIMIT_S = 240.0
#: Without validation: reading the schemas of all kinds takes half a minute on a busy machine.
APPLY = ("apply", "--server-side", "--validate=false", "-f", "-")


@contextmanager
def manager(built: Built, api_server: ApiServer, folder: Path) -> Iterator[None]:
    """The manager, ready to admit."""
    port = free_port()
    apply(api_server, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}])
    apply(api_server, [service(), {**secret(), "type": "Opaque"}, *crds(built, port)])
    apply(api_server, webhooks(built, port))
    certificates = folder / "certificates"
    certificates.mkdir()
    health, config = free_port(), folder / "config.yaml"
    config.write_text(json.dumps(configuration(port, health, certificates)))
    log = folder / "manager.log"
    command = [str(built.manager), f"--config={config}", f"--kubeconfig={api_server.kubeconfig}"]
    with running(command, log) as process:
        deadline = time.monotonic() + START_LIMIT_S
        while not ready(api_server, certificates):
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.2)
        yield


def ready(api_server: ApiServer, certificates: Path) -> bool:
    """Whether its webhooks answer: they accept a queue's flavor. Meanwhile copies its certificate."""
    result = api_server.kubectl("-n", SYSTEM, "get", "secret", SECRET, "-o", "json")
    files: dict[str, str] = json.loads(result.stdout).get("data", {}) if result.returncode == 0 else {}
    for name, content in files.items():
        file = certificates / name
        if not file.exists() or file.read_bytes() != base64.b64decode(content):
            file.write_bytes(base64.b64decode(content))
    return api_server.kubectl(*APPLY, stdin=json.dumps(flavor())).returncode == 0


def apply(api_server: ApiServer, objects: list[dict[str, Any]]) -> None:
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    done: subprocess.CompletedProcess[str] = api_server.kubectl(*APPLY, stdin=listed)
    assert done.returncode == 0, done.stderr


def service() -> dict[str, Any]:
    spec = {"type": "ExternalName", "externalName": "localhost"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVICE, "namespace": SYSTEM}, "spec": spec}


def secret() -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET, "namespace": SYSTEM}}


def flavor() -> dict[str, Any]:
    api_version = "kueue.x-k8s.io/v1beta2"
    return {"apiVersion": api_version, "kind": "ResourceFlavor", "metadata": {"name": "nodes"}, "spec": {}}


def crds(built: Built, port: int) -> list[dict[str, Any]]:
    found = [yaml.safe_load(path.read_text()) for path in sorted(built.crds.glob("*.yaml"))]
    where = {"service": {"name": SERVICE, "namespace": SYSTEM, "path": "/convert", "port": port}}
    for crd in found:
        if crd["spec"]["names"]["plural"] in CONVERTED:
            webhook = {"clientConfig": where, "conversionReviewVersions": ["v1"]}
            crd["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
    return found


def webhooks(built: Built, port: int) -> list[dict[str, Any]]:
    found = list(yaml.safe_load_all(built.webhooks.read_text()))
    for configuration in found:
        configuration["metadata"]["name"] = f"kueue-{configuration['metadata']['name']}"
        kept = []
        for webhook in configuration["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            if any(path.removeprefix("/mutate").removeprefix("/validate").startswith(kind) for kind in PATHS):
                webhook["clientConfig"]["service"] = {"name": SERVICE, "namespace": SYSTEM, "path": path, "port": port}
                kept.append(webhook)
        configuration["webhooks"] = kept
    return found


def configuration(port: int, health: int, certificates: Path) -> dict[str, Any]:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": SYSTEM,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": True, "webhookServiceName": SERVICE, "webhookSecretName": SECRET},
        "featureGates": {"VisibilityOnDemand": False},
        "integrations": {"frameworks": ["batch/job", "pod"]},
    }
