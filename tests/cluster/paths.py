"""The cluster's files: one cache folder, shared by all checkouts.

    <cache>/bin-<hash of go.mod and go.sum>/   the built programs;  <cache>/dns-<hash>/  the name server
    <cache>/base-image/, <cache>/images/       OCI archives;  <cache>/buildah/  its storage
    <cache>/promtool, <cache>/nginx            programs for unit tests
    <cache>/torch-<version>/                   an installed torch, mounted into pods
    <cache>/cluster/                           certificates, logs, etcd, one folder per node

`<cache>` is $UNDERSTUDY_CACHE, or ~/.cache/understudy. No file is ever written into
the checkout.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
DNS = HERE / "dns"
CHECKOUT = HERE.parents[1]


@dataclass(frozen=True)
class Paths:
    """Every folder and file of the cluster, from the cache's root."""

    cache: Path

    @classmethod
    def from_environment(cls) -> Paths:
        """The cache that $UNDERSTUDY_CACHE names, or the user's."""
        named = os.environ.get("UNDERSTUDY_CACHE")
        return cls(Path(named).expanduser().resolve() if named else Path.home() / ".cache" / "understudy")

    @property
    def binaries(self) -> Path:
        return self.cache / f"bin-{content_hash([HERE / 'go.mod', HERE / 'go.sum'])}"

    @property
    def name_server(self) -> Path:
        return self.cache / f"dns-{content_hash([DNS / 'go.mod', DNS / 'go.sum', DNS / 'main.go'])}"

    @property
    def state(self) -> Path:
        return self.cache / "cluster"

    @property
    def lock(self) -> Path:
        return self.cache / "cluster.lock"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def audit_log(self) -> Path:
        """The operator's requests to the API server; rotated files are beside it."""
        return self.logs / "audit.log"

    @property
    def records(self) -> Path:
        """The running programs: one small file per component, see processes.py."""
        return self.state / "processes"

    @property
    def etcd(self) -> Path:
        return self.state / "etcd"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "admin.kubeconfig"

    @property
    def loaded_images(self) -> Path:
        """The list of archives that every node loads, a new one too."""
        return self.state / "images.json"

    @property
    def images(self) -> Path:
        return self.cache / "images"

    @property
    def base_image(self) -> Path:
        return self.cache / "base-image"

    @property
    def buildah(self) -> Path:
        return self.cache / "buildah"

    def node(self, name: str) -> Path:
        return self.state / "nodes" / name

    def torch(self, version: str) -> Path:
        return self.cache / f"torch-{version}"


def content_hash(files: list[Path], extra: str = "") -> str:
    """A short hash of files' names and contents, in the order given."""
    digest = hashlib.sha256(extra.encode())
    for file in files:
        digest.update(f"{file.name}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
