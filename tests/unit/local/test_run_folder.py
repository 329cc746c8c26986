"""The files of a run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from understudy_local import run_folder
from understudy_local.options import UsageError

KEPT = 5


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """With a short path, because of sockets."""
    with tempfile.TemporaryDirectory(prefix="understudy-", dir="/tmp") as folder:
        monkeypatch.setattr("tempfile.tempdir", folder)
        yield Path(folder)


def test_an_active_run_is_found_and_its_name_is_taken() -> None:
    run = run_folder.make("mine")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(run.control))
        listener.listen()
        assert run_folder.live() == [run]
        with pytest.raises(UsageError, match="--name mine: an active run has this name"):
            run_folder.make("mine")


def test_runs_that_start_at_the_same_time_keep_their_folders() -> None:
    runs = [run_folder.make(f"run-{number}") for number in range(KEPT + 3)]
    assert [run for run in runs if not run.logs.exists()] == []


def test_the_name_of_a_run_that_starts_is_taken() -> None:
    run_folder.make("mine")
    with pytest.raises(UsageError, match="--name mine: an active run has this name"):
        run_folder.make("mine")


def test_a_killed_run_is_inactive_although_it_left_its_socket(temporary: Path) -> None:
    make = f"import tempfile; tempfile.tempdir = {str(temporary)!r}; from understudy_local import run_folder; "
    environment = {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", make + "run_folder.make('mine')"], env=environment, check=True, timeout=30)
    run = run_folder.of("mine")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(run.control))
    assert run_folder.live() == []
    assert run_folder.make("mine") == run


def test_after_a_run_its_logs_remain_and_its_key_is_deleted() -> None:
    run = run_folder.make("")
    run.sidecar("node-0").mkdir(parents=True)
    (run.sidecar("node-0") / "key").write_text("secret")
    run.log("node-0").write_text("said")
    run.clear()
    assert [path.name for path in run.path.iterdir()] == ["logs"]


def test_the_newest_few_are_kept() -> None:
    for number in range(KEPT + 3):
        run_folder.make(f"run-{number}").clear()
    kept = {path.name for path in run_folder.make("last").path.parent.iterdir()}
    assert len(kept) == KEPT
    assert "last" in kept


@pytest.mark.parametrize("name", ["a/b", "..", "x" * 33, "a b"])
def test_a_run_name_has_letters_digits_and_dashes(name: str) -> None:
    with pytest.raises(UsageError, match="expected letters, digits and dashes"):
        run_folder.make(name)


def test_a_temporary_folder_whose_path_is_too_long_for_a_socket_is_rejected(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = temporary / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with pytest.raises(UsageError, match=r"bytes too long for Unix sockets: set TMPDIR to a folder"):
        run_folder.make("mine")


def test_a_folder_of_another_user_is_not_used(temporary: Path) -> None:
    run_folder.make("")
    parent = next(temporary.iterdir())
    parent.chmod(0o777)
    with pytest.raises(UsageError, match="other users can access or own"):
        run_folder.make("")
