"""step(): the launcher's page after it, when it rings the bell, and that it never fails."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import understudy_torch
from understudy_launcher import step_page
from understudy_launcher.step_page import StepFiles, StepFolder, StepReading
from understudy_protocol import compiled, pod
from understudy_protocol.observer import StepProgress
from understudy_torch import progress

PAGE_BYTES = 424


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StepFiles]:
    """The launcher's real files."""
    made = StepFiles(str(tmp_path))
    bell, page = made.inherited
    inherit(monkeypatch, f"{bell},{page}")
    yield made
    made.given()
    made.close()


def inherit(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    """As in a process that has just started with this variable."""
    monkeypatch.setattr(progress, "_files", None)
    monkeypatch.setattr(progress, "_page", None)
    monkeypatch.setattr(progress, "_looked", False)
    if value is None:
        monkeypatch.delenv(pod.ENV_STEP_FD, raising=False)
    else:
        monkeypatch.setenv(pod.ENV_STEP_FD, value)


def open_files() -> dict[str, str]:
    """By descriptor, without the one that reads the folder."""
    return {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if is_open(int(fd))}


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def newest(files: StepFiles) -> StepReading:
    seen = files.page.read()
    assert seen is not None
    return seen


def rings(files: StepFiles) -> int:
    """How often the bell has rung since the last call."""
    try:
        return len(os.read(files.bell, 100))
    except BlockingIOError:
        return 0


def test_worker_and_launcher_agree_on_the_page() -> None:
    assert (progress.ENV_STEP_FD, progress.ENV_STEP_FOLDER) == (pod.ENV_STEP_FD, pod.ENV_STEP_FOLDER)
    assert progress.ENV_START_TIMEOUT == pod.ENV_START_TIMEOUT
    assert progress.MAGIC == step_page.MAGIC
    assert step_page._WORDS.size + step_page._AREA.size == progress.PAGE_BYTES == PAGE_BYTES


def test_the_page_has_the_newest_step(files: StepFiles) -> None:
    before = time.monotonic()
    understudy_torch.step(1, 100)
    assert (newest(files).step, files.page.read()) == (1, None)
    understudy_torch.step(2, 100)
    understudy_torch.step(3)
    seen = newest(files)
    assert (seen.calls, seen.step, seen.total, seen.pid) == (3, 3, None, os.getpid())
    assert before <= seen.at <= time.monotonic()


def test_the_page_may_lie_in_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If the launcher's Python was built for a libc without memfd_create."""
    monkeypatch.delattr(os, "memfd_create")
    files = StepFiles(str(tmp_path))
    inherit(monkeypatch, "{},{}".format(*files.inherited))
    understudy_torch.step(3, 4)
    assert (newest(files).step, list(tmp_path.iterdir())) == (3, [])
    files.given()
    files.close()


def test_only_the_first_step_rings_the_bell(files: StepFiles) -> None:
    assert rings(files) == 0
    for number in range(1000):
        understudy_torch.step(number)
    assert rings(files) == 1


def test_step_accepts_any_integer(files: StepFiles) -> None:
    class Scalar:
        """Like the scalars of numpy and torch."""

        def __int__(self) -> int:
            return 7

    understudy_torch.step(Scalar(), Scalar())  # type: ignore[arg-type]
    assert (newest(files).step, files.page.read()) == (7, None)


class Tensor:
    """Like a tensor of two elements."""

    def __int__(self) -> int:
        raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")


@pytest.mark.parametrize("value", [None, "seven", float("nan"), float("inf"), 1 << 53, 1 << 63, [], -1, Tensor()])
def test_a_value_that_is_no_step_is_ignored(files: StepFiles, value: object) -> None:
    understudy_torch.step(value)  # type: ignore[arg-type]
    assert files.page.read() is None
    understudy_torch.step(5)
    assert newest(files).step == 5


def test_the_largest_total_is_reported(files: StepFiles) -> None:
    understudy_torch.step(5, (1 << 53) - 1)
    assert newest(files).total == 9007199254740991


@pytest.mark.parametrize(
    "total",
    [1 << 53, 1 << 63, -(1 << 63) - 1, 10**5000, -7, -2, float("inf"), float("nan"), "seven", [], Tensor()],
    ids=type,
)
def test_a_total_that_is_no_number_of_steps_counts_as_unknown_and_the_step_is_reported(
    files: StepFiles, total: Any
) -> None:
    understudy_torch.step(4, 9)
    assert (newest(files).step, rings(files)) == (4, 1)
    understudy_torch.step(5, total)
    seen = newest(files)
    assert (seen.calls, seen.step, seen.total, seen.is_counted) == (2, 5, None, False)


def test_a_first_step_with_a_total_of_an_endless_training_rings_the_bell(files: StepFiles) -> None:
    understudy_torch.step(5, float("inf"))  # type: ignore[arg-type]
    assert (newest(files).step, rings(files)) == (5, 1)


def test_the_operator_reads_a_report_of_the_largest_step(files: StepFiles) -> None:
    # given a script that reports the largest step
    understudy_torch.step((1 << 53) - 1, (1 << 53) - 1)
    seen = newest(files)
    # when the coordinator sends it to the operator
    known = {"StepProgress": StepProgress}
    report = StepProgress(seen.step, seen.total, 0.0)
    # then the operator, which rejects long numbers, reads it
    assert compiled.decode_untrusted(compiled.encode(report), known) == report


def test_a_launcher_that_has_ended_is_no_error(files: StepFiles) -> None:
    files.close_bell()
    understudy_torch.step(1)
    understudy_torch.step(2)
    assert newest(files).step == 2


@pytest.mark.parametrize("value", [None, "", "no number", "-5,-5", "99999,99998", "1" * 40 + ",1", "200", "1,2,3"])
def test_step_does_nothing_outside_a_job(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    inherit(monkeypatch, value)
    before = open_files()
    understudy_torch.step(1, 2)
    understudy_torch.step(2, 2)
    assert progress._page is None
    assert open_files() == before


def test_other_files_with_these_numbers_are_not_written(
    monkeypatch: pytest.MonkeyPatch, files: StepFiles, tmp_path: Path
) -> None:
    """A child started with close_fds inherits the variable, not the files."""
    bell, page = files.inherited
    with (tmp_path / "data").open("w+b", buffering=0) as other:
        other.write(bytes(100))
        for numbers in (f"{bell},{other.fileno()}", f"{other.fileno()},{page}"):
            inherit(monkeypatch, numbers)
            understudy_torch.step(1)
        assert (tmp_path / "data").read_bytes() == bytes(100)
    assert (rings(files), files.page.read()) == (0, None)


@pytest.fixture
def folder() -> Iterator[StepFolder]:
    made = StepFolder(ranks=2)
    yield made
    made.close()


def set_step_folder(monkeypatch: pytest.MonkeyPatch, path: str, local_rank: str) -> None:
    inherit(monkeypatch, None)
    monkeypatch.setenv(pod.ENV_STEP_FOLDER, path)
    monkeypatch.setenv("LOCAL_RANK", local_rank)


def test_a_worker_that_inherits_no_files_finds_its_page_by_its_path(
    monkeypatch: pytest.MonkeyPatch, folder: StepFolder
) -> None:
    set_step_folder(monkeypatch, folder.path, "1")
    understudy_torch.step(7, 100)
    understudy_torch.step(8, 100)
    (read,) = folder.steps_read()
    assert (read.local_rank, read.step, read.total, read.reports) == (1, 8, 100, 2)
    assert os.read(folder.bell, 100) == b"!"
    assert folder.steps_read() == []


@pytest.mark.parametrize("local_rank", ["2", "x"])
def test_a_missing_page_is_no_error(monkeypatch: pytest.MonkeyPatch, folder: StepFolder, local_rank: str) -> None:
    set_step_folder(monkeypatch, folder.path, local_rank)
    understudy_torch.step(7)
    assert folder.steps_read() == []


def test_a_deleted_folder_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    set_step_folder(monkeypatch, "/nowhere", "0")
    before = open_files()
    understudy_torch.step(7)
    assert progress._page is None
    assert open_files() == before
    assert not Path("/nowhere").exists()


def test_a_fork_writes_to_the_same_page_and_rings_the_bell_again(files: StepFiles) -> None:
    understudy_torch.step(1)
    child = os.fork()
    if child == 0:
        understudy_torch.step(2)
        os._exit(0)
    os.waitpid(child, 0)
    assert (newest(files).pid, rings(files)) == (child, 2)
    understudy_torch.step(3)
    assert (newest(files).step, rings(files)) == (3, 0)


def test_a_fork_that_never_steps_changes_nothing(files: StepFiles) -> None:
    """For example a DataLoader's workers."""
    understudy_torch.step(1)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert newest(files).pid == os.getpid()


def test_a_call_costs_less_than_two_microseconds(files: StepFiles) -> None:
    """make bench-step measures it; this is the best of several runs, because the machine also does other work."""
    understudy_torch.step(1)
    assert min(_time_of_a_step() for _ in range(50)) < 2e-6


def _time_of_a_step() -> float:
    times = []
    for _ in range(5):
        before = time.perf_counter()
        for number in range(200):
            understudy_torch.step(number, 1000)
        times.append((time.perf_counter() - before) / 200)
    return statistics.median(times)


def test_the_module_imports_only_small_modules() -> None:
    script = "import sys; before = set(sys.modules); import understudy_torch; print(*sorted(set(sys.modules) - before))"
    env = {"PYTHONPATH": str(Path(understudy_torch.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", script], env=env, check=True, capture_output=True, text=True)
    imported = set(done.stdout.split())
    assert {"understudy_torch", "understudy_torch.progress"} <= imported
    assert not imported & {"torch", "numpy", "socket", "json", "faulthandler", "ctypes", "understudy_protocol"}
