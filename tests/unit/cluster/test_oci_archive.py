"""Image archives can be read back, and are the same each time."""

from __future__ import annotations

import hashlib
import json
import tarfile

import pytest

from tests.cluster.failures import ImageFailed
from tests.cluster.oci_archive import ImageArchive, write_archive


@pytest.fixture
def layer(tmp_path):
    program = tmp_path / "pause"
    program.write_text("#!/bin/sh\n")
    file = tmp_path / "layer.tar"
    with tarfile.open(file, "w") as archive:
        archive.add(program, "pause")
    return file


def blob(archive: tarfile.TarFile, digest: str) -> bytes:
    member = archive.extractfile(f"blobs/{digest.replace(':', '/')}")
    assert member is not None
    return member.read()


def test_an_archive_names_its_image_and_its_digest(tmp_path, layer):
    target = tmp_path / "image.tar"
    write_archive(target, "localhost/pause:1", layer, ["/pause"], {"A": "b"})
    read = ImageArchive.read(target)
    assert (read.reference, read.file) == ("localhost/pause:1", target)
    with tarfile.open(target) as archive:
        manifest = blob(archive, read.digest)
        assert "sha256:" + hashlib.sha256(manifest).hexdigest() == read.digest
        described = json.loads(manifest)["layers"][0]
        content = blob(archive, described["digest"])
    assert content == layer.read_bytes()
    assert described["size"] == len(content)


def test_the_same_layer_has_the_same_digest(tmp_path, layer):
    digests = set()
    for name in ("one.tar", "two.tar"):
        write_archive(tmp_path / name, "localhost/pause:1", layer, ["/pause"], {})
        digests.add(ImageArchive.read(tmp_path / name).digest)
    assert len(digests) == 1


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    file = tmp_path / "not.tar"
    file.write_text("no")
    with pytest.raises(ImageFailed, match="no OCI archive"):
        ImageArchive.read(file)


def test_an_image_without_a_full_name_is_refused(tmp_path, layer):
    write_archive(tmp_path / "image.tar", "latest", layer, ["/pause"], {})
    with pytest.raises(ImageFailed, match="no full reference"):
        ImageArchive.read(tmp_path / "image.tar")
