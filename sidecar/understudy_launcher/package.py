"""`python -m understudy_launcher.package FOLDER`: what a trainer container needs of us. Run at image build.

    launcher.pyz               the launcher and the protocol, as a zip that Python runs
    launch                     the stub that /bin/sh runs: it finds a Python for the launcher
    python/understudy_torch/   what the workers may import
    python/understudy_zygote/  what forks them

Rules: the same sources give the same bytes (fixed times, sorted names). The zip is not compressed, because the user's
Python may lack zlib. Nothing is imported from the packages that are copied.
"""

import os
import shutil
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from understudy_protocol import pod

_SOURCES = Path(__file__).resolve().parent.parent
_IN_ZIP = ("understudy_launcher", "understudy_protocol")
#: For processes of ours alone: it needs a library.
_NOT_IN_ZIP = Path("understudy_protocol/compiled.py")
_FOR_WORKERS = ("understudy_torch", "understudy_zygote")
_MAIN = """\
import sys

from understudy_launcher.__main__ import main

sys.exit(main(sys.argv[1:]))
"""


def write_package(destination: Path) -> None:
    """Write the four into `destination`, which is made if it is missing."""
    destination.mkdir(parents=True, exist_ok=True)
    _write_zipapp(destination / pod.LAUNCHER_ZIPAPP)
    stub = destination / pod.LAUNCHER_STUB
    shutil.copyfile(_SOURCES / "understudy_launcher" / pod.LAUNCHER_STUB, stub)
    stub.chmod(0o755)
    for package in _FOR_WORKERS:
        _copy_package(package, destination / pod.PYTHON_FOLDER)


def _write_zipapp(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_entry("__main__.py"), _MAIN)
        for source in launcher_sources():
            archive.writestr(_entry(source.relative_to(_SOURCES).as_posix()), source.read_bytes())
    path.chmod(0o644)


def launcher_sources() -> list[Path]:
    """The modules of the launcher and of what it needs: they run under the user's Python."""
    python = (file for package in _IN_ZIP for file in _files(package) if file.suffix == ".py")
    return sorted(file for file in python if file.relative_to(_SOURCES) != _NOT_IN_ZIP)


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.external_attr = 0o644 << 16
    return entry


def _copy_package(package: str, parent: Path) -> None:
    shutil.rmtree(parent / package, ignore_errors=True)
    for source in _files(package):
        target = parent / source.relative_to(_SOURCES)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o644)


def _files(package: str) -> Iterator[Path]:
    for folder, folders, names in os.walk(_SOURCES / package):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        yield from (Path(folder) / name for name in sorted(names))


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)  # noqa: T201 - a command line
        return 64
    write_package(Path(arguments[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
