"""Torchrun's workers from its rendezvous' view: real processes, started as torchrun starts them."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.unit.launcher.fake_sidecar import alive, wait_for
from understudy_launcher.events import Aim, WorkerEnded
from understudy_protocol import pod
from understudy_torchrun.agent import causes_first
from understudy_torchrun.workers import SearchSchedule, TorchrunWorkers

ROUND = "1.1.0"


class Started:
    """Workers that a test has started, and the watched pidfds."""

    def __init__(self) -> None:
        self.watched: list[int] = []
        self.workers = TorchrunWorkers(self.watched.append, self.watched.remove)
        self.workers.begin(ROUND)
        self.processes: list[subprocess.Popen[bytes]] = []
        self._gate, self._opener = os.pipe()

    def start(self, script: str, rank: int = 0, size: int = 1, session: bool = True, **env: str) -> int:
        variables = {pod.ENV_ROUND: ROUND, "RANK": str(rank), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(size)}
        command = ["/bin/sh", "-c", script]
        whole: Mapping[str, str] = os.environ | variables | env
        self.processes.append(subprocess.Popen(command, env=whole, start_new_session=session))
        return self.processes[-1].pid

    def see(self, local_rank: int = 0) -> None:
        """The kernel shows a program's environment only a moment after its start."""
        wait_for(lambda: local_rank in self.workers.find(), f"worker {local_rank}")

    def wait_for_go(self) -> str:
        """The line of a worker's script that waits until the worker is watched."""
        return f"read go < /proc/{os.getpid()}/fd/{self._gate}"

    def go(self) -> None:
        os.write(self._opener, b"\n")

    def end(self) -> WorkerEnded:
        """The first worker's end, read before it is reaped."""
        assert select.select(self.watched, [], [], 20)[0]
        ended = self.workers.ended(self.watched[0])
        assert ended is not None
        return ended


@pytest.fixture
def started() -> Iterator[Started]:
    made = Started()
    yield made
    for process in made.processes:
        process.kill()
        process.wait()


def test_all_workers_of_the_round_are_found_once_and_no_other_child(started: Started) -> None:
    started.start("sleep 600", rank=4, size=2)
    started.start("sleep 600", session=False)
    started.start("sleep 600", UNDERSTUDY_ROUND="1.1.9")
    started.see(0)
    assert (started.workers.complete, started.workers.expected) == (False, 2)
    started.start("sleep 600", rank=5, size=2)
    started.see(1)
    assert started.workers.complete
    assert list(started.workers.find()) == []


@pytest.mark.parametrize(
    ("script", "exit_code", "number", "shell_code", "message"),
    [
        ("exit 0", 0, None, 0, "exit code 0"),
        ("exit 3", 3, None, 3, "exit code 3"),
        ("kill -9 $$", None, "SIGKILL", 137, "killed by SIGKILL"),
    ],
)
def test_a_workers_exit_status_is_read_without_reaping_it(
    started: Started, script: str, exit_code: int | None, number: str | None, shell_code: int, message: str
) -> None:
    started.start(f"{started.wait_for_go()}; {script}")
    started.see()
    started.go()
    ended = started.end()
    assert (ended.exit_code, ended.signal, ended.shell_code, ended.message) == (
        exit_code,
        number,
        shell_code,
        message,
    )
    assert started.processes[0].wait() == (exit_code if exit_code is not None else -9)


def test_the_exception_of_a_worker_that_runs_is_read(started: Started, tmp_path: Path) -> None:
    # given a worker without an exception
    error = tmp_path / "error.json"
    started.start("sleep 600", rank=5, size=2, TORCHELASTIC_ERROR_FILE=str(error))
    started.see(1)
    assert started.workers.read_exceptions() == []
    # when it has one, and its process runs
    error.write_text(json.dumps({"message": {"message": "RuntimeError: NCCL"}}))
    # then it is read
    (raised,) = started.workers.read_exceptions()
    assert (raised.local_rank, raised.message) == (1, "RuntimeError: NCCL")
    # and once only
    assert started.workers.read_exceptions() == []


@pytest.mark.parametrize(
    "signal_worker",
    [
        lambda workers: workers.signal(Aim.TERM_WORKER),
        lambda workers: workers.signal_group(1, Aim.TERM_WORKER),
    ],
    ids=["all", "one"],
)
def test_an_exception_after_a_signal_from_here_is_none(
    started: Started, tmp_path: Path, signal_worker: Callable[[TorchrunWorkers], None]
) -> None:
    # given a worker that ignores SIGTERM, and gets it from here
    error = tmp_path / "error.json"
    started.start("trap '' TERM; sleep 600", rank=5, size=2, TORCHELASTIC_ERROR_FILE=str(error))
    started.see(1)
    signal_worker(started.workers)
    # when it raises an exception because of that, then it is not read
    error.write_text(json.dumps({"message": {"message": "SystemExit: SIGTERM"}}))
    assert started.workers.read_exceptions() == []


def test_a_reaped_workers_exit_status_is_unknown_except_for_its_error_file(started: Started, tmp_path: Path) -> None:
    error = tmp_path / "error.json"
    error.write_text(json.dumps({"message": {"message": "RuntimeError: NCCL"}}))
    pid = started.start("sleep 600", TORCHELASTIC_ERROR_FILE=str(error))
    started.see()
    os.kill(pid, 9)
    started.processes[0].wait()
    ended = started.end()
    assert (ended.exit_code, ended.signal, ended.shell_code, ended.message) == (None, None, 0, "RuntimeError: NCCL")


def test_signals_reach_a_worker_with_its_children(started: Started) -> None:
    started.start("sleep 600 & sleep 600 & wait")
    started.see()
    pid = started.processes[0].pid

    def children() -> list[int]:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    family = wait_for(lambda: len(children()) == 2 and [pid, *children()], "the worker's children")
    assert family
    started.workers.signal(Aim.KILL_GROUP)
    wait_for(lambda: not any(alive(member) for member in family), "the end of all of them")


def test_the_children_of_a_worker_can_be_killed_until_it_is_forgotten(started: Started, tmp_path: Path) -> None:
    started.start(f"sleep 600 & echo $! > {tmp_path}/child; {started.wait_for_go()}; exit 1")
    started.see()
    started.go()
    ended = started.end()
    child = int((tmp_path / "child").read_text())
    assert alive(child)
    started.workers.signal_group(ended.local_rank, Aim.KILL_GROUP)
    wait_for(lambda: not alive(child), "the end of the worker's child")
    started.workers.forget(started.watched[0])
    assert started.watched == []


def test_another_round_forgets_the_previous_workers(started: Started) -> None:
    started.start("sleep 600")
    started.see()
    started.workers.begin("1.1.1")
    assert started.watched == []
    assert list(started.workers.find()) == []


def test_a_worker_that_ended_before_it_was_found_is_reported_once_when_all_have_been_started(started: Started) -> None:
    # given two workers; one ended and was reaped before the first look
    started.start("exit 1", rank=0, size=2)
    started.processes[0].wait()
    started.start("exec sleep 100", rank=1, size=2)
    started.see(1)
    assert not started.workers.complete

    # then its end is known, but not its exit code
    (ended,) = started.workers.ended_unseen()
    assert (ended.local_rank, ended.exit_code, ended.signal) == (0, None, None)

    # and no worker is missing any more
    assert started.workers.complete
    assert started.workers.ended_unseen() == []


def test_while_a_child_may_be_a_worker_no_worker_is_reported_as_ended_unseen(started: Started) -> None:
    started.start("exec sleep 100", rank=1, size=2)
    started.see(1)
    started.start("exec sleep 100", UNDERSTUDY_ROUND="another")
    assert started.workers.ended_unseen() == []


def test_workers_that_start_late_are_looked_for_ever_less_often() -> None:
    # given a round whose workers are about to be started, at 100 s
    looks = SearchSchedule()
    looks.begin(100.0)

    # then in the first 5 s the session looks for them at every event, and every 20 ms without one
    looks.searched(104.98)
    assert looks.is_due(104.98)
    assert looks.next(101.0) == 101.02

    # and after that at intervals of a hundredth of the elapsed time
    looks.searched(110.0)
    assert [looks.is_due(at) for at in (110.05, 110.2)] == [False, True]
    looks.searched(3700.0)
    assert [looks.is_due(at) for at in (3730.0, 3740.0)] == [False, True]
    assert looks.next(3700.0) == 3736.0


def test_crashes_come_first_among_workers_that_end_together_and_those_ended_by_torchrun_last() -> None:
    """Found by torchrun's own tests on a slow machine: the neighbor of a killed worker was reported in its place. When
    the worker's end was seen, its neighbor had ended too, by a signal of torchrun or because of its lost peer.
    """
    ended = [
        WorkerEnded(0, None, "SIGTERM", 143, "killed by SIGTERM", 10.0),
        WorkerEnded(1, None, "SIGKILL", 137, "killed by SIGKILL", 12.0),
        WorkerEnded(2, 1, None, 1, "RuntimeError: from its error file", 11.0),
    ]
    assert [end.local_rank for end in causes_first(ended)] == [1, 2, 0]
