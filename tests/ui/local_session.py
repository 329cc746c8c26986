"""A real run of `understudy local`, with the training script of docs/tutorials/local-mode.md, and a terminal in which
its verbs run. The terminal keeps the bytes that it gets, and draws them as an SVG."""

import io
import os
import pty
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.cluster.paths import CHECKOUT

NAME, COLUMNS, LIMIT_S = "llm", 104, 90.0
TUTORIAL = CHECKOUT / "docs" / "tutorials" / "local-mode.md"
CLI = (sys.executable, "-m", "understudy_cli")


class Terminal:
    """A shell session: each command with all that it wrote to its terminal."""

    def __init__(self) -> None:
        self._session = ""

    def run(self, *words: str) -> str:
        """`understudy` with these words. Return the text without colors."""
        end, terminal = pty.openpty()
        env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
        process = subprocess.Popen([*CLI, *words], stdin=terminal, stdout=terminal, stderr=terminal, env=env)
        os.close(terminal)
        written = b"".join(_written(end))
        os.close(end)
        assert process.wait(LIMIT_S) == 0, written
        text = written.decode().replace("\r\n", "\n")
        self._session += f"\x1b[32m$\x1b[0m \x1b[1munderstudy {' '.join(words)}\x1b[0m\n{text}\n"
        return re.sub(r"\x1b\[[0-9;]*m", "", text)

    def picture(self, title: str) -> str:
        console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
        console.print(Text.from_ansi(self._session.rstrip()), soft_wrap=False)
        drawn = console.export_svg(title=title)
        return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # of a CDN; the next family is monospace


def _written(end: int) -> Iterator[bytes]:
    while True:
        try:
            yield os.read(end, 65536)
        except OSError:
            return  # the process has closed its side


@contextmanager
def run_of_tutorial(*options: str) -> Iterator[None]:
    """The run, from its first step to its end by SIGTERM."""
    script = re.search(r"```python\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), re.DOTALL)
    assert script is not None
    with tempfile.TemporaryDirectory(prefix="pictures-") as folder:
        file = Path(folder) / "train.py"
        file.write_text(
            script[1].replace("/tmp/train.step", f"{folder}/train.step").replace("STEPS = 600", "STEPS = 6000")
        )
        command = [*CLI, "local", "--plain", "--name", NAME, *options, "--", sys.executable, str(file)]
        os.environ["TMPDIR"] = folder  # so the verbs find no other run of this user
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: "step" in Terminal().run("local", "get", NAME))
            yield
        finally:
            run.terminate()
            run.wait(LIMIT_S)
            del os.environ["TMPDIR"]


def wait_for(is_true: Callable[[], bool]) -> None:
    """Failures of a verb count as false: the run may not have begun."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            if is_true():
                return
        except AssertionError:
            assert time.monotonic() < deadline
        assert time.monotonic() < deadline
