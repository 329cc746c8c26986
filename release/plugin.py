"""`kubectl-understudy`: the command line as one file, which Python 3.11 or newer runs on every machine.

It is a zip file with a first line for the kernel. Its packages are pure Python: compiled modules are left out (PyYAML
and aiohttp work without their own), and a package that has only such modules fails the build. The file depends on the
commit and the lock alone: the same inputs have the same bytes.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

INTERPRETER = b"#!/usr/bin/env python3\n"
#: Folder of the program in the checkout, and the modules of the protocol that it imports: names, and kinds of faults.
PROGRAM, SOURCES = "understudy_cli", "sidecar"
PROTOCOL = tuple(f"understudy_protocol/{name}.py" for name in ("__init__", "enums", "goodput", "pod", "recovery"))
MAIN = """\
import sys

if sys.version_info < (3, 11):
    sys.exit("understudy: Python 3.11 or newer is needed, and python3 is %d.%d" % sys.version_info[:2])

from understudy_cli.entry import main

sys.exit(main())
"""


def write_plugin(target: Path, checkout: Path, installed: Path, version: str, committed: datetime) -> None:
    """installed: the folder in which pip has installed requirements/cli.lock."""
    files = dict(own_files(checkout)) | dict(installed_files(installed))
    files["__main__.py"] = MAIN.encode()
    files[f"understudy_training-{version}.dist-info/METADATA"] = (
        f"Metadata-Version: 2.1\nName: understudy-training\nVersion: {version}\n".encode()
    )
    with target.open("wb") as output:
        output.write(INTERPRETER)
        with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(files):
                entry = zipfile.ZipInfo(name, committed.astimezone(UTC).timetuple()[:6])
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, files[name])
    target.chmod(0o755)


def own_files(checkout: Path) -> Iterator[tuple[str, bytes]]:
    """All of the program, with the files of the dashboard, but local mode, which needs compiled packages."""
    root = checkout / SOURCES
    found = [path.relative_to(root) for path in sorted((root / PROGRAM).rglob("*")) if path.is_file()]
    names = [path.as_posix() for path in found if "__pycache__" not in path.parts]
    for name in (*names, *PROTOCOL):
        if name != f"{PROGRAM}/local.py":
            yield name, (root / name).read_bytes()


def installed_files(installed: Path) -> Iterator[tuple[str, bytes]]:
    """The modules, data and metadata (with licenses) of the dependencies; no compiled module and no program."""
    paths = [path for path in sorted(installed.rglob("*")) if path.is_file()]
    names = {path.relative_to(installed).as_posix(): path for path in paths}
    for name in kept(names):
        yield name, names[name].read_bytes()


def kept(names: Iterable[str]) -> list[str]:
    """Which files of the dependencies go into the zip file."""
    found = []
    for name in names:
        path = PurePosixPath(name)
        is_cache = "__pycache__" in path.parts or path.name in ("RECORD", "INSTALLER", "direct_url.json")
        if not (is_cache or path.parts[0] == "bin" or path.suffix in (".so", ".pyd", ".dylib")):
            found.append(name)
    return found
