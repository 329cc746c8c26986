"""`make pythons`: the launcher's process tests with each Python that a trainer's image may have, on this machine.

uv finds each version on PATH, or installs it into the cache. The tests run with the project's own Python, the launcher
and its workers with the other one. A version that cannot be installed is a failure, never a skip.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.cluster.paths import CHECKOUT, Paths

VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13")
TESTS = "tests/unit/launcher"


def python_of(version: str, folder: Path) -> str | None:
    """The path of an interpreter, installed into the folder if there is none; None if that fails."""
    env = {**os.environ, "UV_PYTHON_INSTALL_DIR": str(folder)}
    uv = [sys.executable, "-m", "uv", "python"]
    for command in (["find", "--no-project", version], ["install", version], ["find", "--no-project", version]):
        done = subprocess.run([*uv, *command], env=env, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode == 0 and command[0] == "find":
            return done.stdout.strip()
    return None


def passes(version: str, python: str) -> bool:
    junit = f"--junitxml=build/junit/pythons-{version}.xml"
    command = [sys.executable, "-m", "pytest", "-q", junit, "-n", "2", "-m", "not nightly", TESTS]
    env = {**os.environ, "UNDERSTUDY_TRAINER_PYTHON": python}
    return subprocess.run(command, cwd=CHECKOUT, env=env, check=False).returncode == 0


def main() -> int:
    failed = []
    for version in VERSIONS:
        python = python_of(version, Paths.from_environment().cache / "pythons")
        print(f"Python {version}: {python or 'neither on PATH nor to be installed by uv'}", flush=True)
        if python is None or not passes(version, python):
            failed.append(version)
    print(f"make pythons: FAILED: {', '.join(failed)}" if failed else f"make pythons: passed: {', '.join(VERSIONS)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
