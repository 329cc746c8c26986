"""Where workers may write why they failed, and what the launcher makes of it."""

from __future__ import annotations

import json
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
    assert error_files.message_of(str(path)) == message


@pytest.mark.parametrize("content", [b"", b'{"message": "cut of', b"\xff\xfe", None])
def test_what_is_not_understood_is_no_message(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "error.json"
    if content is not None:
        path.write_bytes(content)
    assert error_files.message_of(str(path)) is None
    assert error_files.message_of(None) is None


def test_a_former_launchers_file_is_gone(tmp_path: Path) -> None:
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


def test_a_shared_folder_that_is_not_there_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert Path(error_files.make_folder(str(tmp_path / "missing")) or "").parent == tmp_path
    assert not (tmp_path / "missing").exists()


def test_where_nothing_can_be_written_there_is_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_usable() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(tempfile, "gettempdir", none_usable)
    assert error_files.make_folder("/proc") is None
