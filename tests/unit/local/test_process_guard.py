"""The two processes of a run: whichever ends first, no process remains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.launcher.fake_sidecar import alive, wait_for

#: The process of the run starts an orphan in its own session, and handles SIGTERM. It writes the pids to a file.
SCRIPT = """
import os, select, signal, subprocess, sys
from understudy_local import process_guard

def run(keeper_alive):
    shell = "setsid sleep 600 >/dev/null 2>&1 & echo $!"
    orphan = subprocess.run(shell, shell=True, stdout=subprocess.PIPE, text=True).stdout
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    process_guard.handle_signals()
    with open(sys.argv[1] + ".new", "w") as file:
        file.write(f"{os.getpid()} {orphan}")
    os.rename(sys.argv[1] + ".new", sys.argv[1])
    select.select([keeper_alive], [], [])
    return 0

sys.exit(process_guard.guard(run))
"""


class Kept:
    """A keeper, and the processes behind it."""

    def __init__(self, folder: Path) -> None:
        pids = folder / "pids"
        self.keeper = subprocess.Popen([sys.executable, "-c", SCRIPT, str(pids)], stderr=subprocess.PIPE, text=True)
        wait_for(pids.exists, "the pids of its processes")
        self.run, self.orphan = (int(pid) for pid in pids.read_text().split())
        assert alive(self.orphan)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path)
    yield made
    made.keeper.kill()
    made.keeper.communicate()


def test_a_signal_reaches_the_run_and_its_code_is_the_keepers(kept: Kept) -> None:
    kept.keeper.send_signal(signal.SIGTERM)
    assert kept.keeper.wait(20) == 3
    assert not alive(kept.orphan)


def test_a_killed_run_leaves_no_process(kept: Kept) -> None:
    os.kill(kept.run, signal.SIGKILL)
    _, errors = kept.keeper.communicate(timeout=20)
    assert kept.keeper.returncode == 137
    assert errors == ("understudy: the run was killed by SIGKILL: all processes that it started are killed, too\n")
    assert not alive(kept.orphan)


def test_a_killed_keeper_leaves_no_process(kept: Kept) -> None:
    kept.keeper.kill()
    kept.keeper.wait()
    wait_for(lambda: not alive(kept.run) and not alive(kept.orphan), "the end of its processes")
