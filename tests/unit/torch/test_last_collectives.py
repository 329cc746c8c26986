"""The line with the newest collectives: its content, and the thread that writes it in a real process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import understudy_torch
from tests.unit.launcher.fake_sidecar import wait_for
from understudy_launcher.step_page import StepFiles
from understudy_torch.last_collectives import line

SIGNAL = 59
AT_NS = 1_795_744_842_000_000_000


def entry(number: int, *, retired: bool = True, **changes: Any) -> dict[str, Any]:
    """As torch 2.13 writes it: the state of gloo's collectives never changes."""
    return {
        "collective_seq_id": number,
        "is_p2p": False,
        "process_group": ["0", "default_pg"],
        "profiling_name": "gloo:all_reduce",
        "retired": retired,
        "state": "scheduled",
        "time_created_ns": AT_NS + number,
        **changes,
    }


def recorded(*entries: Any) -> str:
    return json.dumps({"entries": list(entries)})


def text(*entries: Any) -> str:
    return line([recorded(*entries)]).decode()


def test_the_newest_collective_of_a_rank_that_waits_nowhere() -> None:
    assert text(entry(4), entry(5)) == "understudy collectives: 0/default_pg gloo:all_reduce=5\n"


def test_the_oldest_incomplete_collective_is_the_one_in_which_the_rank_waits() -> None:
    """gloo and NCCL get further collectives while one waits."""
    waits = [entry(number, retired=False, profiling_name="nccl:broadcast") for number in (6, 7, 8)]
    shown = text(entry(5, profiling_name="nccl:all_reduce"), *waits)
    assert shown == "understudy collectives: 0/default_pg nccl:broadcast=8 waits broadcast=6\n"


def test_entries_before_a_completed_one_are_complete() -> None:
    """torch does not mark the parts of coalesced collectives."""
    assert text(entry(3, retired=False), entry(4)) == "understudy collectives: 0/default_pg gloo:all_reduce=4\n"


def test_each_process_group_has_a_part_and_those_in_which_the_rank_waits_are_first() -> None:
    tensor, other = ["1", "mesh_tp"], ["2", "undefined"]
    shown = text(entry(5, retired=False), entry(90, process_group=tensor), entry(700, process_group=other))
    assert shown == (
        "understudy collectives: 0/default_pg gloo:all_reduce=5 waits all_reduce=5, "
        "2/undefined gloo:all_reduce=700, 1/mesh_tp gloo:all_reduce=90\n"
    )


def test_the_recorders_of_gloo_and_nccl_are_read() -> None:
    of_both = [recorded(entry(2)), recorded(entry(9, profiling_name="nccl:all_gather"))]
    assert line(of_both) == (
        b"understudy collectives: 0/default_pg nccl:all_gather=9, 0/default_pg gloo:all_reduce=2\n"
    )


def test_a_name_of_the_script_cannot_forge_the_line() -> None:
    odd = ["1, 0/x nccl:y=1\n\u00e4" + "z" * 100, ""]
    assert text(entry(5, process_group=odd)) == (
        "understudy collectives: 1__0_x_nccl:y_1__" + "z" * 31 + "/_ gloo:all_reduce=5\n"
    )


def test_many_groups_with_long_names_fit_into_a_line_that_the_kernel_does_not_split() -> None:
    named = [entry(n, process_group=[f"{n}" + "g" * 60, "d" * 60]) for n in range(500)]
    assert len(text(*named)) <= 4096
    assert text(*named).count("gloo:") == 16
    named = [{**each, "profiling_name": "gloo:" + "o" * 60, "retired": False} for each in named]
    assert len(text(*named)) <= 4096


@pytest.mark.parametrize(
    "odd",
    [
        entry(5, is_p2p=True),
        entry(5, profiling_name="xccl:all_reduce"),
        entry(5, profiling_name="gloo:"),
        entry(5, profiling_name=None),
        entry(5, process_group=[]),
        {**entry(5), "collective_seq_id": "5"},
        {**entry(5), "collective_seq_id": -5},
        {**entry(5), "time_created_ns": None},
        "entry",
    ],
)
def test_entries_of_another_kind_are_left_out(odd: Any) -> None:
    assert text(odd) == ""
    assert text(odd, entry(2)) == "understudy collectives: 0/default_pg gloo:all_reduce=2\n"


# The thread ----------------------------------------------------------------------------------------------------------

#: A worker whose torch has one incomplete collective.
WORKER = f"""
import ctypes, json, os, sys, threading, types
text = {recorded(entry(6, retired=False))!r}
recorder = types.SimpleNamespace(_dump_fr_trace_json=lambda *options: text.encode())
sys.modules["torch._C._distributed_c10d"] = recorder
import understudy_torch
def begun():
    understudy_torch.step(1)
    print("begun", flush=True)
"""
WAITS = "begun()\nthreading.Event().wait()"
LINE = "understudy collectives: 0/default_pg gloo:all_reduce=6 waits all_reduce=6\n"


class Worker:
    def __init__(self, process: subprocess.Popen[str], files: StepFiles, err: Path) -> None:
        self.process, self.files, self._err = process, files, err

    def write(self) -> None:
        """Request its newest collectives."""
        self.files.page.steps_read(0)
        self.files.page.write_collectives(os.getpgid(self.process.pid))

    def dump(self) -> None:
        """Request its stacks."""
        self.files.page.steps_read(0)
        assert self.files.page.dump_stacks(os.getpgid(self.process.pid)) == ""

    def err(self) -> str:
        return self._err.read_text()


@contextlib.contextmanager
def worker(folder: Path, script: str, **variables: str) -> Iterator[Worker]:
    """It has made a step."""
    files = StepFiles(str(folder))
    env = {
        "PYTHONPATH": str(Path(understudy_torch.__file__).parents[1]),
        "UNDERSTUDY_STEP_FD": "{},{}".format(*files.inherited),
        "WORLD_SIZE": "4",
        **variables,
    }
    with (folder / "err").open("w") as err:
        command = [sys.executable, "-c", WORKER + script]
        process = subprocess.Popen(
            command,
            env=env,
            pass_fds=files.inherited,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            start_new_session=True,
        )
    files.given()
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        yield Worker(process, files, folder / "err")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also a fork
        process.communicate()
        files.close()


def test_each_request_is_answered_by_one_line_and_by_no_stacks(tmp_path: Path) -> None:
    # given a worker that waits, with so many frames that faulthandler writes them in many pieces
    deep = "def deep(n):\n    deep(n - 1) if n else threading.Event().wait()\n"
    threads = "for _ in range(30): threading.Thread(target=deep, args=(50,), daemon=True).start()\n"
    with worker(tmp_path, deep + threads + WAITS) as made:
        # when the launcher requests its collectives, twice, then each time there is one line
        for count in (1, 2):
            made.write()
            wait_for(lambda count=count: made.err().count(LINE) >= count, made.err)  # type: ignore[misc]
        assert made.err() == LINE * 2


def test_the_thread_is_in_the_stacks_and_writes_nothing_with_them(tmp_path: Path) -> None:
    with worker(tmp_path, WAITS) as made:
        made.dump()
        thread = r"((Thread|Current thread) 0x[^\n]*\n(  [^\n]*\n)+\n?)"
        wait_for(lambda: re.fullmatch(f"{thread}{thread}", made.err()), made.err)
        made.write()
        wait_for(lambda: re.fullmatch(f"{thread}{thread}{LINE}", made.err()), made.err)


def test_a_thread_without_python_may_get_the_signal(tmp_path: Path) -> None:
    """The kernel chooses the thread, and gloo has threads of its own."""
    native = "libc = ctypes.CDLL(None)\nlibc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.pause, None)\n"
    blocked = f"import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {{{SIGNAL}}})\n"
    with worker(tmp_path, native + blocked + WAITS) as made:
        made.write()
        wait_for(lambda: LINE in made.err(), made.err)


def reads_a_pipe(process: int, thread: str) -> bool:
    """Whether this thread waits in a system call with a pipe that it has opened itself."""
    call = Path(f"/proc/{process}/task/{thread}/syscall").read_text().split()
    return len(call) > 1 and int(call[1], 16) > 2 and is_pipe(f"/proc/{process}/fd/{int(call[1], 16)}")


def is_pipe(file: str) -> bool:
    return os.path.lexists(file) and os.readlink(file).startswith("pipe:")


def test_the_thread_sleeps(tmp_path: Path) -> None:
    with worker(tmp_path, WAITS) as made:
        pid = made.process.pid
        (thread,) = [name for name in os.listdir(f"/proc/{pid}/task") if name != str(pid)]
        wait_for(lambda: reads_a_pipe(pid, thread), "it waits for the signal")


def test_a_main_thread_that_keeps_the_interpreters_lock_leaves_only_its_stacks(tmp_path: Path) -> None:
    # given a main thread in C code, which reads a pipe that stays empty
    held = "pipe = os.pipe()\nlibc = ctypes.PyDLL(None)\nbegun()\nlibc.read(pipe[0], ctypes.create_string_buffer(1), 1)"
    with worker(tmp_path, held) as made:
        wait_for(lambda: reads_a_pipe(made.process.pid, str(made.process.pid)), "it keeps the lock")
        made.dump()
        wait_for(lambda: "Current thread" in made.err() or "Thread 0x" in made.err(), made.err)
        made.write()
        # when it ends, then it has written no line
        made.process.kill()
        made.process.wait()
        assert "understudy collectives" not in made.err()


def test_a_forked_child_that_steps_writes_its_own(tmp_path: Path) -> None:
    script = """
begun()
if os.fork() == 0:
    text = text.replace('all_reduce', 'barrier')
    understudy_torch.step(2)
    print('child', flush=True)
threading.Event().wait()
"""
    with worker(tmp_path, script) as made:
        assert made.process.stdout is not None
        assert made.process.stdout.readline() == "child\n"
        made.write()
        wait_for(lambda: LINE.replace("all_reduce", "barrier") in made.err(), made.err)
        assert LINE not in made.err()


@pytest.mark.parametrize(
    ("before", "variables"),
    [
        pytest.param("del sys.modules['torch._C._distributed_c10d']", {}, id="no torch"),
        pytest.param("del recorder._dump_fr_trace_json", {}, id="a torch without a flight recorder"),
        pytest.param("", {"UNDERSTUDY_SLOW_RANK_PERCENT": "0"}, id="slow ranks are off"),
        pytest.param("", {"WORLD_SIZE": "1"}, id="one rank"),
        pytest.param(
            f"import signal; signal.signal({SIGNAL}, lambda *_: None)", {}, id="the script handles the signal"
        ),
    ],
)
def test_other_workers_have_no_thread_and_get_no_signal(tmp_path: Path, before: str, variables: dict[str, str]) -> None:
    with worker(tmp_path, f"{before}\n{WAITS}", **variables) as made:
        assert len(list(Path(f"/proc/{made.process.pid}/task").iterdir())) == 1
        reading = made.files.page.read()
        assert reading is not None
        assert (reading.stack_signal, reading.collectives_signal) == (60, 0)


def test_without_a_thread_the_training_continues(tmp_path: Path) -> None:
    """The process may start no more threads."""
    broken = 'import _thread\ndef fails(*_): raise RuntimeError("can\'t start new thread")\n'
    with worker(tmp_path, f"{broken}_thread.start_new_thread = fails\n{WAITS}") as made:
        reading = made.files.page.read()
        assert reading is not None
        assert (reading.step, reading.collectives_signal) == (1, 0)
