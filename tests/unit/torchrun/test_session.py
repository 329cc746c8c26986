"""The session with the pod's sidecar, from the view of the process that outlives it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.unit.launcher.fake_sidecar import FakeSidecar, wait_for
from understudy_launcher.__main__ import read_settings
from understudy_launcher.events import StoreFailed
from understudy_protocol import pod
from understudy_protocol.enums import RoundToken
from understudy_protocol.launcher import ExitLauncher, StartWorkers, Stepped, WorkerExited
from understudy_torchrun.session import TorchrunSession


class NoStores:
    """A torch that cannot serve a store."""

    def make(self, keep: Collection[int]) -> StoreFailed:
        return StoreFailed("none in this test")


def session(folder: Path) -> TorchrunSession:
    return TorchrunSession(read_settings([], {pod.ENV_SHARED_FOLDER: str(folder)}), NoStores())


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "understudy"]


def open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_a_session_that_ends_leaves_no_thread_no_file_and_no_signal_handler(tmp_path: Path) -> None:
    # given a session
    gc.collect()
    files, handler = open_files(), signal.getsignal(signal.SIGTERM)
    made = session(tmp_path)
    assert threads() == ["understudy"]
    assert signal.getsignal(signal.SIGTERM) != handler
    # when it ends
    made.end()
    # then its thread ends, and the process is as before
    wait_for(lambda: not threads(), "the end of its thread")
    assert open_files() == files
    assert signal.getsignal(signal.SIGTERM) == handler
    assert signal.set_wakeup_fd(-1) == -1


def test_a_session_ends_once(tmp_path: Path) -> None:
    made = session(tmp_path)
    made.end()
    made.end()
    wait_for(lambda: not threads(), "the end of its thread")


@pytest.mark.parametrize("closed", [False, True])
def test_the_connection_ends_with_the_session_unless_the_job_is_closed(tmp_path: Path, closed: bool) -> None:
    """Found on a cluster: sidecars ended seconds before their torchrun had exited, and the kubelet restarted them."""
    # given a session with a sidecar
    sidecar = FakeSidecar(tmp_path)
    sidecar.listen()
    made = session(tmp_path)
    sidecar.accept()
    if closed:
        sidecar.send(ExitLauncher(0, "Succeeded"))
        wait_for(lambda: made._agent.ends, "the close arrives")
    # when the handler is deleted, which ends the session
    made.end()
    wait_for(lambda: not threads(), "the end of its thread")
    # then its connection ends at once, or, once the job is closed, with the process
    assert sidecar.is_connected() is closed
    sidecar.crash()


STEPS_AND_DIES = """
import os, sys
from understudy_torch import step
step(1)
sys.stdin.readline()
step(2)
os.kill(os.getpid(), 9)
"""


def test_the_last_step_of_a_worker_is_read_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a worker in its first round
    monkeypatch.setenv(pod.ENV_STEP_FOLDER, "")
    sidecar = FakeSidecar(tmp_path)
    sidecar.listen()
    made = session(tmp_path)
    sidecar.accept()
    sidecar.send(StartWorkers(RoundToken(0, 1, 0), 0, 1, 0, 1, "10.0.0.1", 4711))
    made.next_round()
    rank = {"RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", pod.ENV_ROUND: "0.1.0", "PYTHONPATH": "sidecar"}
    command = [sys.executable, "-c", STEPS_AND_DIES]
    with subprocess.Popen(command, env=os.environ | rank, stdin=subprocess.PIPE, start_new_session=True) as worker:
        assert sidecar.expect(Stepped).step == 1
        made.name_run()  # it is watched from now on
        # when it makes a step and ends at once
        assert worker.stdin is not None
        worker.stdin.write(b"\n")
        worker.stdin.flush()
        sidecar.expect(WorkerExited)
    # then the sidecar gets that step before the end, because the pause is measured from it, even if the next round
    # begins soon
    assert [message.step for message in sidecar.heard if isinstance(message, Stepped)] == [1, 2]
    made.end()
    wait_for(lambda: not threads(), "the end of its thread")
    sidecar.crash()
