"""SIGTERM in a script that has called exit_on_fault(): it keeps its previous effect, except on a faulty node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import understudy_torch
from understudy_torch.sigterm import read_hardware_finding

SIDECAR = Path(understudy_torch.__file__).resolve().parents[1]
FAULTY = {"verdict": "Faulty", "reason": "Xid 79"}
#: A wakeup file that was set before, as asyncio does; it gets the signal after the decision.
WAKEUP_PIPE = "r, w = os.pipe(); os.set_blocking(w, False); signal.set_wakeup_fd(w)\n"
READY = "print('ready', flush=True)\n"
WAIT = "import time\nwhile True: time.sleep(0.05)\n"
#: The main thread is in C code, and no signal interrupts it: like a collective that has lost its peer.
IN_C = """
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
libc.pthread_mutex_lock(mutex)
libc.pthread_mutex_lock(mutex)
"""

HANDLERS = {
    "function": "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(5)))\n",
    "default": "",
    "ignored": "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n",
    # set by a C library: getsignal() returns None
    "none": "libc = ctypes.CDLL(None); HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)\n"
    "own = HANDLER(lambda n: os._exit(7)); libc.signal(signal.SIGTERM, own)\n",
}


def run(folder: Path, before: str, after: str = WAIT, *, faulty: bool = False) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a script that gets SIGTERM once it is ready."""
    if faulty:
        (folder / "verdict.json").write_text(json.dumps(FAULTY))
    imports = "import ctypes, os, signal, sys\nfrom understudy_torch import exit_on_fault\n"
    env = {**os.environ, "PYTHONPATH": str(SIDECAR), "UNDERSTUDY_FOLDER": str(folder)}
    with subprocess.Popen(
        [sys.executable, "-c", f"{imports}{before}exit_on_fault()\n{READY}{after}"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        try:
            out, err = process.communicate(timeout=20)
        finally:
            process.kill()
        return process.returncode, out, err


@pytest.mark.parametrize(
    ("handler", "code", "out"),
    [("function", 5, "saved\n"), ("default", -signal.SIGTERM, ""), ("none", 7, "")],
)
def test_sigterm_keeps_its_previous_effect(tmp_path: Path, handler: str, code: int, out: str) -> None:
    assert run(tmp_path, HANDLERS[handler]) == (code, out, "")


def test_an_ignored_sigterm_stays_ignored(tmp_path: Path) -> None:
    after = "os.read(r, 10)  # the thread has decided by now\nprint('goes on')\n"
    assert run(tmp_path, WAKEUP_PIPE + HANDLERS["ignored"], after) == (0, "goes on\n", "")


@pytest.mark.parametrize("handler", HANDLERS)
def test_a_script_on_a_faulty_node_exits_at_once_with_the_reason(tmp_path: Path, handler: str) -> None:
    code, out, err = run(tmp_path, HANDLERS[handler], faulty=True)
    assert (code, out) == (1, "")
    assert err == "understudy: SIGTERM, and no checkpoint is tried: the node is faulty: Xid 79\n"


def test_a_script_exits_even_if_the_main_thread_never_returns_from_c(tmp_path: Path) -> None:
    code, _, err = run(tmp_path, HANDLERS["function"], IN_C, faulty=True)
    assert (code, "Xid 79" in err) == (1, True)


def test_an_earlier_wakeup_file_gets_the_signals_too(tmp_path: Path) -> None:
    """For example that of asyncio."""
    before = f"{WAKEUP_PIPE}signal.signal(signal.SIGTERM, lambda *_: None)\n"
    after = "print(list(os.read(r, 10)), flush=True)\nos._exit(0)\n"
    assert run(tmp_path, before, after)[:2] == (0, "[15]\n")


#: After the signal of `run`, a child gets SIGTERM, as those of a DataLoader do, and then the parent gets SIGUSR1.
CHILD_IS_TERMINATED = """
os.read(r, 10)
child = os.fork()
if child == 0:
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(0)
os.waitpid(child, 0)
os.kill(os.getpid(), signal.SIGUSR1)
seen = b""
while signal.SIGUSR1 not in seen: seen += os.read(r, 10)
print([signal.Signals(number).name for number in seen], flush=True)
os._exit(0)
"""


def test_sigterm_of_a_child_is_none_of_its_parent(tmp_path: Path) -> None:
    handlers = "for number in (signal.SIGTERM, signal.SIGUSR1): signal.signal(number, lambda *_: None)\n"
    assert run(tmp_path, f"{WAKEUP_PIPE}{handlers}", CHILD_IS_TERMINATED)[:2] == (0, "['SIGUSR1']\n")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "no json", '{"verdict": "Healthy"}', '{"verdict": "Faulty", "until": 5}']
)
def test_a_file_without_a_fault_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "verdict.json").write_text(text)
    assert read_hardware_finding(str(tmp_path / "verdict.json"), now=6.0) == ""


def test_a_missing_file_is_ignored_and_an_unexpired_one_has_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    assert read_hardware_finding(str(path), now=6.0) == ""
    path.write_text('{"verdict": "Faulty", "reason": "", "until": 7}')
    assert read_hardware_finding(str(path), now=6.0) == "the node health verdict has no reason"
