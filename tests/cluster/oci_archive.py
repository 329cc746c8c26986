"""Writes and reads OCI image archives with only the standard library.

The pause and base images are one uncompressed layer each, so no image builder is needed,
and an import neither inflates nor guesses. An archive's digest is that of its manifest,
the same that containerd lists.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .failures import ImageFailed
from .host_tools import machine_architecture

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
CHUNK = 1 << 20


@dataclass(frozen=True)
class ImageArchive:
    """An image in a file: its name, and the digest of its manifest."""

    file: Path
    reference: str
    digest: str

    @classmethod
    def read(cls, file: Path) -> ImageArchive:
        """The image in an OCI archive. Raises ImageFailed if the file is none, or names no image."""
        try:
            with tarfile.open(file, "r:") as archive:
                index = archive.extractfile("index.json")
                assert index is not None
                manifest = json.load(index)["manifests"][0]
        except (OSError, tarfile.TarError, KeyError, ValueError, IndexError) as error:
            raise ImageFailed(
                f"{file} is no OCI archive ({error}); make one with `buildah push … oci-archive:…`"
            ) from error
        reference = manifest.get("annotations", {}).get("org.opencontainers.image.ref.name", "")
        if "/" not in reference:
            raise ImageFailed(
                f"{file} names its image {reference!r}, which is no full reference; "
                f"push it as `oci-archive:{file}:localhost/<name>:<tag>`"
            )
        return cls(file, reference, manifest["digest"])


def write_archive(
    target: Path, reference: str, layer: Path, command: Sequence[str], environment: Mapping[str, str]
) -> None:
    """Write an image of one layer, a plain tar file; the archive appears when it is complete."""
    layer_digest = _digest_of_file(layer)
    config = _encode({
        "architecture": machine_architecture(),
        "os": "linux",
        "config": {"Cmd": list(command), "Env": [f"{name}={value}" for name, value in environment.items()]},
        "rootfs": {"type": "layers", "diff_ids": [layer_digest]},
        # Without it buildah counts more layers than steps as soon as it builds on this image.
        "history": [{"created_by": "a layer of files"}],
    })  # fmt: skip
    manifest = _encode({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, "digest": _digest(config), "size": len(config)},
        "layers": [{"mediaType": LAYER, "digest": layer_digest, "size": layer.stat().st_size}],
    })  # fmt: skip
    named = {"org.opencontainers.image.ref.name": reference, "io.containerd.image.name": reference}
    entry = {"mediaType": MANIFEST, "digest": _digest(manifest), "size": len(manifest), "annotations": named}
    index = _encode({"schemaVersion": 2, "manifests": [entry]})
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(".new")
    with tarfile.open(unfinished, "w") as archive:
        _add(archive, "oci-layout", _encode({"imageLayoutVersion": "1.0.0"}))
        _add(archive, "index.json", index)
        _add(archive, _blob(_digest(manifest)), manifest)
        _add(archive, _blob(_digest(config)), config)
        archive.add(layer, _blob(layer_digest))
    unfinished.rename(target)


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def _blob(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _encode(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _digest_of_file(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as data:
        while chunk := data.read(CHUNK):
            digest.update(chunk)
    return "sha256:" + digest.hexdigest()
