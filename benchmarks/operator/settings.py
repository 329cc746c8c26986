"""The configuration of the cluster's programs: users, logs and limits. Pure.

Rules: each program has its own user, by which the audit log separates them. All are in system:masters, so rights and
priorities make no difference. Limits on requests a second, which the API server's fairness has replaced, are raised for
all programs except the operator, which keeps its own. The Job controller has as many workers as in a busy cluster (20
instead of 5). In the cases "shipped" the controller manager and JobSet's manager have their default limits.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from benchmarks.operator.network import API_SERVER_IP, PODS
from understudy_operator.plan.facts.keyring import KEY_BYTES

PORT = 6443
URL = f"https://{API_SERVER_IP}:{PORT}"
ETCD = "http://127.0.0.1:2379"
ETCD_PEER = "http://127.0.0.1:2380"
#: etcd maps as much memory at once. Replaced versions are removed every minute, so this is room for a minute's changes.
ETCD_BYTES = 950 << 20
COMPACTION = "1m"
QPS, BURST = 5000, 10000
JOB_WORKERS = 20
AUDIT_MB = 4000  # of one file: it is not rotated during a measurement


class User(StrEnum):
    """The user of a program of the cluster."""

    BENCHMARK = "benchmark"
    CONTROLLER_MANAGER = "controller-manager"
    SCHEDULER = "scheduler"
    KWOK = "kwok"
    UNDERSTUDY = "understudy"
    JOBSET = "jobset"
    AGENTS = "jobset-agents"  # the agents in the pods of a JobSet that restarts in place


#: Users whose requests are counted. Those of the others depend only on the pods, and are not logged.
COUNTED = (User.CONTROLLER_MANAGER, User.UNDERSTUDY, User.JOBSET, User.AGENTS)


@dataclass(frozen=True)
class Files:
    """The folder of one cluster, which is deleted with it. binaries: of tests/cluster."""

    folder: Path
    binaries: Path
    tokens: dict[User, str] = field(default_factory=lambda: {user: secrets.token_urlsafe(24) for user in User})

    @property
    def certificate(self) -> Path:
        """The API server's own certificate, which it creates at its start, and which clients trust."""
        return self.folder / "certificates" / "apiserver.crt"

    @property
    def audit_log(self) -> Path:
        return self.folder / "audit.log"

    @property
    def master_secret(self) -> Path:
        """The operator derives the keys of all jobs from it."""
        return self.folder / "master-secret"

    def kubeconfig(self, user: User) -> Path:
        return self.folder / f"{user}.kubeconfig"

    def write(self) -> None:
        self.master_secret.write_bytes(secrets.token_bytes(KEY_BYTES))
        for user in User:
            self.kubeconfig(user).write_text(json.dumps(kubeconfig(str(self.certificate), self.tokens[user])))
        tokens = "".join(f'{token},{user},{user},"system:masters"\n' for user, token in self.tokens.items())
        (self.folder / "tokens.csv").write_text(tokens)
        (self.folder / "audit-policy.json").write_text(json.dumps(audit_policy()))
        scheduler = scheduler_configuration(str(self.kubeconfig(User.SCHEDULER)))
        (self.folder / "scheduler.json").write_text(json.dumps(scheduler))


def kubeconfig(certificate: str, token: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bench", "cluster": {"server": URL, "certificate-authority": certificate}}],
        "users": [{"name": "bench", "user": {"token": token}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "current-context": "bench",
    }


def audit_policy() -> dict[str, Any]:
    """Log a line for each answered request of the counted users, and nothing else."""
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "rules": [
            {"level": "None", "verbs": ["watch"]},
            {"level": "Metadata", "users": [str(user) for user in COUNTED]},
            {"level": "None"},
        ],
    }


def scheduler_configuration(config: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": config, "qps": QPS, "burst": BURST},
    }


def etcd(files: Files, most_bytes: int = ETCD_BYTES) -> list[str]:
    return [
        str(files.binaries / "etcd"),
        f"--data-dir={files.folder / 'etcd'}",
        f"--listen-client-urls={ETCD}",
        f"--advertise-client-urls={ETCD}",
        f"--listen-peer-urls={ETCD_PEER}",
        f"--initial-advertise-peer-urls={ETCD_PEER}",
        f"--initial-cluster=default={ETCD_PEER}",
        "--log-level=warn",
        "--unsafe-no-fsync",  # otherwise the shared disk would be measured
        f"--quota-backend-bytes={most_bytes}",
    ]


def api_server(files: Files) -> list[str]:
    key = files.folder / "service-accounts.key"
    return [
        str(files.binaries / "kube-apiserver"),
        f"--etcd-servers={ETCD}",
        f"--etcd-compaction-interval={COMPACTION}",
        f"--bind-address={API_SERVER_IP}",
        f"--advertise-address={API_SERVER_IP}",
        f"--secure-port={PORT}",
        f"--cert-dir={files.certificate.parent}",
        f"--token-auth-file={files.folder / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--endpoint-reconciler-type=none",
        f"--audit-policy-file={files.folder / 'audit-policy.json'}",
        f"--audit-log-path={files.audit_log}",
        f"--audit-log-maxsize={AUDIT_MB}",
    ]


def controller_manager(files: Files, *, shipped: bool) -> list[str]:
    """shipped: with its default limits: 20 requests a second, 5 workers for Jobs."""
    config = files.kubeconfig(User.CONTROLLER_MANAGER)
    lifted = [f"--concurrent-job-syncs={JOB_WORKERS}", f"--kube-api-qps={QPS}", f"--kube-api-burst={BURST}"]
    return [
        str(files.binaries / "kube-controller-manager"),
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        "--bind-address=127.0.0.1",
        f"--cert-dir={files.folder / 'controller-manager'}",
        "--leader-elect=false",
        # Nodes are simulated: nothing renews their leases, and no controller should act on that.
        "--node-monitor-grace-period=100h",
        *(() if shipped else lifted),
    ]


def scheduler(files: Files) -> list[str]:
    config = files.kubeconfig(User.SCHEDULER)
    return [
        str(files.binaries / "kube-scheduler"),
        f"--config={files.folder / 'scheduler.json'}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        "--bind-address=127.0.0.1",
        f"--cert-dir={files.folder / 'scheduler'}",
    ]


def kwok(files: Files, lease_s: int = 0, *stages: Path) -> list[str]:
    """lease_s: the duration of the nodes' Leases, which kwok renews; 0: none. stages: further files with stages."""
    return [
        str(files.binaries / "kwok"),
        f"--kubeconfig={files.kubeconfig(User.KWOK)}",
        "--manage-all-nodes=true",
        *(f"--config={file}" for file in (Path(__file__).parent / "stages.yaml", *stages)),
        f"--cidr={PODS}",
        f"--node-lease-duration-seconds={lease_s}",
        "--v=WARN",  # otherwise it logs each renewal
    ]
