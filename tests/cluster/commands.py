"""Runs programs, waits for conditions, and reports times.

Rules: every program and every wait has a time limit, and a failure contains the last
lines of the program's output. This module does not depend on Kubernetes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .failures import ClusterError, CommandFailed

TAIL_LINES = 25
HEARTBEAT_S = 20.0


@dataclass
class Progress:
    """Prints lines with the seconds since its creation, to stderr unless quiet."""

    quiet: bool = False
    started: float = field(default_factory=time.monotonic)

    def report(self, text: str) -> None:
        if not self.quiet:
            print(f"[{time.monotonic() - self.started:6.1f} s] {text}", file=sys.stderr, flush=True)


def tail(text: str, lines: int = TAIL_LINES) -> str:
    """The last lines of a text, indented, for an error message."""
    return "\n".join("    " + line for line in text.rstrip().splitlines()[-lines:])


def run(
    argv: Sequence[str | Path],
    *,
    timeout_s: float = 30,
    text_input: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    check: bool = True,
) -> str:
    """Run a program to its end and return its stdout; its stderr is in the error.

    `env` is added to the environment. Raises CommandFailed when the program cannot be
    started, ends with another status than 0 (unless `check` is false), or runs longer
    than `timeout_s`.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words,
            input=text_input,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        raise CommandFailed(f"`{' '.join(words)}` did not end within {timeout_s:.0f} s") from expired
    except OSError as error:
        raise CommandFailed(f"`{words[0]}` cannot be started: {error}") from error
    if check and done.returncode != 0:
        lines = tail(done.stderr or done.stdout)
        raise CommandFailed(f"`{' '.join(words)}` ended with status {done.returncode}:\n{lines}")
    return done.stdout


def follow(
    argv: Sequence[str | Path],
    *,
    timeout_s: float,
    log: Path,
    heartbeat: Callable[[], None] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> None:
    """Run a long program with its output in `log`, calling `heartbeat` every HEARTBEAT_S.

    Raises CommandFailed with the log's last lines. When this process is interrupted, the
    program is ended, so that no build continues in the background.
    """
    words = [str(word) for word in argv]
    deadline = time.monotonic() + timeout_s
    with log.open("w") as output:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **(env or {})},
                cwd=cwd,
            )
        except OSError as error:
            raise CommandFailed(f"`{words[0]}` cannot be started: {error}") from error
    with process:
        try:
            while _is_running(process, min(HEARTBEAT_S, max(0.0, deadline - time.monotonic()))):
                if time.monotonic() >= deadline:
                    raise CommandFailed(f"`{' '.join(words)}` did not end within {timeout_s:.0f} s; its output: {log}")
                if heartbeat:
                    heartbeat()
        finally:
            if process.poll() is None:
                process.kill()
    if process.returncode != 0:
        lines = tail(log.read_text(errors="replace"))
        raise CommandFailed(f"`{' '.join(words)}` ended with status {process.returncode}:\n{lines}\n  all of it: {log}")


def _is_running(process: subprocess.Popen[bytes], within_s: float) -> bool:
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        return True
    return False


def wait_until(
    condition: Callable[[], bool],
    *,
    limit_s: float,
    failure: Callable[[], ClusterError],
    interval_s: float = 0.1,
) -> None:
    """Wait until `condition` holds; after `limit_s` raise the error that `failure` returns.

    `condition` may raise a ClusterError to stop at once.
    """
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= deadline:
            raise failure()
        time.sleep(interval_s)


def write_if_changed(file: Path, content: str) -> Path:
    """Write a file atomically, unless it has this content already.

    kube-proxy, for one, ends itself when its configuration is written, changed or not.
    """
    if not file.exists() or file.read_text() != content:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_name(file.name + ".new")
        unfinished.write_text(content)
        unfinished.rename(file)
    return file
