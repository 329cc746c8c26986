"""`python -m understudy_launcher.package FOLDER`: writes the files that a trainer container needs. Run at image build.

    launcher.pyz               the launcher and the protocol, as a zip that Python runs
    launch                     the entry script for /bin/sh: it finds a Python for the launcher
    launch-torchrun            the entry script for a command that is torchrun
    with-understudy            the entry script without a launcher
    python/understudy_torch/   packages that workers may import
    python/understudy_jax/     the same: snapshots of JAX arrays
    python/understudy_rollout/ the same: weight updates in RL
    python/understudy_zygote/  the fork server of the workers
    python/understudy_torchrun/, …_launcher/, …_protocol/
                               the rendezvous backend of torchrun, and its dependencies. Snapshots import the protocol
    python/….dist-info/        the entry point through which torch finds the backend

Rules: the same sources give the same bytes (fixed times, sorted names). The zip is not compressed, because the user's
Python may lack zlib. This module imports nothing from the packages that it copies.
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
#: Only for the sidecar and the operator: these modules need libraries.
_NOT_SHIPPED = {
    Path("understudy_protocol") / name for name in ("compiled.py", "handshake.py", "noise.py", "sessions.py")
}
_FOR_WORKERS = ("understudy_torch", "understudy_jax", "understudy_rollout", "understudy_zygote")
_FOR_TORCHRUN = ("understudy_torchrun", *_IN_ZIP)
_DIST_INFO = "understudy_torchrun-1.dist-info"
_METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: understudy-torchrun\nVersion: 1\n",
    "entry_points.txt": "[torchrun.handlers]\nunderstudy = understudy_torchrun:handlers\n",
}
_STUBS = (pod.LAUNCHER_SCRIPT, pod.TORCHRUN_SCRIPT, pod.PLAIN_SCRIPT)
#: The entry script looks for a Python that is new enough, but a user may name another one. Any Python can read this.
_MAIN = """\
import sys

if sys.version_info < (3, 9):
    sys.stderr.write(
        "understudy launcher: the launcher needs Python >= 3.9, and %s is Python %d.%d: set `launcher.python` to the "
        "path of a newer one.\\n" % (sys.executable, sys.version_info[0], sys.version_info[1])
    )
    sys.exit(127)

from understudy_launcher.__main__ import main

sys.exit(main(sys.argv[1:]))
"""


def write_package(destination: Path) -> None:
    """Write all files into `destination`, which is created if it is missing."""
    destination.mkdir(parents=True, exist_ok=True)
    _write_zipapp(destination / pod.LAUNCHER_ZIPAPP)
    for stub in _STUBS:
        shutil.copyfile(_SOURCES / "understudy_launcher" / stub, destination / stub)
        (destination / stub).chmod(0o755)
    for package in (*_FOR_WORKERS, *_FOR_TORCHRUN):
        _copy_package(package, destination / pod.PYTHON_FOLDER)
    for name, text in _METADATA.items():
        path = destination / pod.PYTHON_FOLDER / _DIST_INFO / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o644)


def _write_zipapp(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_entry("__main__.py"), _MAIN)
        for source in launcher_sources():
            archive.writestr(_entry(source.relative_to(_SOURCES).as_posix()), source.read_bytes())
    path.chmod(0o644)


def launcher_sources() -> list[Path]:
    """The modules of the launcher and of its dependencies, which run under the user's Python."""
    return sorted(file for package in _IN_ZIP for file in _sources(package) if file.suffix == ".py")


def _sources(package: str) -> Iterator[Path]:
    """The package's files, except those that a user's image cannot run and the entry scripts, which are copied
    elsewhere.
    """
    left_out = {*_NOT_SHIPPED, *(Path("understudy_launcher") / stub for stub in _STUBS)}
    return (file for file in _files(package) if file.relative_to(_SOURCES) not in left_out)


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.external_attr = 0o644 << 16
    return entry


def _copy_package(package: str, parent: Path) -> None:
    shutil.rmtree(parent / package, ignore_errors=True)
    for source in _sources(package):
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
