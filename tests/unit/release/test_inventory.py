"""The packages of an image are those that its layers contain."""

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

from release.inventory import Package, read_image

STATUS = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u10

Package: removed
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: openssl
Status: install ok installed
Architecture: amd64
Version: 3.0.17-1
Description: a tool
 with a second line
"""
OS_RELEASE = 'PRETTY_NAME="Debian"\nID=debian\nVERSION_ID="12"\n'


def metadata(name: str, version: str) -> str:
    return f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\nLicense-Expression: MIT\n\nA text.\nName: other\n"


def layer(files: dict[str, str]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return content.getvalue()


def archive(path: Path, *layers: bytes) -> str:
    """Writes an OCI archive. Returns the manifest's digest."""
    blobs = {f"sha256:{hashlib.sha256(x).hexdigest()}": x for x in layers}
    manifest = json.dumps({"layers": [{"digest": digest} for digest in blobs]}).encode()
    name = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
    index = json.dumps({"manifests": [{"digest": name}]}).encode()
    with tarfile.open(path, "w") as written:
        for file, content in {
            "index.json": index,
            **{f"blobs/{k.replace(':', '/')}": v for k, v in blobs.items()},
            f"blobs/{name.replace(':', '/')}": manifest,
        }.items():
            member = tarfile.TarInfo(file)
            member.size = len(content)
            written.addfile(member, io.BytesIO(content))
    return name


def test_an_images_packages_are_debians_and_pythons_of_all_layers(tmp_path: Path) -> None:
    site = "opt/understudy/lib/python3.11/site-packages"
    base = layer({"./var/lib/dpkg/status": STATUS, "./etc/os-release": OS_RELEASE})
    added = layer({f"{site}/Some_Thing-1.2.dist-info/METADATA": metadata("Some_Thing", "1.2"), f"{site}/x.py": "1"})
    digest = archive(tmp_path / "image.tar", base, gzip.compress(added))
    image = read_image(tmp_path / "image.tar")
    assert (image.digest, image.distribution) == (digest, "debian-12")
    assert image.packages == (
        Package("deb", "libc6", "2.36-9+deb12u10", "amd64"),
        Package("deb", "openssl", "3.0.17-1", "amd64"),
        Package("pypi", "some-thing", "1.2", "", "MIT"),
    )


def test_a_file_that_a_later_layer_removes_is_not_in_the_image(tmp_path: Path) -> None:
    first = layer({f"a/{name}-1.dist-info/METADATA": metadata(name, "1") for name in ("pip", "setuptools", "kept")})
    second = layer({"a/.wh.pip-1.dist-info": "", "a/setuptools-1.dist-info/.wh..wh..opq": ""})
    archive(tmp_path / "image.tar", first, second)
    assert [package.name for package in read_image(tmp_path / "image.tar").packages] == ["kept"]
