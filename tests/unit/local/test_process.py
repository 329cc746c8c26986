"""A process of a run: its lines, its end, and the end of all its descendants."""

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
        self.reported = asyncio.Event()

    def __call__(self, line: str, *, error: bool) -> None:
        self.reported.set()
        (self.err if error else self.out).append(line)


async def run(script: str) -> tuple[Lines, int]:
    lines = Lines()
    started = await process.start([sys.executable, "-c", script], os.environ, lines)
    return lines, await started.ended()


async def test_a_process_has_its_lines_and_its_code() -> None:
    lines, code = await run(
        "import sys; print('a\\nb'); print('c', file=sys.stderr); print('end', end=''); sys.exit(3)"
    )
    assert (lines.out, lines.err, code) == (["a", "b", "end"], ["c"], 3)


async def test_a_line_that_is_too_long_is_split() -> None:
    lines, _ = await run(f"print('x' * {3 * LINE_BYTES})")
    assert "".join(lines.out) == "x" * (3 * LINE_BYTES)
    assert max(map(len, lines.out)) <= 2 * LINE_BYTES


async def test_a_signal_has_the_exit_code_of_a_shell() -> None:
    assert (await run("import os; os.kill(os.getpid(), 9)"))[1] == 137


async def test_a_grandchild_that_keeps_the_pipe_open_does_not_delay_the_end() -> None:
    script = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid)"
    lines, code = await run(script)
    assert code == 0
    psutil.Process(int(lines.out[0])).kill()


async def test_a_kill_of_a_process_kills_its_descendants() -> None:
    script = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True); import time; time.sleep(60)"
    lines = Lines()
    started = await process.start([sys.executable, "-c", script], os.environ, lines)
    async with asyncio.timeout(10):
        await lines.reported.wait()
    started.kill_tree()
    assert await started.ended() == 137
    assert _lives(int(lines.out[0])) is False


def _lives(pid: int) -> bool:
    """SIGKILL has been sent; the kernel may need a moment."""
    try:
        psutil.Process(pid).wait(10)
    except psutil.NoSuchProcess:
        return False
    except psutil.TimeoutExpired:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
