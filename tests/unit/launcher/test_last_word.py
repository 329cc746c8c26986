"""What a launcher leaves where the kubelet looks for it."""

from __future__ import annotations

from pathlib import Path

from understudy_launcher.termination_message import write_termination_message


def test_it_is_written_up_to_a_length(tmp_path: Path) -> None:
    file = tmp_path / "termination-log"
    file.touch()
    write_termination_message("y" * 5000, str(file))
    assert file.read_text() == "y" * 1000


def test_a_message_that_a_worker_has_written_stays(tmp_path: Path) -> None:
    file = tmp_path / "termination-log"
    file.write_text("CUDA error: out of memory")
    write_termination_message("its pod is replaced", str(file))
    assert file.read_text() == "CUDA error: out of memory"


def test_where_no_kubelet_has_made_the_file_none_is_made(tmp_path: Path) -> None:
    write_termination_message("7 of 8 devices answer", str(tmp_path / "termination-log"))
    assert list(tmp_path.iterdir()) == []
