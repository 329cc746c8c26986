"""The packages that an image contains, as they are installed in its layers: Debian's, and Python's distributions.

An SBOM made from lock files says what was asked for. This one says what is there, whichever base an image was built on.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath

DPKG_STATUS = "var/lib/dpkg/status"
OS_RELEASE = ("usr/lib/os-release", "etc/os-release")
_METADATA = re.compile(r".*/[^/]+\.dist-info/METADATA")
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"


@dataclass(frozen=True, order=True)
class Package:
    """ecosystem: deb or pypi, as package URLs have it."""

    ecosystem: str
    name: str
    version: str
    architecture: str = ""
    license: str = ""


@dataclass(frozen=True)
class Image:
    digest: str  # of the manifest
    distribution: str  # such as debian-12
    packages: tuple[Package, ...]


def read_image(archive: Path) -> Image:
    """The contents of an OCI archive with one image."""
    with tarfile.open(archive, "r:") as blobs:
        (entry,) = json.loads(_content(blobs, "index.json"))["manifests"]
        manifest = json.loads(_blob(blobs, entry["digest"]))
        files: dict[str, bytes] = {}
        for layer in manifest["layers"]:
            found = blobs.extractfile(_path(layer["digest"]))
            assert found is not None
            with tarfile.open(fileobj=found, mode="r|*") as content:
                apply_layer(files, content)
    return Image(entry["digest"], distribution_of(files), tuple(sorted(set(packages_of(files)))))


def apply_layer(files: dict[str, bytes], layer: tarfile.TarFile) -> None:
    """Add the layer's files that name packages, and remove those that it deletes."""
    for member in layer:
        path = PurePosixPath(member.name.removeprefix("./").lstrip("/"))
        if path.name == _OPAQUE:
            _remove(files, str(path.parent))
        elif path.name.startswith(_WHITEOUT):
            _remove(files, str(path.with_name(path.name.removeprefix(_WHITEOUT))))
        elif member.isfile() and (str(path) in (DPKG_STATUS, *OS_RELEASE) or _METADATA.fullmatch(str(path))):
            content = layer.extractfile(member)
            assert content is not None
            files[str(path)] = content.read()


def _remove(files: dict[str, bytes], removed: str) -> None:
    for path in [x for x in files if x == removed or x.startswith(f"{removed}/")]:
        del files[path]


def packages_of(files: Mapping[str, bytes]) -> Iterator[Package]:
    for path, content in files.items():
        text = content.decode("utf-8", errors="replace")
        if path == DPKG_STATUS:
            yield from _of_debian(text)
        elif _METADATA.fullmatch(path):
            headers = HeaderParser().parsestr(text)
            yield Package(
                "pypi", normalized(headers["Name"]), headers["Version"], "", headers["License-Expression"] or ""
            )


def _of_debian(status: str) -> Iterator[Package]:
    for paragraph in status.strip().split("\n\n"):
        fields = HeaderParser().parsestr(paragraph)
        if fields["Status"] == "install ok installed":
            yield Package("deb", fields["Package"], fields["Version"], fields["Architecture"])


def normalized(name: str) -> str:
    """A distribution's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def distribution_of(files: Mapping[str, bytes]) -> str:
    for path in OS_RELEASE:
        fields = dict(line.split("=", 1) for line in files.get(path, b"").decode().splitlines() if "=" in line)
        if "ID" in fields:
            return "-".join(fields[key].strip('"') for key in ("ID", "VERSION_ID") if key in fields)
    return ""


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    found = archive.extractfile(name)
    assert found is not None
    return found.read()


def _blob(archive: tarfile.TarFile, digest: str) -> bytes:
    return _content(archive, _path(digest))


def _path(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")
