"""Runs of `understudy local` with real processes and real torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.torchrun import auto
from tests.torchrun.job import LIMIT_S
from tests.unit.launcher.fake_sidecar import plain_environment
from understudy_local import run_folder

UNDERSTUDY = (sys.executable, "-m", "understudy_cli", "local")
#: Gets the words behind the options of the run: further options, `--`, and the command.
Start = Callable[..., "subprocess.Popen[bytes]"]


@contextmanager
def local_runs(
    folder: Path, torch: Path, script: str, *options: str, run: str = "", **variables: str
) -> Iterator[Start]:
    """Starts runs with these options; {train} in the words is the path of the script, and HERE in its environment the
    folder, which also has the log. run: the name, by default run_name(). variables: of its environment.
    """
    name = run or run_name()
    auto.torchrun_script(folder)
    (folder / "train.py").write_text(script)
    env = plain_environment() | {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": f"{torch}:{os.environ.get('PYTHONPATH', '')}",
        "HERE": str(folder),
        "OMP_NUM_THREADS": "1",
        **variables,
    }
    started = []

    def start(*words: str) -> subprocess.Popen[bytes]:
        command = [word.replace("{train}", str(folder / "train.py")) for word in words]
        own = [*UNDERSTUDY, "--plain", "--name", name, *options]
        with (folder / "log").open("wb") as log:
            started.append(subprocess.Popen([*own, *command], env=env, stdout=log, stderr=subprocess.STDOUT))
        return started[-1]

    shutil.rmtree(run_folder.of(name).path, ignore_errors=True)  # of a run before, which would answer
    try:
        yield start
    finally:
        for process in started:
            process.terminate()
            process.wait(LIMIT_S)


def kill(target: str) -> str:
    """Kill a rank or a member of the run; return what the command printed."""
    command = [*UNDERSTUDY, "kill", "--run", run_name(), target]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def run_name() -> str:
    """Of the runs of this process."""
    return f"test-{os.getpid()}"
