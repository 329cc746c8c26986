"""A private Kubernetes API server for a test session: only etcd and kube-apiserver.

No controller, scheduler or node runs: the API server validates, stores and serves a test's objects, and no more. The
programs are those that tests/cluster builds, or with UNDERSTUDY_KUBERNETES those of another version; ports, data,
certificates and credentials belong to the session, and are deleted after it.
"""

import http.client
import json
import os
import secrets
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.other_kubernetes import server_binaries
from tests.cluster.paths import Paths
from tests.ports import free_port

START_LIMIT_S = 120.0
PROGRAMS = ("etcd", "kube-apiserver", "kubectl")


@dataclass(frozen=True)
class ApiServer:
    """The API server's address, and its client. Each caller is in system:masters."""

    url: str
    token: str
    certificate: Path
    kubeconfig: Path
    binaries: Path

    def kubectl(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run kubectl, and return its exit code and output. The caller checks them."""
        return subprocess.run(
            [self.binaries / "kubectl", f"--cache-dir={self.kubeconfig.parent / 'kubectl-cache'}", *arguments],
            input=stdin,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.kubeconfig.parent),
                "KUBECONFIG": str(self.kubeconfig),
                "GOGC": os.environ.get("GOGC", ""),
            },
            capture_output=True,
            text=True,
            check=False,
        )

    def refusal(self, collection: str, manifest: str) -> str:
        """Why the server rejects the creation of an object, as with `kubectl create --dry-run=server`; "" if it accepts
        it.

        collection: the path at which objects of this kind are created. A request takes a tenth of a kubectl process's
        time.
        """
        host, _, port = self.url.removeprefix("https://").rpartition(":")
        context = ssl.create_default_context(cafile=str(self.certificate))
        connection = http.client.HTTPSConnection(host, int(port), timeout=30, context=context)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        with closing(connection):
            connection.request("POST", f"{collection}?dryRun=All&fieldValidation=Strict", manifest, headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
        return "" if response.status == http.client.CREATED else str(answer["message"])


@pytest.fixture(scope="session")
def api_server() -> Iterator[ApiServer]:
    with an_api_server() as server:
        yield server


@contextmanager
def an_api_server(*flags: str) -> Iterator[ApiServer]:
    """Another one, for tests that change shared objects. flags: additional ones for kube-apiserver."""
    binaries = server_binaries(Paths.from_environment())
    missing = [program for program in PROGRAMS if not (binaries / program).exists()]
    if missing:
        pytest.fail(f"{', '.join(missing)} not in {binaries}: run python -m tests.cluster binaries")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="understudy-api-server-")))
        server = describe_server(folder, binaries, port=free_port())
        etcd_url = f"http://127.0.0.1:{free_port()}"
        stack.enter_context(running(etcd_command(server, folder, etcd_url), folder / "etcd.log"))
        apiserver_log = folder / "kube-apiserver.log"
        apiserver = stack.enter_context(running([*apiserver_command(server, folder, etcd_url), *flags], apiserver_log))
        wait_until_ready(server, apiserver, apiserver_log)
        yield server


def describe_server(folder: Path, binaries: Path, port: int) -> ApiServer:
    """Choose the server's credentials, and write their files."""
    server = ApiServer(
        url=f"https://127.0.0.1:{port}",
        token=secrets.token_urlsafe(32),
        certificate=folder / "certificates" / "apiserver.crt",
        kubeconfig=folder / "kubeconfig",
        binaries=binaries,
    )
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "test", "cluster": {"server": server.url, "certificate-authority": str(server.certificate)}}
        ],
        "users": [{"name": "test", "user": {"token": server.token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
    server.kubeconfig.write_text(json.dumps(kubeconfig))
    (folder / "tokens.csv").write_text(f'{server.token},test,test,"system:masters"\n')
    key = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout"]
    subprocess.run([*key, "-out", folder / "service-accounts.key"], check=True, capture_output=True)
    return server


def etcd_command(server: ApiServer, folder: Path, etcd_url: str) -> list[str]:
    peer_url = f"http://127.0.0.1:{free_port()}"
    return [
        str(server.binaries / "etcd"),
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={etcd_url}",
        f"--advertise-client-urls={etcd_url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=default={peer_url}",
        "--unsafe-no-fsync",
        f"--quota-backend-bytes={1 << 28}",  # etcd maps this much at once, and 10 GB by default
    ]


def apiserver_command(server: ApiServer, folder: Path, etcd_url: str) -> list[str]:
    return [
        str(server.binaries / "kube-apiserver"),
        f"--etcd-servers={etcd_url}",
        "--bind-address=127.0.0.1",
        f"--secure-port={server.url.rpartition(':')[2]}",
        f"--cert-dir={server.certificate.parent}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        f"--service-account-key-file={folder / 'service-accounts.key'}",
        f"--service-account-signing-key-file={folder / 'service-accounts.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--endpoint-reconciler-type=none",
        "--disable-admission-plugins=ServiceAccount",  # no controller creates service accounts here
    ]


@contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program, and kill it afterwards, or when this process dies.

    SIGKILL, because an API server without its etcd hangs in its shutdown.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *command], stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def wait_until_ready(server: ApiServer, apiserver: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while apiserver.poll() is None and time.monotonic() < deadline:
        if all(
            server.kubectl("get", description).returncode == 0 for description in ("--raw=/readyz", "namespace/default")
        ):
            return
        time.sleep(0.2)
    found = "was not ready in time" if apiserver.poll() is None else f"ended with {apiserver.returncode}"
    pytest.fail(f"kube-apiserver {found}. Its log ends with:\n{log.read_text()[-4000:]}")
