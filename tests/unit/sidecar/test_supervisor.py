"""A sidecar's process that is restarted inside its container."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.launcher.fake_sidecar import wait_for

RUN = "import sys; from understudy_sidecar import supervisor; sys.exit(supervisor.run(sys.argv[1:]))"
#: Like RUN, but SIGTERM arrives right after a child was reaped, as when the kubelet ends a sidecar that ends by itself.
RUN_LATE = (
    """
import os, signal
def late(reap):
    def reaped(*given):
        pid, status = reap(*given)
        if pid:
            signal.raise_signal(signal.SIGTERM)
        return pid, status
    return reaped
os.waitpid = late(os.waitpid)
"""
    + RUN
)
#: Like RUN, but SIGTERM arrives just before it waits for the child's end.
RUN_EARLY = (
    """
import os, signal
def early(waits):
    def waited(*given):
        os.kill(os.getpid(), signal.SIGTERM)
        return waits(*given)
    return waited
os.waitid, signal.sigwaitinfo = early(os.waitid), early(signal.sigwaitinfo)
"""
    + RUN
)
_STARTED: list[subprocess.Popen[bytes]] = []
#: Writes its pid, and then acts according to the argument with the number of the child.
CHILD = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
number = len(list(folder.glob("child-*")))
(folder / f"child-{number}.new").write_text(str(os.getpid()))
what = sys.argv[2:][number] if number < len(sys.argv[2:]) else "wait"
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.rename(folder / f"child-{number}.new", folder / f"child-{number}")
if what.isdigit():
    sys.exit(int(what))
if what == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if signal.sigtimedwait([signal.SIGTERM], 60):
    sys.exit(0 if what != "stubborn" else 5)
"""


def start(folder: Path, *lives: str, run: str = RUN) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", run, sys.executable, "-c", CHILD, str(folder), *lives]
    process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", *command])
    _STARTED.append(process)
    return process


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    while _STARTED:
        process = _STARTED.pop()
        if process.poll() is None:
            process.terminate()
            process.wait(20)


def children(folder: Path) -> list[Path]:
    return [path for path in folder.glob("child-*") if not path.name.endswith(".new")]


@pytest.mark.parametrize("end", ["1", "kill", "137"])
def test_a_child_that_crashes_is_restarted_and_its_success_ends_the_container_with_0(tmp_path: Path, end: str) -> None:
    process = start(tmp_path, end, end, "0")
    assert process.wait(20) == 0
    assert len(children(tmp_path)) == 3


def test_wrong_settings_end_the_container_with_their_code(tmp_path: Path) -> None:
    process = start(tmp_path, "2")
    assert process.wait(20) == 2
    assert len(children(tmp_path)) == 1


@pytest.mark.parametrize(("life", "code"), [("wait", 0), ("stubborn", 5)])
def test_sigterm_goes_to_the_child_whose_code_ends_the_container(tmp_path: Path, life: str, code: int) -> None:
    process = start(tmp_path, life)
    wait_for(lambda: len(children(tmp_path)) == 1, "the child runs")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == code
    assert len(children(tmp_path)) == 1


def test_a_sigterm_just_before_the_wait_for_the_child_ends_the_child(tmp_path: Path) -> None:
    """No signal is lost between two calls of the supervisor."""
    process = start(tmp_path, "wait", run=RUN_EARLY)
    assert process.wait(20) == 0


def test_sigterm_while_no_child_runs_starts_none(tmp_path: Path) -> None:
    process = start(tmp_path, *["1"] * 9)
    wait_for(lambda: len(children(tmp_path)) >= 4, "four lives")  # from here on the pauses are longer than the lives
    process.send_signal(signal.SIGTERM)
    before = time.monotonic()
    process.wait(20)
    assert time.monotonic() - before < 3


def test_sigterm_right_after_the_child_was_reaped_is_not_passed_on(tmp_path: Path) -> None:
    """The pid may be free, or belong to another process."""
    process = start(tmp_path, "0", run=RUN_LATE)
    assert process.wait(20) == 0
    assert len(children(tmp_path)) == 1
