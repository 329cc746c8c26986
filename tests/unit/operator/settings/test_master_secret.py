"""The file with the master secret, and the operator's exit if it is invalid."""

import logging
import os
import tempfile
from pathlib import Path

import pytest

from tests.unit.obstacles import UNREADABLE
from understudy_operator import __main__ as program
from understudy_operator.settings import read_master_secret

PLAIN = b"a secret that nobody is to read!"


def read(path: Path) -> bytes:
    return read_master_secret({"UNDERSTUDY_MASTER_SECRET": str(path)})


@pytest.mark.parametrize("content", [PLAIN, PLAIN + b"\n", b"\x00\xff" * 16, b"x" * 4096])
def test_all_bytes_of_the_file_count(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "secret").write_bytes(content)
    assert read(tmp_path / "secret") == content


def test_without_the_variable_the_file_is_read_from_the_charts_mount_path() -> None:
    with pytest.raises(ValueError, match="the file /understudy-master/secret cannot be read"):
        read_master_secret({})


@pytest.mark.attack("C3", "reads in the log what a file has that is no master secret", before="refused, too")
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read (No such file or directory)"),
        (b"", "has 0 bytes"),
        (PLAIN[:31], "has 31 bytes"),
        (PLAIN * 129, "has more than 4096 bytes"),
    ],
)
def test_a_file_without_a_master_secret_ends_the_operator_with_one_line_that_states_the_fix(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    content: bytes | None,
    reason: str,
) -> None:
    # given the file
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("UNDERSTUDY_SIDECAR_IMAGE", "example.com/sidecar:1")
    monkeypatch.delenv("UNDERSTUDY_LEASE", raising=False)
    monkeypatch.setenv("UNDERSTUDY_MASTER_SECRET", str(path))
    # when the operator starts
    with caplog.at_level(logging.ERROR):
        assert program.main() == 2
    # then it exits with one line that does not quote the file
    (lines,) = [record.getMessage() for record in caplog.records]
    assert lines == (
        f"the file {path} {reason}: the operator derives the keys of all jobs from it; mount a Secret there whose file "
        "has 32 to 4096 random bytes (chart: masterSecret)"
    )
    assert "nobody" not in lines


def test_a_folder_is_rejected_as_master_secret(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot be read \(Is a directory\)"):
        read(tmp_path)


def test_an_unreadable_file_is_rejected_as_master_secret() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = Path(folder, "secret")
        # read it as a user other than root, which can read every file
        with (
            UNREADABLE["unreadable-file"].at(path, path),
            pytest.raises(ValueError, match=r"cannot be read \(Permission denied\)"),
        ):
            read(path)
