"""The workers of a launcher, among real processes with the names and the sessions of its children."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest

from understudy_local.rank_process import worker_pids

#: A launcher with its log process, and so many fork servers, each of which is a fork of the one before. The last one
#: forks two workers, and each worker forks a process into its own session. Prints the pids of the workers once all
#: processes run: one that is forked later outlives the test, and keeps the pipe open.
LAUNCHER = """
import os, signal, sys

def fork(name, leads_session=True):
    ready, done = os.pipe()
    pid = os.fork()
    if pid == 0:
        with open("/proc/self/comm", "w") as comm:
            comm.write(name)
        if leads_session:
            os.setsid()
        os.write(done, b".")
    else:
        os.read(ready, 1)
    return pid

if fork("logs"):
    for _ in range(int(sys.argv[1])):
        if fork("zygote"):
            break
    else:
        workers = []
        ready, done = os.pipe()
        for _ in range(2):
            workers.append(fork("python"))
            if not workers[-1]:
                if fork("loader", leads_session=False):
                    os.write(done, b".")
                break
        else:
            for _ in workers:
                os.read(ready, 1)
            print(*workers, flush=True)
signal.pause()
"""
Start = Callable[[int], tuple[int, list[int]]]


@pytest.fixture
def start() -> Iterator[Start]:
    """The pids of a launcher with so many fork servers, and of its workers."""
    launchers: list[subprocess.Popen[str]] = []

    def begin(servers: int) -> tuple[int, list[int]]:
        command = [sys.executable, "-c", LAUNCHER, str(servers)]
        launchers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stdout = launchers[-1].stdout
        assert stdout is not None
        return launchers[-1].pid, [int(word) for word in stdout.readline().split()]

    yield begin
    for launcher in launchers:
        for process in psutil.Process(launcher.pid).children(recursive=True):
            process.kill()
        launcher.kill()
        launcher.communicate()


@pytest.mark.parametrize("servers", [0, 1, 2, 3])
def test_the_workers_are_found_behind_any_number_of_fork_servers(start: Start, servers: int) -> None:
    launcher, workers = start(servers)
    assert len(workers) == 2
    assert worker_pids(launcher) == workers


def test_a_process_that_has_ended_has_no_workers(start: Start) -> None:
    assert worker_pids(2**22 + 1) == []
