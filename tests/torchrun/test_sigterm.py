"""SIGTERM to a torchrun of Understudy: whether its workers may save, and the code with which it exits."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.torchrun.job import Job, Member, token
from tests.torchrun.test_rounds import SAVES, STEPS
from tests.unit.launcher.fake_sidecar import alive
from understudy_protocol import pod, wire
from understudy_protocol.enums import Verdict
from understudy_protocol.launcher import DrainWorkers, Terminating
from understudy_protocol.membership import NodeVerdict

pytestmark = pytest.mark.timeout(600)


#: Prints the handlers of SIGTERM when they are set.
SITECUSTOMIZE = """
import signal, sys
_set = signal.signal
def _reported(number, handler):
    former = _set(number, handler)
    if number == signal.SIGTERM:
        print("SIGTERM:", getattr(handler, "__qualname__", handler), file=sys.stderr, flush=True)
    return former
signal.signal = _reported
"""


def running(job: Job, folder: Path, script: str, **env: str) -> tuple[Member, int]:
    """A member whose worker runs, and that worker's pid. folder: an empty one.

    torchrun sets its own handler of SIGTERM when it starts workers. This waits until our handler has replaced it: at
    the event START or, if torchrun has none (torch 2.6), at its next look at the rendezvous.
    """
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    member = job.start(script, PYTHONPATH=f"{Cluster().torch_path}:{folder}", **env)
    job.join(member)
    job.round(0, member)
    (worker,) = member.pids("pids", 1)
    ours, theirs = "SIGTERM: HeldSignals._on_sigterm", "SIGTERM: _terminate_process_handler"
    member.wait_until(lambda: member.err.rfind(ours) > member.err.rfind(theirs) >= 0, lambda: member.err)
    return member, worker


def is_faulty(member: Member) -> None:
    member.path(pod.VERDICT_FILE).write_text(wire.encode(NodeVerdict(Verdict.FAULTY, "Xid 79 on GPU 3")))


def test_on_a_faulty_node_no_worker_saves_and_torchrun_ends_at_once(job: Job, tmp_path: Path) -> None:
    member, worker = running(job, tmp_path, SAVES)
    is_faulty(member)
    asked = time.monotonic()
    os.kill(member.process.pid, signal.SIGTERM)
    assert member.sidecar.expect(Terminating) == Terminating(0.0, Verdict.FAULTY)
    assert member.wait() == 1
    assert time.monotonic() - asked < 10
    assert not alive(worker)
    assert not member.path("saved").exists()
    assert "SIGTERM, and no checkpoint is tried: the node is faulty: Xid 79 on GPU 3" in member.err
    assert not member.traceback


def test_on_any_other_node_the_worker_saves_and_torchrun_ends_with_its_code(job: Job, tmp_path: Path) -> None:
    member, worker = running(job, tmp_path, SAVES, **{pod.ENV_GRACE: "60"})
    os.kill(member.process.pid, signal.SIGTERM)
    assert member.sidecar.expect(Terminating) == Terminating(60.0)
    assert member.wait() == 1
    assert member.path("saved").exists()
    assert not alive(worker)


def test_in_a_drain_the_worker_gets_sigterm_once(job: Job, tmp_path: Path) -> None:
    member, _ = running(job, tmp_path, SAVES)
    member.sidecar.send(DrainWorkers(token(0), 20.0))
    os.kill(member.process.pid, signal.SIGTERM)
    member.sidecar.expect(Terminating)
    member.wait()
    assert member.path("saved").exists()


@pytest.mark.parametrize(("faulty", "code"), [(False, 143), (True, 1)])
def test_a_spare_ends_at_once(job: Job, faulty: bool, code: int) -> None:
    member = job.start(STEPS)
    job.join(member)
    if faulty:
        is_faulty(member)
    os.kill(member.process.pid, signal.SIGTERM)
    assert member.sidecar.expect(Terminating).verdict is (Verdict.FAULTY if faulty else Verdict.UNKNOWN)
    assert member.wait() == code
    assert not member.traceback
