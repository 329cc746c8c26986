"""A lock that a killed build of a torch extension has left: it is removed, or a worker that waits for it says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.launcher.fake_sidecar import wait_for
from tests.unit.zygote.conftest import Make
from tests.unit.zygote.forking import Forking

#: torch's own class, without its warning.
FILE_BATON = """
import os, time
class FileBaton:
    def __init__(self, lock_file_path, wait_seconds=0.1):
        self.lock_file_path, self.wait_seconds, self.fd = lock_file_path, wait_seconds, None
    def try_acquire(self):
        try:
            self.fd = os.open(self.lock_file_path, os.O_CREAT | os.O_EXCL)
            return True
        except FileExistsError:
            return False
    def wait(self):
        while os.path.exists(self.lock_file_path):
            time.sleep(self.wait_seconds)
    def release(self):
        os.close(self.fd)
        os.remove(self.lock_file_path)
"""
#: Builds as torch.utils.cpp_extension does, for as long as a file `building` exists.
BUILDS = """
import os, time
from torch.utils import file_baton
baton = file_baton.FileBaton("ext/lock", 0.01)
if baton.try_acquire():
    print("builds", flush=True)
    while os.path.exists("building"):
        time.sleep(0.01)
    baton.release()
else:
    baton.wait()
    print("waited")
"""
#: A worker that waits says so soon.
NOTICES_SOON = "import understudy_zygote.build_locks as b; b.FIRST_NOTICE_S = 0.05\n"


@pytest.fixture(params=["torch.utils.file_baton", "json"])
def forks(folder: Path, forking: Make, request: pytest.FixtureRequest) -> Forking:
    """A zygote that has imported the module, or one whose script imports it."""
    (folder / "ext").mkdir()
    utils = folder / "torch" / "utils"
    utils.mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("class G:\n    def seed(self): pass\ndefault_generator = G()")
    (utils / "__init__.py").touch()
    (utils / "file_baton.py").write_text(FILE_BATON)
    (folder / "train.py").write_text(BUILDS)
    return forking("train.py", preload=[request.param], env={"PYTHONPATH": str(folder)})


@pytest.fixture
def lock(folder: Path) -> Path:
    return folder / "ext" / "lock"


def killed_build(folder: Path, forks: Forking) -> None:
    """A worker is killed while it builds."""
    (folder / "building").touch()
    (pid,) = forks.fork(0)
    wait_for(lambda: "builds" in forks.said()[0] and (folder / "ext" / "lock").read_text(), "the build")
    os.kill(pid, 9)
    assert forks.code(pid) == -9
    (folder / "building").unlink()


def test_the_lock_of_a_worker_that_was_killed_is_removed_and_the_next_worker_builds(
    folder: Path, forks: Forking, lock: Path
) -> None:
    killed_build(folder, forks)
    assert lock.exists()
    run = forks.run()
    assert (run.code, run.out) == (0, "builds\n")
    assert run.err == (
        "understudy: removed the file ext/lock: a worker of an earlier round was killed while it built a torch "
        "extension\n"
    )
    assert not lock.exists()


def test_a_worker_waits_for_another_one_that_builds(folder: Path, forks: Forking, lock: Path) -> None:
    # given a worker that builds, and another one that has said that it waits
    (folder / "building").touch()
    (folder / "train.py").write_text(NOTICES_SOON + BUILDS)
    first = forks.fork(0)
    wait_for(lambda: lock.exists() and lock.read_text(), "the build")
    second = forks.fork(1)
    wait_for(lambda: "this worker has waited" in forks.said()[1], "the wait of the second worker")
    assert forks.said()[0] == "builds\n"
    # when the build is complete
    (folder / "building").unlink()
    # then the second worker does not build
    assert [forks.code(pid) for pid in (*first, *second)] == [0, 0]
    assert sorted(forks.said()[0].split()) == ["builds", "waited"]


@pytest.mark.parametrize(
    "change",
    [
        lambda words: "",
        lambda words: "4711",
        lambda words: " ".join(["other", *words[1:]]),
        lambda words: " ".join([words[0], "another-boot", *words[2:]]),
        lambda words: " ".join([*words[:2], "1", *words[3:]]),
    ],
    ids=["empty", "a number", "another program", "another boot", "another namespace"],
)
def test_a_lock_whose_owner_may_be_alive_stays_and_the_worker_logs_what_to_do(
    folder: Path, forks: Forking, lock: Path, change: object
) -> None:
    killed_build(folder, forks)
    assert callable(change)
    lock.write_text(change(lock.read_text().split(" ")))
    (folder / "train.py").write_text(NOTICES_SOON + BUILDS)
    (pid,) = forks.fork(0)
    wait_for(lambda: "rm ext/lock" in forks.said()[1], "the notice")
    assert "until the file ext/lock is removed. torch creates the file while it builds" in forks.said()[1]
    lock.unlink()
    assert forks.code(pid) == 0
    assert forks.said()[0].endswith("waited\n")
