"""The two systems: how each starts, its manifests, and how its status shows that all is well.

Ours is the operator of this checkout, as a process. JobSet is its manager, next to the Job controller that it needs.
Neither has webhooks or a leader election. settings.py sets the limits of their requests a second.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.child import CHECKOUT
from benchmarks.operator import manifests
from benchmarks.operator.jobset_build import Built
from benchmarks.operator.manifests import Raw
from benchmarks.operator.plan import Session, System
from benchmarks.operator.programs import Program
from benchmarks.operator.settings import BURST, QPS, Files, User
from tests.cluster.commands import run
from tests.cluster.host_tools import tool
from understudy_operator.settings import ENV_MASTER_SECRET

HEALTH_PORT = 8081
SERVING_DAYS = "30"


@dataclass(frozen=True)
class Setup:
    """One system, configured for one session."""

    session: Session
    files: Files
    jobset: Built

    @property
    def is_understudy(self) -> bool:
        return self.session.system is System.UNDERSTUDY

    @property
    def user(self) -> User:
        return User.UNDERSTUDY if self.is_understudy else User.JOBSET

    @property
    def launcher(self) -> bool:
        """Whether the benchmark simulates sidecars."""
        return self.session.launcher

    @property
    def health(self) -> str:
        return f"http://127.0.0.1:{HEALTH_PORT}/{'healthz' if self.is_understudy else 'readyz'}"

    def start(self) -> Program:
        return (
            start_operator(self.files) if self.is_understudy else _start_jobset(self.files, self.jobset, self.session)
        )

    def jobs_path(self, namespace: str) -> str:
        return manifests.path(manifests.TRAINING_JOB if self.is_understudy else manifests.JOBSET, namespace)

    def manifest(self, number: int, pods: int = 0) -> Raw:
        """pods: only for a job that is not among those created first."""
        name, pods = f"job-{number}", pods or self.session.pods_of_a_job
        if self.launcher:
            return manifests.training_job(name, pods)
        if self.is_understudy:
            return manifests.without_launcher(name, pods)
        return manifests.jobset(name, pods, strategy="InPlaceRestart" if self.session.in_place_alone else "Recreate")

    def all_well(self, statuses: Sequence[dict[str, Any]]) -> bool:
        """Whether each job's status reports that all of it runs."""
        well = _trains if self.launcher else _ready
        return len(statuses) == self.session.jobs and all(well(status) for status in statuses)


def _trains(status: dict[str, Any]) -> bool:
    members = status.get("members", {})
    return status.get("phase") == "Running" and members.get("ready") == members.get("desired")


def _ready(status: dict[str, Any]) -> bool:
    """JobSet's fields, which are ours too. Each job has one Job here."""
    return [x.get("ready") for x in status.get("replicatedJobsStatus", ())] == [1]


def restarted(statuses: Sequence[dict[str, Any]], *, launcher: bool) -> bool:
    """Whether each job's status reports that all of it runs again."""
    well = _trains if launcher else _ready
    return bool(statuses) and all(status.get("restarts", 0) >= 1 and well(status) for status in statuses)


def start_operator(
    files: Files, name: str = "understudy", port: int = HEALTH_PORT, env: Mapping[str, str] | None = None
) -> Program:
    """port: of its health. env: further variables."""
    master = files.folder / "master-secret"
    if not master.exists():
        master.write_bytes(os.urandom(32))
    environment = {
        "UNDERSTUDY_MASTER_SECRET": str(master),
        "KUBECONFIG": str(files.kubeconfig(User.UNDERSTUDY)),
        "PYTHONPATH": f"{CHECKOUT / 'operator'}:{CHECKOUT / 'sidecar'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONWARNINGS": "ignore",  # of libraries
        ENV_MASTER_SECRET: str(files.master_secret),
        "UNDERSTUDY_SIDECAR_IMAGE": "example.com/sidecar:1",
        "UNDERSTUDY_HEALTH_PORT": str(port),
        **(env or {}),
    }
    return Program(name, [sys.executable, "-m", "understudy_operator"], environment)


def _start_jobset(files: Files, built: Built, session: Session) -> Program:
    folder = files.folder / "jobset"
    if not folder.exists():
        _serving_certificate(folder)
    configuration = folder / f"configuration-{session.in_place_alone}-{session.shipped}.json"
    result = jobset_configuration(folder, in_place=session.in_place_alone, shipped=session.shipped)
    configuration.write_text(json.dumps(result))
    command = [str(built.manager), f"--config={configuration}", "--zap-log-level=info"]
    return Program("jobset", command, {"KUBECONFIG": str(files.kubeconfig(User.JOBSET))})


def jobset_configuration(certificates: Path, *, in_place: bool, shipped: bool) -> Raw:
    """Its webhook server starts in any case, and needs a certificate; nothing calls it."""
    return {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": "127.0.0.1", "certDir": str(certificates)},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{HEALTH_PORT}"},
        **({} if shipped else {"clientConnection": {"qps": QPS, "burst": BURST}}),
        "featureGates": {"InPlaceRestart": in_place},
    }


def _serving_certificate(folder: Path) -> None:
    folder.mkdir()
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", folder / "tls.key")
    subject = ("-subj", "/CN=localhost", "-days", SERVING_DAYS)
    run([tool("openssl"), "req", "-x509", *key, *subject, "-out", folder / "tls.crt"])
