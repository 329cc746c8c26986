"""`make pictures`: pictures for the documentation.

- A terminal in which verbs show a real run of `understudy local` after the kill of a worker.
- The dashboard's page of a job, in light and dark, of the same run, after it has lost more workers and a member.
- The dashboard's page of all jobs, in light and dark. A fake API server has a fleet of 120 jobs.
"""

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.paths import CHECKOUT
from tests.ui import large_fleets
from tests.ui.browser import Page, browser
from tests.ui.fake_cluster import fake_cluster
from tests.ui.local_session import CLI, LIMIT_S, NAME, Terminal, run_of_tutorial, wait_for
from tests.ui.serving import serving

FOLDER = CHECKOUT / "docs" / "images"
WIDTH = 1200
TERMINAL = FOLDER / "terminal.svg"


def record_terminal() -> None:
    """In the run of `local_session`."""
    terminal = Terminal()
    wait_for_step(60)
    terminal.run("local", "kill", "3")
    wait_for_step(90)
    for verb in ("get", "why", "timeline", "goodput"):
        terminal.run("local", verb)
    TERMINAL.write_text(terminal.picture("understudy local"), encoding="utf-8")
    report(TERMINAL)


def lose(*targets: str) -> None:
    """One after the other, each when training has resumed."""
    for target in targets:
        before = current_step()
        Terminal().run("local", "kill", target)
        wait_for_step(before + 60)


def wait_for_step(number: int) -> None:
    wait_for(lambda: current_step() >= number)


def current_step() -> int:
    found = re.search(r" step (\d+)/", Terminal().run("local", "get", NAME))
    return 0 if found is None else int(found[1])


async def take(page: Page, url: str, name: str, height: int, text: str) -> None:
    """text: that the page has when it is complete."""
    for scheme in ("light", "dark"):
        await page.look(is_dark=scheme == "dark", width=WIDTH, height=height)
        await page.open("about:blank")
        await page.open(url)
        await page.wait_for_text(text)
        file = FOLDER / f"dashboard-{name}-{scheme}.webp"
        file.write_bytes(await page.picture(format="webp", quality=80))
        report(file)
    await page.open("about:blank")


def report(file: Path) -> None:
    print(f"{file.relative_to(CHECKOUT)}: {file.stat().st_size // 1024} KiB")


@contextmanager
def local_dashboard() -> Iterator[str]:
    """The address of the run's page."""
    command = [*CLI, "local", "dashboard", "--port", "0"]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+/", process.stdout.readline())
        assert found is not None
        yield f"{found[0]}#/job/local/{NAME}"
    finally:
        process.terminate()
        process.wait(LIMIT_S)


async def main() -> None:
    async with browser() as page:
        with run_of_tutorial("--nodes", "4", "--spares", "1", "--nproc", "2"):
            record_terminal()
            lose("node-1", "5", "node-2")
            with local_dashboard() as url:
                await take(page, url, "job", 1240, "Faults (4)")
        with fake_cluster() as cluster:
            large_fleets.fill_fleet(cluster, 120, time.time())
            async with serving(cluster) as url:
                await take(page, f"{url}#/jobs", "fleet", 620, "Jobs (120)")


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
