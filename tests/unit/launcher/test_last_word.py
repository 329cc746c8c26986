"""What a launcher leaves where the kubelet looks for it."""

from __future__ import annotations

from pathlib import Path

from understudy_launcher.last_word import leave


def test_it_takes_the_place_of_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "termination-log"
    file.write_text("x" * 200)
    leave("7 of 8 devices answer", str(file))
    assert file.read_text() == "7 of 8 devices answer"
    leave("y" * 5000, str(file))
    assert file.read_text() == "y" * 1000


def test_where_no_kubelet_has_made_the_file_none_is_made(tmp_path: Path) -> None:
    leave("7 of 8 devices answer", str(tmp_path / "termination-log"))
    assert list(tmp_path.iterdir()) == []
