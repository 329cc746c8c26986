"""A process ends all its descendants, whatever their parents are and however fast those end."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.unit.launcher.fake_sidecar import alive

#: SIGKILL takes effect at once, as with a free core, so each child has ended before this process looks again.
SCRIPT = """
import os, signal, subprocess, sys, time
from understudy_launcher import prctl
from understudy_local import orphans

def kill(pid, number):
    send(pid, number)
    while open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.001)

prctl.become_subreaper()
shell = "setsid sleep 600 >/dev/null 2>&1 & echo $!; wait"
child = subprocess.Popen(["setsid", "sh", "-c", shell], stdout=subprocess.PIPE, text=True)
print(child.stdout.readline().strip())
send, os.kill = os.kill, kill
"""


@pytest.mark.parametrize(
    "end",
    [
        pytest.param("print(orphans.end_descendants(20.0))", id="all at once"),
        pytest.param("while orphans.kill_children(): pass\nprint([])", id="step by step"),
    ],
)
def test_a_grandchild_ends_even_if_its_parent_ends_at_once(end: str) -> None:
    # given a child in its own session, with a child in another one
    done = subprocess.run([sys.executable, "-c", SCRIPT + end], capture_output=True, text=True, timeout=60, check=True)
    # then both have ended, and no process is left
    grandchild, left = done.stdout.splitlines()
    assert left == "[]"
    assert not alive(int(grandchild))
