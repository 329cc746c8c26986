"""A process of a run: its lines, its end, and the end of all that it has started."""

from __future__ import annotations

import asyncio
import os
import sys

import psutil

from understudy_local import process

LINE_BYTES = 64 * 1024


class Lines:
    def __init__(self) -> None:
        self.out: list[str] = []
        self.err: list[str] = []
        self.told = asyncio.Event()

    def __call__(self, line: str, *, error: bool) -> None:
        self.told.set()
        (self.err if error else self.out).append(line)


async def run(script: str) -> tuple[Lines, int]:
    lines = Lines()
    started = await process.start([sys.executable, "-c", script], os.environ, lines)
    return lines, await started.ended()


async def test_its_lines_and_its_code() -> None:
    lines, code = await run(
        "import sys; print('a\\nb'); print('c', file=sys.stderr); print('end', end=''); sys.exit(3)"
    )
    assert (lines.out, lines.err, code) == (["a", "b", "end"], ["c"], 3)


async def test_a_line_that_is_too_long_comes_in_pieces() -> None:
    lines, _ = await run(f"print('x' * {3 * LINE_BYTES})")
    assert "".join(lines.out) == "x" * (3 * LINE_BYTES)
    assert max(map(len, lines.out)) <= 2 * LINE_BYTES


async def test_a_signal_is_told_as_a_shell_tells_it() -> None:
    assert (await run("import os; os.kill(os.getpid(), 9)"))[1] == 137


async def test_a_grandchild_that_keeps_the_pipe_open_holds_up_nobody() -> None:
    script = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid)"
    lines, code = await run(script)
    assert code == 0
    psutil.Process(int(lines.out[0])).kill()


async def test_killing_it_kills_what_it_has_started() -> None:
    script = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True); import time; time.sleep(60)"
    lines = Lines()
    started = await process.start([sys.executable, "-c", script], os.environ, lines)
    async with asyncio.timeout(10):
        await lines.told.wait()
    started.kill_tree()
    assert await started.ended() == 137
    assert _lives(int(lines.out[0])) is False


def _lives(pid: int) -> bool:
    """SIGKILL has been sent: what is left is the kernel's to end."""
    try:
        psutil.Process(pid).wait(10)
    except psutil.NoSuchProcess:
        return False
    except psutil.TimeoutExpired:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
