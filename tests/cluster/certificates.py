"""The cluster's own certificate authority, its certificates, and kubeconfigs.

The openssl program creates all of them once, and they are kept in the state folder. A
certificate is created again when its content (subject, addresses) has to change.
A private key and its certificate appear together: the certificate is renamed last.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .commands import run
from .host_tools import tool

DAYS = "3650"
# Nodes are booted in parallel, and share some certificates.
ISSUING = threading.Lock()


@dataclass(frozen=True)
class Certificate:
    """The content of a certificate; `name` is its file's name."""

    name: str
    common_name: str
    organization: str = ""
    addresses: Sequence[str] = ()  # subject alternative names, like IP:10.0.0.1 and DNS:name

    @property
    def subject(self) -> str:
        return (f"/O={self.organization}" if self.organization else "") + f"/CN={self.common_name}"

    @property
    def extensions(self) -> str:
        lines = ["basicConstraints=CA:FALSE", "keyUsage=digitalSignature"]
        lines.append(f"extendedKeyUsage={'serverAuth' if self.addresses else 'clientAuth'}")
        if self.addresses:
            lines.append("subjectAltName=" + ",".join(self.addresses))
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Authority:
    """The certificate authority whose files are in `folder`."""

    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def service_account_key(self) -> Path:
        return self.folder / "service-account.key"

    @property
    def service_account_public_key(self) -> Path:
        return self.folder / "service-account.pub"

    def ensure(self) -> None:
        """Create the authority and the service-account key unless they exist."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        if not self.certificate.exists():
            _new_key(self.folder / "ca.key")
            unfinished = self.folder / "ca.crt.new"
            run([
                tool("openssl"), "req", "-x509", "-new", "-key", self.folder / "ca.key", "-days", DAYS,
                "-subj", "/CN=understudy-local-cluster",
                "-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature",
                "-out", unfinished,
            ])  # fmt: skip
            unfinished.rename(self.certificate)
        if not self.service_account_public_key.exists():
            _new_key(self.service_account_key)
            unfinished = self.folder / "service-account.pub.new"
            run([tool("openssl"), "pkey", "-in", self.service_account_key, "-pubout", "-out", unfinished])
            unfinished.rename(self.service_account_public_key)

    def issue(self, wanted: Certificate) -> tuple[Path, Path]:
        """The paths of a certificate and its key, created unless they exist."""
        with ISSUING:
            return self._issue(wanted)

    def _issue(self, wanted: Certificate) -> tuple[Path, Path]:
        describes = hashlib.sha256(
            (wanted.subject + wanted.extensions + self.certificate.read_text()).encode()
        ).hexdigest()
        certificate, key = self.folder / f"{wanted.name}.crt", self.folder / f"{wanted.name}.key"
        seal = self.folder / f"{wanted.name}.sha256"
        if certificate.exists() and key.exists() and seal.exists() and seal.read_text() == describes:
            return certificate, key
        _new_key(key)
        request, extensions = self.folder / f"{wanted.name}.csr", self.folder / f"{wanted.name}.ext"
        extensions.write_text(wanted.extensions)
        run([tool("openssl"), "req", "-new", "-key", key, "-subj", wanted.subject, "-out", request])
        unfinished = self.folder / f"{wanted.name}.crt.new"
        run([
            tool("openssl"), "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.folder / "ca.key",
            "-CAcreateserial", "-CAserial", self.folder / f"{wanted.name}.serial",
            "-days", DAYS, "-extfile", extensions, "-out", unfinished,
        ])  # fmt: skip
        unfinished.rename(certificate)
        seal.write_text(describes)
        return certificate, key

    def kubeconfig(self, target: Path, server: str, user: Certificate) -> Path:
        """Write a self-contained kubeconfig for `user`, unless it exists."""
        certificate, key = self.issue(user)
        content = json.dumps(
            render_kubeconfig(server, self.certificate.read_bytes(), certificate.read_bytes(), key.read_bytes()),
            indent=1,
        )
        if not target.exists() or target.read_text() != content:
            unfinished = target.with_name(target.name + ".new")
            unfinished.touch(0o600)
            unfinished.write_text(content)
            unfinished.rename(target)
        return target


def render_kubeconfig(server: str, authority: bytes, certificate: bytes, key: bytes) -> dict[str, object]:
    """A kubeconfig (JSON is YAML) with one cluster, one user and one context."""

    def inline(data: bytes) -> str:
        return base64.b64encode(data).decode()

    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "understudy", "cluster": {"server": server, "certificate-authority-data": inline(authority)}}
        ],
        "users": [
            {
                "name": "understudy",
                "user": {"client-certificate-data": inline(certificate), "client-key-data": inline(key)},
            }
        ],
        "contexts": [{"name": "understudy", "context": {"cluster": "understudy", "user": "understudy"}}],
        "current-context": "understudy",
    }


def _new_key(target: Path) -> None:
    """An elliptic-curve key that only root can read. Kubernetes wants it in PKCS 8 or SEC 1."""
    run([tool("openssl"), "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", target])
    target.chmod(0o600)
