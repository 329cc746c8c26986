"""How long a launcher on a faulty node takes from SIGTERM to its exit, with workers that never end by themselves.

The eight workers are forks that have imported torch, ignore SIGTERM, and are in a C call that never returns, like a
collective whose peer has died. The launcher is the one that is shipped; the sidecar is simulated.
"""

from __future__ import annotations

import os
import select
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.child import LOGS, ChildFailed, Unfinished
from benchmarks.install import Peers
from tests.unit.launcher.fake_sidecar import Launched, round_
from understudy_launcher.package import write_package
from understudy_protocol import pod, wire
from understudy_protocol.enums import Verdict
from understudy_protocol.membership import NodeVerdict

WORKERS = 8
START_S = 120.0
POLL_S = 0.01
_WORKER = """\
import ctypes, os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(fd, b"1")
ctypes.CDLL(None).pause()
"""


def exit_of_a_faulty_member(installed: Peers, limit_s: float) -> float:
    """Seconds from SIGTERM to the launcher's exit. Raises Unfinished, ChildFailed."""
    with tempfile.TemporaryDirectory(prefix="bench-sigterm-") as name:
        folder = Path(name)
        write_package(folder)
        script, ready = folder / "worker.py", folder / "ready"
        script.write_text(_WORKER)
        env = {
            **os.environ,
            "PYTHONPATH": installed.env["PYTHONPATH"],
            pod.ENV_SHARED_FOLDER: str(folder),
            pod.ENV_NPROC: str(WORKERS),
        }
        stub = folder / pod.LAUNCHER_SCRIPT
        launched = Launched(["/bin/sh", str(stub), installed.python, str(script), str(ready)], folder, env, folder)
        try:
            launched.join()
            launched.sidecar.send(round_(0, world_size=WORKERS))
            _until(lambda: ready.exists() and ready.stat().st_size == WORKERS, launched)
            (folder / pod.VERDICT_FILE).write_text(wire.encode(NodeVerdict(Verdict.FAULTY, "Xid 79 on GPU 3")))
            return _terminated(launched.process.pid, limit_s)
        finally:
            (LOGS / "recovery-sigterm.log").write_text(launched.err)
            launched.end()


def _terminated(pid: int, limit_s: float) -> float:
    watched = os.pidfd_open(pid)
    try:
        at = time.monotonic()
        os.kill(pid, signal.SIGTERM)
        if not select.select([watched], [], [], limit_s)[0]:
            raise Unfinished(f"the launcher has not ended within {limit_s:g} s", limit_s)
        return time.monotonic() - at
    finally:
        os.close(watched)


def _until(condition: Callable[[], bool], launched: Launched) -> None:
    deadline = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > deadline or launched.process.poll() is not None:
            raise ChildFailed(f"the workers did not start within {START_S:g} s:\n{launched.err}")
        time.sleep(POLL_S)
