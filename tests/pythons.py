"""`make pythons`: the launcher's process tests with each Python that a trainer's image may have, on this machine.

The tests run with the project's own Python, the launcher and its workers with the other Python: one on PATH, one of
pyenv, or one that uv installs into the cache. A version that cannot be installed is a failure, never a skip.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.cluster.paths import CHECKOUT, Paths

VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13")
TESTS = "tests/unit/launcher"
PRINT_PATH = "import sys; print(sys.executable)"
VARIABLE = "UNDERSTUDY_TRAINER_PYTHON"


def find_python(version: str) -> str | None:
    """The path of an interpreter of that version that works. A shim of pyenv may not work. If it does, the path is that
    of its interpreter: a link to a shim, as tests make them, does not work.
    """
    candidates = [
        shutil.which(f"python{version}"),
        *Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"),
        *_folder().glob(f"cpython-{version}.*/bin/python{version}"),
    ]
    for python in map(str, filter(None, candidates)):
        ran = subprocess.run([python, "-c", PRINT_PATH], capture_output=True, text=True, check=False)
        if ran.returncode == 0:
            return ran.stdout.strip()
    return None


def install_python(version: str, folder: Path) -> None:
    """If that fails, uv prints why."""
    env = {**os.environ, "UV_PYTHON_INSTALL_DIR": str(folder)}
    subprocess.run([sys.executable, "-m", "uv", "python", "install", version], env=env, check=False)


def _folder() -> Path:
    """The folder into which uv installs missing versions."""
    return Paths.from_environment().cache / "pythons"


def passes(version: str, python: str) -> bool:
    junit = f"--junitxml=build/junit/pythons-{version}.xml"
    command = [sys.executable, "-m", "pytest", "-q", junit, "-n", "2", "-m", "not nightly", TESTS]
    env = {**os.environ, VARIABLE: python}
    return subprocess.run(command, cwd=CHECKOUT, env=env, check=False).returncode == 0


def main() -> int:
    found: dict[str, str | None] = {}
    for version in VERSIONS:  # install all of them first: tests of the launcher look for other versions, too
        if find_python(version) is None:
            install_python(version, _folder())
        found[version] = find_python(version)
    failed = []
    for version, python in found.items():
        print(f"Python {version}: {python or 'not on PATH, not of pyenv, and uv could not install it'}", flush=True)
        if python is None or not passes(version, python):
            failed.append(version)
    print(f"make pythons: FAILED: {', '.join(failed)}" if failed else f"make pythons: passed: {', '.join(VERSIONS)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
