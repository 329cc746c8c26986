"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler, on the host.

They listen on the LAN's address (etcd only on the loopback). Order matters: each is
ready before the next one starts, because otherwise they sometimes hung. An apiserver
whose etcd is gone hangs in its shutdown, so if etcd dies, the apiserver is ended first, by
SIGKILL. Default admission plugins, Node and RBAC authorization, certificates everywhere.
"""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import audit
from .api import ADMIN, PORT, SERVER, Api
from .certificates import Authority, Certificate
from .cgroups import CONTROL_PLANE_CPU_SHARES, ControlGroup, machine
from .commands import Progress, wait_until
from .failures import ClusterDown
from .network import API_SERVICE_IP, CONTROL_PLANE_IP, SERVICE_NETWORK
from .paths import Paths
from .processes import Component, Processes

# Not the usual ports: other tests on this machine may start an etcd of their own.
ETCD_PORT = 22379
ETCD_PEER_PORT = 22380
READY_LIMIT_S = 90
# A node counts as lost this long after its last heartbeat; see node.py for the kubelet's side.
NODE_MONITOR_GRACE_S = 16

SERVING = Certificate(
    "kube-apiserver",
    "kube-apiserver",
    addresses=(
        f"IP:{CONTROL_PLANE_IP}",
        f"IP:{API_SERVICE_IP}",
        "DNS:kubernetes",
        "DNS:kubernetes.default",
        "DNS:kubernetes.default.svc",
        "DNS:kubernetes.default.svc.cluster.local",
    ),
)
KUBELET_CLIENT = Certificate("apiserver-kubelet-client", "kube-apiserver-kubelet-client", "system:masters")
CONTROLLER_MANAGER = Certificate("controller-manager", "system:kube-controller-manager")
SCHEDULER = Certificate("scheduler", "system:kube-scheduler")


@dataclass(frozen=True)
class ControlPlane:
    """The four programs of the control plane."""

    paths: Paths
    processes: Processes

    @property
    def authority(self) -> Authority:
        return Authority(self.paths.pki)

    @property
    def components(self) -> list[str]:
        return ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]

    def ensure(self, progress: Progress) -> None:
        """Ensure that every program runs and is ready. Raises ComponentFailed with its last log lines."""
        self.authority.ensure()
        self.authority.kubeconfig(self.paths.kubeconfig, SERVER, ADMIN)
        if self.processes.running("etcd") is None:
            self.processes.end("kube-apiserver", _group("kube-apiserver"), str(self.paths.binaries / "kube-apiserver"))
        self._start(self._etcd(), _etcd_is_healthy, progress)
        self._start(self._apiserver(), Api(self.paths.pki).ready, progress)
        self._start(self._controller_manager(), None, progress)
        self._start(self._scheduler(), None, progress)
        self._wait_until_usable()

    def stop(self, name: str) -> None:
        """End one of the components, at once; `ensure` starts it again."""
        self.processes.end(name, _group(name), str(self.paths.binaries / name))

    def _wait_until_usable(self) -> None:
        """Wait until the controllers have created the objects that every pod of the default namespace needs."""
        api = Api(self.paths.pki)

        def usable() -> bool:
            self.processes.check_alive("kube-controller-manager")
            with contextlib.suppress(ClusterDown):
                api.get("/api/v1/namespaces/default/serviceaccounts/default")
                api.get("/api/v1/namespaces/default/configmaps/kube-root-ca.crt")
                return True
            return False

        wait_until(
            usable,
            limit_s=READY_LIMIT_S,
            failure=lambda: self.processes.failure(
                "kube-controller-manager", f"made no service account in {READY_LIMIT_S} s"
            ),
        )

    def _start(self, component: Component, ready: Callable[[], bool] | None, progress: Progress) -> None:
        started = self.processes.ensure(component)
        group = machine("control-plane")
        group.take_cpu_time_of(self.processes.check_alive(component.name).pid)
        group.set_cpu_shares(CONTROL_PLANE_CPU_SHARES)
        if started:
            progress.report(f"{component.name} started")

        def is_ready() -> bool:
            self.processes.check_alive(component.name)
            return ready is None or ready()

        wait_until(
            is_ready,
            limit_s=READY_LIMIT_S,
            failure=lambda: self.processes.failure(component.name, f"was not ready within {READY_LIMIT_S} s"),
        )
        if started and ready:
            progress.report(f"{component.name} ready")

    def _component(self, name: str, *flags: str, configuration: str = "") -> Component:
        return Component(name, _group(name), [self.paths.binaries / name, *flags], configuration)

    def _etcd(self) -> Component:
        url = f"http://127.0.0.1:{ETCD_PORT}"
        return self._component(
            "etcd", f"--data-dir={self.paths.etcd}", "--log-level=warn",
            f"--listen-client-urls={url}", f"--advertise-client-urls={url}", f"--listen-peer-urls=http://127.0.0.1:{ETCD_PEER_PORT}",
            # A power loss may lose a test cluster; waiting for the disk would take longer.
            "--unsafe-no-fsync",
        )  # fmt: skip

    def _apiserver(self) -> Component:
        authority = self.authority
        certificate, key = authority.issue(SERVING)
        client_certificate, client_key = authority.issue(KUBELET_CLIENT)
        policy = self.paths.state / "audit-policy.json"
        policy.write_text(json.dumps(audit.POLICY))
        return self._component(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{ETCD_PORT}",
            f"--bind-address={CONTROL_PLANE_IP}", f"--advertise-address={CONTROL_PLANE_IP}", f"--secure-port={PORT}",
            f"--service-cluster-ip-range={SERVICE_NETWORK}",
            f"--client-ca-file={authority.certificate}",
            f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}",
            "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction,PodNodeSelector",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={authority.service_account_public_key}",
            f"--service-account-signing-key-file={authority.service_account_key}",
            f"--kubelet-certificate-authority={authority.certificate}",
            f"--kubelet-client-certificate={client_certificate}", f"--kubelet-client-key={client_key}",
            "--kubelet-preferred-address-types=InternalIP",
            # The operator's requests, which tests/e2e/test_access_rights.py compares with its roles.
            f"--audit-policy-file={policy}", f"--audit-log-path={self.paths.audit_log}",
            "--audit-log-maxsize=100", "--audit-log-maxbackup=2",
            # The host has no kube-proxy: a webhook's Service is reached at its pods' addresses.
            "--enable-aggregator-routing=true",
            "--allow-privileged=true", "--profiling=false",
            configuration=certificate.read_text() + client_certificate.read_text() + policy.read_text(),
        )  # fmt: skip

    def _controller_manager(self) -> Component:
        authority = self.authority
        kubeconfig = self._kubeconfig(CONTROLLER_MANAGER)
        return self._component(
            "kube-controller-manager", *_as(kubeconfig), "--bind-address=127.0.0.1", "--leader-elect=false",
            "--use-service-account-credentials", f"--root-ca-file={authority.certificate}",
            f"--service-account-private-key-file={authority.service_account_key}",
            f"--cluster-signing-cert-file={authority.certificate}",
            f"--cluster-signing-key-file={authority.folder / 'ca.key'}",
            f"--cert-dir={self.paths.pki / 'controller-manager'}",
            f"--node-monitor-grace-period={NODE_MONITOR_GRACE_S}s", "--node-monitor-period=2s",
            "--profiling=false",
            configuration=kubeconfig.read_text(),
        )  # fmt: skip

    def _scheduler(self) -> Component:
        kubeconfig = self._kubeconfig(SCHEDULER)
        return self._component(
            "kube-scheduler", *_as(kubeconfig), "--bind-address=127.0.0.1", "--leader-elect=false",
            f"--cert-dir={self.paths.pki / 'scheduler'}", "--profiling=false",
            configuration=kubeconfig.read_text(),
        )  # fmt: skip

    def _kubeconfig(self, user: Certificate) -> Path:
        return self.authority.kubeconfig(self.paths.pki / f"{user.name}.kubeconfig", SERVER, user)


def _as(kubeconfig: Path) -> list[str]:
    names = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
    return [f"--{name}={kubeconfig}" for name in names]


def _group(name: str) -> ControlGroup:
    return machine("control-plane").child(name)


def _etcd_is_healthy() -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", ETCD_PORT, timeout=2)
    try:
        connection.request("GET", "/health")
        return b'"true"' in connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
