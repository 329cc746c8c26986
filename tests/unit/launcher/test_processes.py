"""Workers as processes, without the loop: what reaping tells, and in which order."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from tests.unit.launcher.fake_sidecar import wait_for
from understudy_launcher.events import Aim, GroupEmptied, StepsRead, WorkerEnded
from understudy_launcher.processes import Workers


class Running:
    """Workers whose pipes are noted, and never selected."""

    def __init__(self, *command: str) -> None:
        self.pipes: set[int] = set()
        self.workers = Workers(command, self.pipes.add, self.pipes.remove)
        self.events: list[object] = []

    def spawn(self, local_rank: int = 0) -> None:
        def env(step_fd: int) -> dict[str, str]:
            return dict(os.environ, STEPS=f"/proc/self/fd/{step_fd}")

        self.events += self.workers.spawn(local_rank, env)

    def reap_all(self) -> None:
        def gone() -> bool:
            self.events += self.workers.reap()
            return any(isinstance(event, GroupEmptied) for event in self.events)

        wait_for(gone, "the end of the worker")


def test_the_last_step_comes_before_the_end_and_the_end_before_the_groups() -> None:
    running = Running("sh", "-c", 'echo "1 9" > "$STEPS"; echo "2 9" > "$STEPS"; exit 4')
    running.spawn()
    running.reap_all()
    steps, ended, emptied = running.events
    assert isinstance(steps, StepsRead)
    assert (steps.step, steps.total, steps.reports) == (2, 9, 2)
    assert isinstance(ended, WorkerEnded)
    assert (ended.exit_code, ended.shell_code) == (4, 4)
    assert emptied == GroupEmptied(0)
    assert running.pipes == set()


@pytest.mark.parametrize("line", ["x y", "1", "1 2 3", "-1 -", "1 x", "9" * 100 + " -", ""])
def test_a_line_that_is_no_step_is_ignored(line: str) -> None:
    running = Running("sh", "-c", f'echo "{line}" > "$STEPS"')
    running.spawn()
    running.reap_all()
    assert [type(event) for event in running.events] == [WorkerEnded, GroupEmptied]


def test_a_step_that_is_cut_is_read_when_its_rest_is_there() -> None:
    running = Running("sh", "-c", 'exec 3> "$STEPS"; printf "1 9\\n12" >&3; read go; printf "34 -\\n" >&3')
    read_end, write_end = os.pipe()
    before = os.dup(0)
    os.dup2(read_end, 0)
    try:
        running.spawn()
    finally:
        os.dup2(before, 0)
    (pipe,) = running.pipes
    (first,) = wait_for(lambda: running.workers.read_steps(pipe), "the first step")
    os.write(write_end, b"go\n")
    for fd in (read_end, write_end, before):
        os.close(fd)
    running.reap_all()
    second = running.events[0]
    assert isinstance(second, StepsRead)
    assert ((first.step, first.total), (second.step, second.total)) == ((1, 9), (1234, None))


def test_a_signal_has_its_name() -> None:
    running = Running("sleep", "600")
    running.spawn()
    running.workers.signal(0, Aim.TERM_WORKER)
    running.reap_all()
    (ended, _) = running.events
    assert isinstance(ended, WorkerEnded)
    assert (ended.exit_code, ended.signal, ended.shell_code, ended.message) == (
        None,
        "SIGTERM",
        143,
        "killed by SIGTERM",
    )


def test_a_signal_without_a_name_has_its_number() -> None:
    running = Running(sys.executable, "-c", f"import os; os.kill(os.getpid(), {signal.SIGRTMIN + 3})")
    running.spawn()
    running.reap_all()
    (ended, _) = running.events
    assert isinstance(ended, WorkerEnded)
    assert ended.message == f"killed by signal {signal.SIGRTMIN + 3}"


@pytest.mark.parametrize(("command", "code"), [("/nowhere/x", 127), ("/proc", 126)])
def test_what_cannot_be_started_has_ended(command: str, code: int) -> None:
    running = Running(command)
    running.spawn(1)
    (ended, emptied) = running.events
    assert isinstance(ended, WorkerEnded)
    assert (ended.local_rank, ended.exit_code) == (1, code)
    assert emptied == GroupEmptied(1)
    assert running.pipes == set()


def test_signals_to_what_is_gone_reach_nobody() -> None:
    running = Running("true")
    running.spawn()
    running.reap_all()
    for aim in Aim:
        running.workers.signal(0, aim)
    assert not running.workers.lingering()
