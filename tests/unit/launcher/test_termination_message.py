"""The launcher's termination message."""

from __future__ import annotations

from pathlib import Path

from understudy_launcher.termination_message import write_termination_message


def test_the_message_is_written_up_to_a_length(tmp_path: Path) -> None:
    file = tmp_path / "termination-log"
    file.touch()
    write_termination_message("y" * 5000, str(file))
    assert file.read_text() == "y" * 1000


def test_a_workers_message_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "termination-log"
    file.write_text("CUDA error: out of memory")
    write_termination_message("its pod is replaced", str(file))
    assert file.read_text() == "CUDA error: out of memory"


def test_the_file_is_not_created_if_the_kubelet_has_not_created_it(tmp_path: Path) -> None:
    write_termination_message("7 of 8 devices answer", str(tmp_path / "termination-log"))
    assert list(tmp_path.iterdir()) == []
