"""Loads image archives into the nodes' containerds, and records them for future nodes.

An import into one node takes seconds, so it is skipped if the node has the digest
already, according to a note in the node's folder, next to its images. Two
nodes are loaded at a time, as most machines that run this have two cores. The newest
image of a repository also gets the tag `:dev`, and the last three are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .commands import Progress
from .node import Node
from .oci_archive import ImageArchive
from .paths import Paths

IMPORT_LIMIT_S = 300
AT_A_TIME = 2
KEPT = 3  # builds of one repository in a node


def remember(paths: Paths, archive: ImageArchive) -> None:
    """From now on every node loads this archive when it boots."""
    known = _read(paths.loaded_images)
    repository = archive.reference.rpartition(":")[0]
    kept = {reference: file for reference, file in known.items() if reference.rpartition(":")[0] != repository}
    _write(paths.loaded_images, {**kept, archive.reference: str(archive.file)})


def remembered(paths: Paths) -> list[ImageArchive]:
    """The archives that every node loads, without those that were removed since."""
    files = [Path(file) for file in _read(paths.loaded_images).values()]
    return [ImageArchive.read(file) for file in files if file.exists()]


def load(nodes: Iterable[Node], archives: list[ImageArchive], progress: Progress) -> None:
    """Import archives into nodes that lack them. Raises CommandFailed when an import fails."""
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        list(pool.map(lambda node: load_into(node, archives, progress), nodes))


def load_into(node: Node, archives: list[ImageArchive], progress: Progress) -> None:
    """Import archives into one node, except those that it has."""
    note = node.folder / "images.json"
    present = _read(note)
    for archive in archives:
        if present.get(archive.reference) == archive.digest:
            continue
        same = [reference for reference, digest in present.items() if digest == archive.digest]
        if same:  # built again, with the same result
            node.ctr("images", "tag", "--force", same[0], archive.reference)
        else:
            progress.report(f"{node.name}: importing {archive.reference}")
            node.ctr("images", "import", archive.file, timeout_s=IMPORT_LIMIT_S)
        _tag(node, archive.reference)
        present[archive.reference] = archive.digest
        _remove_older(node, present, archive.reference)
        _write(note, present)


def _remove_older(node: Node, present: dict[str, str], newest: str) -> None:
    """Keep the last three of a repository in a node; images of running containers stay."""
    repository = newest.rpartition(":")[0]
    builds = [reference for reference in present if reference.rpartition(":")[0] == repository]
    for reference in builds[:-KEPT]:
        digest = present.pop(reference)
        if digest in present.values():
            names = [reference]
        else:  # the image has another name, its id; both must be removed
            names = node.ctr("images", "ls", "--quiet", f"target.digest=={digest}").split()
        if names:
            node.ctr("images", "rm", *names)


def _tag(node: Node, reference: str) -> None:
    newest = reference.rpartition(":")[0] + ":dev"
    if newest != reference:
        node.ctr("images", "tag", "--force", reference, newest)


def _read(file: Path) -> dict[str, str]:
    try:
        return {str(key): str(value) for key, value in json.loads(file.read_text()).items()}
    except (OSError, ValueError):
        return {}


def _write(file: Path, content: dict[str, str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".new")
    unfinished.write_text(json.dumps(content, indent=1))
    unfinished.rename(file)
