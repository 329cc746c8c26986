"""step(): one line into the launcher's pipe, and never a failure."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import understudy_torch
from understudy_protocol import pod
from understudy_torch import progress


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    read_end, write_end = os.pipe2(os.O_NONBLOCK)
    inherit(monkeypatch, str(write_end))
    yield read_end, write_end
    for fd in (read_end, write_end):
        with contextlib.suppress(OSError):
            os.close(fd)


def inherit(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    """As in a process that has just started with that variable."""
    monkeypatch.setattr(progress, "_fd", progress._UNKNOWN)
    if value is None:
        monkeypatch.delenv(pod.ENV_STEP_FD, raising=False)
    else:
        monkeypatch.setenv(pod.ENV_STEP_FD, value)


def test_the_variables_are_the_protocols() -> None:
    assert (progress.ENV_STEP_FD, progress.ENV_STEP_FIFO) == (pod.ENV_STEP_FD, pod.ENV_STEP_FIFO)


def test_a_line_a_step(pipe: tuple[int, int]) -> None:
    understudy_torch.step(1, 100)
    understudy_torch.step(2)
    assert os.read(pipe[0], 100) == b"1 100\n2 -\n"


def test_any_integer_will_do(pipe: tuple[int, int]) -> None:
    class Scalar:
        """As numpy and torch have them."""

        def __int__(self) -> int:
            return 7

    understudy_torch.step(Scalar(), Scalar())  # type: ignore[arg-type]
    assert os.read(pipe[0], 100) == b"7 7\n"


def test_a_full_pipe_drops_the_line_and_takes_later_ones(pipe: tuple[int, int]) -> None:
    for number in range(100_000):
        understudy_torch.step(number)
    while len(os.read(pipe[0], 1 << 20)) == 1 << 20:
        pass
    understudy_torch.step(7)
    assert os.read(pipe[0], 100) == b"7 -\n"


def test_a_launcher_that_is_gone_is_no_error(pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    understudy_torch.step(1)
    understudy_torch.step(2)


@pytest.mark.parametrize("value", [None, "", "no number", "-5", "99999", "1" * 40])
def test_outside_of_a_job_it_does_nothing(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    inherit(monkeypatch, value)
    understudy_torch.step(1, 2)


def test_a_file_that_has_the_pipes_number_by_now_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A child started with close_fds inherits the variable, not the pipe."""
    with (tmp_path / "data").open("wb", buffering=0) as other:
        inherit(monkeypatch, str(other.fileno()))
        understudy_torch.step(1)
    assert (tmp_path / "data").read_bytes() == b""


def test_the_read_end_of_a_pipe_is_left_alone(monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int]) -> None:
    inherit(monkeypatch, str(pipe[0]))
    understudy_torch.step(1)


@pytest.mark.parametrize(("rank", "told"), [("4", b"1 100\n"), ("5", b"")])
def test_torchruns_first_worker_of_a_pod_finds_the_pipe_by_its_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rank: str, told: bytes
) -> None:
    os.mkfifo(tmp_path / "steps")
    read_end = os.open(tmp_path / "steps", os.O_RDWR | os.O_NONBLOCK)
    inherit(monkeypatch, None)
    for name, value in ((pod.ENV_STEP_FIFO, str(tmp_path / "steps")), ("RANK", rank), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    understudy_torch.step(1, 100)
    assert _in(read_end) == told
    os.close(read_end)


def _in(pipe: int) -> bytes:
    try:
        return os.read(pipe, 100)
    except BlockingIOError:
        return b""


def test_a_path_that_is_no_pipe_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    inherit(monkeypatch, None)
    monkeypatch.setenv(pod.ENV_STEP_FIFO, str(tmp_path / "data"))
    understudy_torch.step(1)
    assert (tmp_path / "data").read_bytes() == b""


def test_a_fork_repeats_nothing(pipe: tuple[int, int]) -> None:
    understudy_torch.step(1)
    child = os.fork()
    if child == 0:
        understudy_torch.step(2)
        os._exit(0)
    os.waitpid(child, 0)
    understudy_torch.step(3)
    assert os.read(pipe[0], 100) == b"1 -\n2 -\n3 -\n"


def test_it_costs_a_few_microseconds(pipe: tuple[int, int]) -> None:
    best_s = min(_time_of_a_step(pipe[0]) for _ in range(20))
    assert best_s < 20e-6


def _time_of_a_step(read_end: int) -> float:
    before = time.perf_counter()
    for number in range(200):
        understudy_torch.step(number, 1000)
    taken = time.perf_counter() - before
    os.read(read_end, 1 << 16)
    return taken / 200


def test_it_imports_next_to_nothing() -> None:
    script = "import sys; before = set(sys.modules); import understudy_torch; print(*sorted(set(sys.modules) - before))"
    env = {"PYTHONPATH": str(Path(understudy_torch.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", script], env=env, check=True, capture_output=True, text=True)
    imported = set(done.stdout.split())
    assert {"understudy_torch", "understudy_torch.progress"} <= imported
    assert not imported & {"torch", "numpy", "socket", "json", "understudy_protocol"}
