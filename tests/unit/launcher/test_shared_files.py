"""A file in the shared folder may be anything: the launcher, or a script without one, ignores it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.obstacles import NOBODY, OBSTACLES, UNREADABLE, Obstacle
from understudy_launcher import error_files
from understudy_launcher.verdict_file import NodeFinding, read_node_finding
from understudy_protocol import files, pod, wire
from understudy_protocol.enums import Verdict
from understudy_protocol.membership import NodeVerdict
from understudy_torch import sigterm

FAULTY = wire.encode(NodeVerdict(Verdict.FAULTY, "Xid 79"))
FAILURE = json.dumps({"message": "a key that a link leads to"})
pytestmark = pytest.mark.timeout(20)  # a FIFO that blocks fails the test


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can access."""
    with tempfile.TemporaryDirectory(prefix="understudy-") as path:
        os.chmod(path, 0o777)
        yield Path(path)


READERS: dict[str, tuple[str, Callable[[Path], object], object]] = {
    "launcher": (FAULTY, lambda path: read_node_finding(str(path.parent), 0.0), NodeFinding()),
    "script": (FAULTY, lambda path: sigterm.read_hardware_finding(str(path), 0.0), ""),
    "error-file": (FAILURE, lambda path: error_files.read(str(path)), error_files.NOTHING),
}


@pytest.mark.attack("C4", "an entry instead of verdict.json or of a worker's error file", before="a FIFO blocked")
@pytest.mark.parametrize("obstacle", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize(("content", "read", "nothing"), READERS.values(), ids=READERS)
def test_a_file_that_is_not_regular_is_ignored(
    folder: Path, content: str, read: Callable[[Path], object], nothing: object, obstacle: Obstacle
) -> None:
    private = folder / "private"
    private.write_text(content)
    with obstacle.at(folder / pod.VERDICT_FILE, private):
        assert read(folder / pod.VERDICT_FILE) == nothing


@pytest.mark.parametrize(("content", "read", "nothing"), READERS.values(), ids=READERS)
def test_a_regular_file_is_read(folder: Path, content: str, read: Callable[[Path], object], nothing: object) -> None:
    (folder / pod.VERDICT_FILE).write_text(content)
    assert read(folder / pod.VERDICT_FILE) != nothing


@pytest.mark.parametrize(
    ("text", "for_script"),
    [("[" * 60_000, ""), ('{"verdict":"Faulty","reason":"\\ud800"}', "\ud800"), (FAULTY + " " * 70_000, "Xid 79")],
    ids=["deep", "half a character", "too long"],
)
def test_an_odd_verdict_breaks_neither_launcher_nor_script(folder: Path, text: str, for_script: str) -> None:
    """The launcher ignores each; a script reads as much as it can."""
    path = folder / pod.VERDICT_FILE
    path.write_text(text)
    assert read_node_finding(str(folder), 0.0) == NodeFinding()
    assert sigterm.read_hardware_finding(str(path), 0.0) == for_script


def _anothers_folder(path: Path) -> None:
    path.mkdir(mode=0o777)
    os.chown(path, NOBODY, NOBODY)


NO_FOLDERS_OF_OURS = {
    **{name: made for name, made in OBSTACLES.items() if name not in ("empty-folder", "folder")},
    "folder-of-another-user": Obstacle(lambda path, _: _anothers_folder(path)),
}


@pytest.mark.attack("C4", "an entry instead of the folder of workers' error files", before="rejected, too")
@pytest.mark.parametrize("obstacle", NO_FOLDERS_OF_OURS.values(), ids=NO_FOLDERS_OF_OURS)
def test_a_folder_of_another_user_is_not_used_for_errors(
    folder: Path, monkeypatch: pytest.MonkeyPatch, obstacle: Obstacle
) -> None:
    """The launcher removes files in it."""
    elsewhere, temporary = folder / "elsewhere", folder / "tmp"
    for made in (elsewhere, temporary):
        made.mkdir()
    private = elsewhere / "private"
    private.write_text("x")
    obstacle(folder / f"errors-{os.getuid()}", private)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert error_files.make_folder(str(folder)) == str(temporary / f"errors-{os.getuid()}")
    assert [path.name for path in elsewhere.iterdir()] == ["private"]


NO_ERROR_FILES = {**UNREADABLE, "hard-link": OBSTACLES["hard-link"]}


@pytest.mark.attack("C4", "an entry instead of a worker's error file, before the worker starts", before="rejected, too")
@pytest.mark.parametrize("obstacle", NO_ERROR_FILES.values(), ids=NO_ERROR_FILES)
def test_anything_at_the_path_of_an_error_file_is_removed_or_ignored(folder: Path, obstacle: Obstacle) -> None:
    private = folder / "private"
    private.write_text(FAILURE)
    with obstacle.at(folder / "1.1.0-0.json", private):
        path = error_files.fresh_path(str(folder), "1.1.0", 0)
        assert error_files.read(path) == error_files.NOTHING
    assert private.read_text() == FAILURE


def test_a_file_is_read_up_to_its_limit_and_not_a_byte_more(folder: Path) -> None:
    (folder / "it").write_bytes(b"x" * 100)
    assert files.read_file(folder / "it", 100) == b"x" * 100
    with pytest.raises(OSError, match="at most 99 bytes"):
        files.read_file(folder / "it", 99)
