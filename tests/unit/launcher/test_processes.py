"""Workers as processes, without the loop: the events of reaping, and their order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import understudy_torch
from tests.unit.launcher.fake_sidecar import wait_for
from understudy_launcher.events import Aim, GroupEmptied, StepsRead, WorkerEnded
from understudy_launcher.processes import Workers

SIGNAL = 60

Run = Callable[..., "Running"]
Capture = pytest.CaptureFixture[str]


STEP = "import understudy_torch\nstep = understudy_torch.step\n"
SOURCES = str(Path(understudy_torch.__file__).parents[1])


class Running:
    """Workers whose bells are recorded, and never selected."""

    def __init__(self, folder: Path, *command: str) -> None:
        self.bells: set[int] = set()
        self.workers = Workers(command, str(folder), self.bells.add, self.bells.remove)
        self.events: list[object] = []

    def spawn(self, local_rank: int = 0) -> None:
        def env(step_files: tuple[int, int]) -> dict[str, str]:
            bell, page = step_files
            return dict(os.environ, PYTHONPATH=SOURCES, UNDERSTUDY_STEP_FD=f"{bell},{page}")

        self.events += self.workers.spawn(local_rank, env)

    def reap_all(self) -> None:
        def gone() -> bool:
            self.events += self.workers.reap()
            return any(isinstance(event, GroupEmptied) for event in self.events)

        wait_for(gone, "the end of the worker")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts a worker. No worker is left after the test."""
    made: list[Running] = []

    def start(*command: str) -> Running:
        made.append(Running(tmp_path, *command))
        made[-1].spawn()
        return made[-1]

    yield start
    for running in made:
        running.workers.kill_all()
        if running.workers.lingering() or running.bells:
            running.reap_all()


def test_the_last_step_comes_before_the_end_and_the_end_before_the_groups(run: Run) -> None:
    running = run(sys.executable, "-c", STEP + "step(1, 9)\nstep(2, 9)\nraise SystemExit(4)")
    running.reap_all()
    steps, ended, emptied = running.events
    assert isinstance(steps, StepsRead)
    assert (steps.step, steps.total, steps.reports) == (2, 9, 2)
    assert isinstance(ended, WorkerEnded)
    assert (ended.exit_code, ended.shell_code) == (4, 4)
    assert emptied == GroupEmptied(0)
    assert running.bells == set()


def test_a_stopped_worker_and_its_children_run_no_more_and_can_be_killed(run: Run, tmp_path: Path) -> None:
    running = run("sh", "-c", f"sleep 600 & echo $! > {tmp_path}/child; wait")
    child = int(wait_for(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text(), "the child"))

    def state() -> str:
        return Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]

    running.workers.signal(0, Aim.STOP_GROUP)
    wait_for(lambda: state() == "T", "the stop of the child")
    assert running.workers.reap() == []
    running.workers.signal(0, Aim.KILL_GROUP)
    running.reap_all()
    (ended, _) = running.events
    assert isinstance(ended, WorkerEnded)
    assert ended.signal == "SIGKILL"


def test_of_workers_that_have_ended_a_killed_one_comes_first(run: Run) -> None:
    """The others may have ended because of it, and the first that the sidecar learns of becomes the cause."""
    # given an older worker that has exited, and a newer one that was killed after it
    running = run("sleep", "600")
    running.spawn(1)
    older, newer = (survivor.pid for survivor in running.workers.survivors())
    os.kill(older, signal.SIGTERM)
    os.waitid(os.P_PID, older, os.WEXITED | os.WNOWAIT)
    os.kill(newer, signal.SIGKILL)
    os.waitid(os.P_PID, newer, os.WEXITED | os.WNOWAIT)
    # when both are reaped at once, then the killed one comes first
    ended = [event for event in running.workers.reap() if isinstance(event, WorkerEnded)]
    assert [(event.local_rank, event.signal) for event in ended] == [(1, "SIGKILL"), (0, "SIGTERM")]


def test_a_worker_that_never_steps_reports_no_step(run: Run) -> None:
    running = run(sys.executable, "-c", STEP)
    running.reap_all()
    assert [type(event) for event in running.events] == [WorkerEnded, GroupEmptied]


def test_the_first_step_rings_the_bell(run: Run) -> None:
    running = run(sys.executable, "-c", STEP + "step(1)\nimport time\ntime.sleep(600)")
    (bell,) = running.bells
    before = time.monotonic()
    (first,) = wait_for(lambda: running.workers.has_news(bell), "the bell")
    assert (first.step, first.total, first.reports) == (1, None, 1)
    assert before - 60 < first.stepped_at <= time.monotonic()
    assert running.workers.read_steps() == [], "nothing is new"


def test_a_worker_that_has_closed_its_files_can_still_call_step(run: Run) -> None:
    """As a process does that becomes a daemon."""
    closes = "import os, time\nos.closerange(3, 300)\nfor n in range(2, 7): step(n)\ntime.sleep(600)"
    running = run(sys.executable, "-c", STEP + "step(1)\n" + closes)
    (bell,) = running.bells
    found: list[StepsRead] = []

    def over() -> bool:
        found.extend(running.workers.has_news(bell) + running.workers.read_steps())
        return not running.bells and found[-1].step == 6

    wait_for(over, "the newest step, and the end of the bell")


def test_a_worker_that_breaks_its_page_breaks_nothing_else(run: Run) -> None:
    cut = "import os\nbell, page = map(int, os.environ['UNDERSTUDY_STEP_FD'].split(','))\nos.ftruncate(page, 0)\n"
    running = run(sys.executable, "-c", cut + "os.write(bell, b'?')")
    running.reap_all()
    assert [type(event) for event in running.events] == [WorkerEnded, GroupEmptied]


def seen(running: Running) -> None:
    (bell,) = running.bells
    wait_for(lambda: running.workers.has_news(bell), "its first step")


def test_a_worker_in_c_code_dumps_the_stacks_of_all_its_threads(run: Run, capfd: Capture) -> None:
    """Its main thread keeps the interpreter's lock, so no Python code can run."""
    script = """
import ctypes, threading
def waits_in_a_thread():
    threading.Event().wait()
threading.Thread(target=waits_in_a_thread, daemon=True).start()
def sits_in_c():
    while True:  # each signal ends one pause
        ctypes.PyDLL(None).pause()
step(1)
sits_in_c()
"""
    running = run(sys.executable, "-c", STEP + script)
    seen(running)
    output = ""

    def dumped() -> bool:
        nonlocal output
        assert running.workers.dump_stacks(0) == ""
        output += capfd.readouterr().err
        return "in waits_in_a_thread" in output and "in sits_in_c" in output

    wait_for(dumped, "both stacks")


def test_a_dump_changes_nothing_for_the_script(run: Run) -> None:
    script = "import time\nstep(1)\ntime.sleep(0.5)\nraise SystemExit(3)"
    running = run(sys.executable, "-c", STEP + script)
    seen(running)
    assert running.workers.dump_stacks(0) == ""
    running.reap_all()
    (ended, _) = running.events
    assert isinstance(ended, WorkerEnded)
    assert ended.exit_code == 3


@pytest.mark.parametrize("use", ["lambda *_: None", "signal.SIG_IGN"])
def test_a_script_that_has_its_own_use_for_the_signal_keeps_it(run: Run, use: str) -> None:
    script = f"import signal, time\nsignal.signal({SIGNAL}, {use})\nstep(1)\ntime.sleep(600)"
    running = run(sys.executable, "-c", STEP + script)
    seen(running)
    assert running.workers.dump_stacks(0) == "its script handles the stack signal itself"


def test_a_forked_child_that_steps_dumps_its_own(run: Run, capfd: Capture) -> None:
    script = "import os, time\nstep(1)\nif os.fork(): os.wait()\ndef child():\n  step(2)\n  time.sleep(600)\nchild()"
    running = run(sys.executable, "-c", STEP + script)
    (bell,) = running.bells
    found: list[int] = []

    def second() -> bool:
        found.extend(read.step for read in running.workers.has_news(bell))
        return 2 in found

    wait_for(second, "the child's step")
    output = ""

    def dumped() -> bool:
        nonlocal output
        assert running.workers.dump_stacks(0) == ""
        output += capfd.readouterr().err
        return "in child" in output

    wait_for(dumped, "the child's stack")


def test_a_process_with_a_reused_pid_gets_no_signal(run: Run) -> None:
    running = run(sys.executable, "-c", STEP + "import time\nstep(1)\ntime.sleep(600)")
    seen(running)
    files = running.workers._workers[0].steps
    assert files is not None
    page = files.page
    assert page.newest is not None
    with subprocess.Popen(["sleep", "600"]) as other:
        page.newest = replace(page.newest, pid=other.pid)
        assert running.workers.dump_stacks(0) == "its process has left the worker's process group"
        other.terminate()
        assert other.wait() == -signal.SIGTERM
    page.newest = replace(page.newest, pid=2**22 + 1)
    assert running.workers.dump_stacks(0) == "No such process"


# Stacks before the first step

ASKED = ("UNDERSTUDY_START_TIMEOUT_SECONDS", "600")
WAITS = "def waits_for_a_peer():\n  print('waits', flush=True)\n  time.sleep(600)\n"


def waits(capfd: Capture) -> None:
    output = ""

    def begun() -> bool:
        nonlocal output
        output += capfd.readouterr().out
        return "waits" in output

    wait_for(begun, "the script")


def test_a_worker_without_a_step_dumps_its_stacks_once_it_has_imported_understudy_torch(
    run: Run, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*ASKED)
    running = run(sys.executable, "-c", STEP + f"import time\n{WAITS}waits_for_a_peer()")
    waits(capfd)
    assert running.workers.dump_stacks(0) == ""
    output = ""

    def dumped() -> bool:
        nonlocal output
        output += capfd.readouterr().err
        return "in waits_for_a_peer" in output

    wait_for(dumped, "its stacks")
    assert running.workers.read_steps() == [], "that is no step"


def test_a_child_that_imports_understudy_torch_does_not_replace_its_parent(
    run: Run, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*ASKED)
    child = "subprocess.run([sys.executable, '-c', 'import understudy_torch'], close_fds=False)"
    script = f"import subprocess, sys, time\n{child}\n{WAITS}waits_for_a_peer()"
    running = run(sys.executable, "-c", STEP + script)
    waits(capfd)
    assert running.workers.dump_stacks(0) == ""


@pytest.mark.parametrize(
    ("script", "asked", "why_not"),
    [
        pytest.param(
            f"import time\n{WAITS}waits_for_a_peer()", True, "it has not imported understudy_torch yet", id="yet"
        ),
        pytest.param(
            STEP + f"import time\n{WAITS}waits_for_a_peer()",
            False,
            "it has not imported understudy_torch yet",
            id="not asked",
        ),
        pytest.param(
            STEP + "import os\nos.execlp('sh', 'sh', '-c', 'echo waits; sleep 600')",
            True,
            "its process no longer handles the stack signal",
            id="another program by now",
        ),
    ],
)
def test_a_worker_that_the_signal_would_end_does_not_get_it(
    run: Run, capfd: Capture, monkeypatch: pytest.MonkeyPatch, script: str, asked: bool, why_not: str
) -> None:
    if asked:
        monkeypatch.setenv(*ASKED)
    running = run(sys.executable, "-c", script)
    waits(capfd)
    assert running.workers.dump_stacks(0) == why_not


def test_a_worker_whose_step_files_cannot_be_created_has_ended_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    running = Running(tmp_path / "nowhere", "true")
    running.spawn()
    (ended, emptied) = running.events
    assert isinstance(ended, WorkerEnded)
    assert (ended.exit_code, emptied) == (126, GroupEmptied(0))
    assert ended.message.startswith("cannot create the files for its steps: [Errno 2] No such file or directory")


def test_a_signal_has_its_name(run: Run) -> None:
    running = run("sleep", "600")
    running.workers.signal(0, Aim.TERM_WORKER)
    running.reap_all()
    (ended, _) = running.events
    assert isinstance(ended, WorkerEnded)
    assert (ended.exit_code, ended.signal, ended.shell_code, ended.message) == (
        None,
        "SIGTERM",
        143,
        "killed by SIGTERM",
    )


def test_a_signal_without_a_name_has_its_number(run: Run) -> None:
    running = run(sys.executable, "-c", f"import os; os.kill(os.getpid(), {signal.SIGRTMIN + 3})")
    running.reap_all()
    (ended, _) = running.events
    assert isinstance(ended, WorkerEnded)
    assert ended.message == f"killed by signal {signal.SIGRTMIN + 3}"


@pytest.mark.parametrize(("command", "code"), [("/nowhere/x", 127), ("/proc", 126)])
def test_a_command_that_cannot_be_started_has_ended(tmp_path: Path, command: str, code: int) -> None:
    running = Running(tmp_path, command)
    running.spawn(1)
    (ended, emptied) = running.events
    assert isinstance(ended, WorkerEnded)
    assert (ended.local_rank, ended.exit_code) == (1, code)
    assert emptied == GroupEmptied(1)
    assert running.bells == set()


@pytest.mark.parametrize("aim", list(Aim))
def test_no_signal_reaches_the_process_that_got_a_workers_number(run: Run, aim: Aim) -> None:
    """The zygote reaps its forks before the launcher gets the report, and the kernel may reuse the pid."""
    running = run("true")
    worker = running.workers._workers[0]
    os.waitpid(worker.pid, 0)
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as other:
        worker.pid = other.pid
        running.workers.signal(0, aim)
        assert other.poll() is None
        os.kill(other.pid, signal.SIGUSR1)
        assert other.wait() == -signal.SIGUSR1, "the only signal that it got"
    running.events += running.workers.ended(worker.pid, 0)
    running.reap_all()


def test_signals_to_ended_workers_reach_no_process(run: Run) -> None:
    running = run("true")
    running.reap_all()
    for aim in Aim:
        running.workers.signal(0, aim)
    assert not running.workers.lingering()
