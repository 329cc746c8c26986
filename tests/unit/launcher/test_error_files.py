"""The files in which workers write why they failed, and how the launcher reads them."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from understudy_launcher import error_files


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "…"}}}, "ValueError: x"),
        ({"message": "OOM"}, "OOM"),
        ({"message": {"message": "MemoryError: "}}, "MemoryError"),
        ({"message": "\n  first\nsecond"}, "first"),
        ({"message": "x" * 600}, "x" * 500),
        ({"message": ""}, None),
        ({"message": {"extraInfo": {}}}, None),
        ({"message": 3}, None),
        (["message"], None),
    ],
)
def test_the_first_line_of_a_workers_message(tmp_path: Path, content: Any, message: str | None) -> None:
    path = tmp_path / "error.json"
    path.write_text(json.dumps(content))
    assert error_files.read(str(path)).message == message


@pytest.mark.parametrize(
    ("callstack", "traceback"),
    [
        ("Traceback:\n  line 7\nValueError: x\n", "Traceback:\n  line 7\nValueError: x"),
        ("first line\n" + "x" * 1990 + "\nValueError: x", "ValueError: x"),  # whole lines of the last 2,000 characters
        ("y" * 3000, "y" * 2000),
        ("", ""),
        (["Traceback"], ""),
        (None, ""),
    ],
)
def test_the_end_of_a_workers_traceback(tmp_path: Path, callstack: Any, traceback: str) -> None:
    path = tmp_path / "error.json"
    path.write_text(json.dumps({"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": callstack}}}))
    assert error_files.read(str(path)).traceback == traceback


@pytest.mark.parametrize("content", [b"", b'{"message": "cut of', b"\xff\xfe", None])
def test_content_that_cannot_be_parsed_is_no_message(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "error.json"
    if content is not None:
        path.write_bytes(content)
    assert error_files.read(str(path)) == error_files.NOTHING
    assert error_files.read(None) == error_files.NOTHING


def test_a_fifo_in_its_place_is_no_message(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "error.json")
    assert error_files.read(str(tmp_path / "error.json")) == error_files.NOTHING


@pytest.mark.parametrize(
    ("timestamp", "written_at", "at"),
    [
        ("1700000000", 1700000000.75, 1700000000.75),  # torch writes whole seconds
        ("1700000000", 1700000001.99, 1700000001.99),
        ("1700000000", 1700000002.0, 1700000000.0),  # the file was written to later
        ("1700000000", 1699999999.9, 1700000000.0),
        (1700000000.5, 1700000001.0, 1700000001.0),
        ("1e999", 1700000000.0, None),
        ("nan", 1700000000.0, None),
        ("yesterday", 1700000000.0, None),
        (["1700000000"], 1700000000.0, None),
        (None, 1700000000.0, None),
    ],
)
def test_the_time_of_the_exception(tmp_path: Path, timestamp: Any, written_at: float, at: float | None) -> None:
    path = tmp_path / "error.json"
    path.write_text(json.dumps({"message": {"message": "x", "extraInfo": {"timestamp": timestamp}}}))
    os.utime(path, (written_at, written_at))
    assert error_files.read(str(path)).at == at


@pytest.mark.parametrize("message", ["x", 3, None, {"extraInfo": "x"}, {"extraInfo": {}}])
def test_a_message_without_a_time(tmp_path: Path, message: Any) -> None:
    path = tmp_path / "error.json"
    path.write_text(json.dumps({"message": message}))
    assert error_files.read(str(path)).at is None


@pytest.mark.parametrize(
    ("at", "expected"),
    [(105.0, 105.0), (99.5, 100.0), (98.9, 110.0), (110.1, 110.0), (0.0, 110.0), (None, 110.0)],
    ids=["while it ran", "rounded down", "before it ran", "after its end", "never", "unknown"],
)
def test_a_worker_fails_between_its_start_and_its_end(at: float | None, expected: float) -> None:
    assert error_files.Failure("x", at).time_of(started_at=100.0, ended_at=110.0) == expected


def test_an_earlier_launchers_file_is_deleted(tmp_path: Path) -> None:
    folder = error_files.make_folder(str(tmp_path))
    assert folder is not None
    assert Path(folder).parent == tmp_path
    Path(folder, "0.1.2-3.json").write_text("old")
    path = error_files.fresh_path(folder, "0.1.2", 3)
    assert Path(path).name == "0.1.2-3.json"
    assert not Path(path).exists()


def test_a_shared_folder_that_cannot_be_written_is_replaced_by_the_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert Path(error_files.make_folder("/proc") or "").parent == tmp_path


def test_a_missing_shared_folder_is_not_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert Path(error_files.make_folder(str(tmp_path / "missing")) or "").parent == tmp_path
    assert not (tmp_path / "missing").exists()


def test_without_a_writable_folder_there_is_no_error_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_usable() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(tempfile, "gettempdir", none_usable)
    assert error_files.make_folder("/proc") is None
