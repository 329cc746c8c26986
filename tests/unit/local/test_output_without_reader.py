"""A run whose terminal is closed, or whose output a pipe no longer takes."""

import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

LIMIT_S = 60
SAVES = """
import pathlib, signal, sys

def save(*_):
    pathlib.Path(sys.argv[1]).write_text("saved")
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    signal.pause()
"""
CONTINUES = """
import sys
print("ready", flush=True)
open(sys.argv[1]).read()  # until the reader has gone
for number in range(100):
    print("line", number, flush=True)
"""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """With a short path, because of sockets."""
    with tempfile.TemporaryDirectory(prefix="understudy-", dir="/tmp") as folder:  # only its owner can access it
        yield Path(folder)


def command(folder: Path, script: str, argument: Path, *options: str) -> list[str]:
    path = folder / "train.py"
    path.write_text(script)
    ours = [sys.executable, "-m", "understudy_cli", "local", "--nodes", "1", "--spares", "0", "--no-zygote", *options]
    return [*ours, "--", sys.executable, str(path), str(argument)]


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": ":".join(filter(None, sys.path))}


def read_until(fd: int, text: bytes) -> None:
    seen = b""
    while text not in seen:
        readable, _, _ = select.select([fd], [], [], LIMIT_S)
        assert readable, seen
        chunk = os.read(fd, 1 << 16)
        assert chunk, seen
        seen += chunk


@pytest.mark.parametrize("options", [[], ["--plain"]])
def test_the_workers_save_after_the_terminal_was_closed(temporary: Path, options: list[str]) -> None:
    # given a run in a terminal, with a script that saves at SIGTERM
    saved = temporary / "saved"
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and a run does, too
        words = command(temporary, SAVES, saved, *options)
        os.execvpe(words[0], words, environment(temporary))
    run = os.pidfd_open(pid)
    read_until(terminal, b"ready")
    # when the terminal is closed
    os.close(terminal)
    # then the run ends by SIGHUP with its grace period
    ended, _, _ = select.select([run], [], [], LIMIT_S)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(run)
    assert (os.waitstatus_to_exitcode(status), saved.exists()) == (130, True)


def test_the_logs_are_complete_although_a_pipe_was_closed_early(temporary: Path) -> None:
    # given a run whose output goes to a pipe
    gate = temporary / "gate"
    os.mkfifo(gate)
    with subprocess.Popen(
        command(temporary, CONTINUES, gate),
        env=environment(temporary),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        read_until(run.stdout.fileno(), b"ready")
        # when the reader of the pipe ends, as `head` does
        run.stdout.close()
        gate.write_text("")
        # then the run goes on, without a traceback
        errors = run.stderr.read()
        assert run.wait(LIMIT_S) == 0
    assert "Traceback" not in errors
    # and the log has all lines
    log = next(temporary.glob("understudy-local-*/*/logs/*.log")).read_text()
    assert "[rank 0] line 99" in log
