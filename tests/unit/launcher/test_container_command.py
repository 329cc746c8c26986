"""A command that calls torchrun, under the launcher. A small program stands in for torchrun: it sends the same call."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.launcher.fake_sidecar import Launched, alive, round_, wait_for
from tests.unit.obstacles import OBSTACLES, Obstacle
from understudy_protocol import pod, wire
from understudy_protocol.launcher import ExitLauncher, WorkerExited, WorkersFinished, WorkersStarted
from understudy_protocol.torchrun import RunStock

Launch = Callable[..., Launched]

#: Sends the call of `torchrun SCRIPT`, as hand_over.py does.
TORCHRUN = """#!/usr/bin/env python3
import os, socket, sys
from understudy_launcher import process_settings
from understudy_protocol import wire
from understudy_protocol.torchrun import RunWorkers, WorkerFiles
nproc = int(os.environ["PET_NPROC_PER_NODE"])
env = dict(os.environ)
env["COLOR"] = os.environ.get("COLOR", "none")
call = RunWorkers((sys.executable, "-u", *sys.argv[1:]), nproc, env, os.getcwd(), process_settings.read(),
                  tuple(WorkerFiles("", "", False, False, "") for _ in range(nproc)), "", "")
launcher = socket.socket(socket.AF_UNIX)
launcher.connect(os.environ["UNDERSTUDY_TORCHRUN_SOCKET"])
line = wire.encode(call).encode() + b"\\n"
launcher.sendall(line[socket.send_fds(launcher, [line], [1, 2]):])
answer = launcher.recv(65536)
if b"EndTorchrun" in answer:
    sys.exit(int(answer.split(b'"code":')[1].split(b",")[0]))
os.set_inheritable(launcher.fileno(), True)
wait = os.path.join(os.environ["HERE"], "python/understudy_torchrun/wait.py")
os.execv(sys.executable, [sys.executable, "-I", "-S", wait, str(launcher.fileno())])
"""
#: Prints the parts of its environment that the script may have changed, and waits for the file `stop`. One write, so
#: that no line of the launcher lies within it: print() of an unbuffered Python writes each argument by itself.
TRAIN = """
import os, sys, time
found = os.environ["COLOR"], os.getcwd() == os.environ["HERE"], os.environ.get("PET_RDZV_BACKEND")
os.write(1, f"{found[0]} {found[1]} {found[2]}\\n".encode())
open(os.environ["HERE"] + "/pids", "a").write(f"{os.getpid()}\\n")
while not os.path.exists(os.environ["HERE"] + "/stop"): time.sleep(0.02)
"""
AUTO = {pod.ENV_MODE: "Auto", pod.ENV_PRELOAD: "json", pod.ENV_LOG_PREFIX: "false"}


@pytest.fixture
def command(launch: Launch, folder: Path) -> Callable[[str], Launched]:
    """Starts a launcher whose command is a shell script, in the folder /."""
    (folder / "torchrun").write_text(TORCHRUN)
    (folder / "torchrun").chmod(0o755)
    (folder / "train.py").write_text(TRAIN)

    def start(script: str, **env: str) -> Launched:
        return launch("sh", "-c", script, cwd=Path("/"), **AUTO, **env)

    return start


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def run(launched: Launched, workers: int = 1) -> list[int]:
    """Start a round. Return the pids of its workers."""
    launched.join()
    launched.sidecar.send(round_(0))
    launched.sidecar.expect(WorkersStarted)
    return launched.pids("pids", workers)


def test_workers_have_the_scripts_environment_and_folder_and_its_end_is_the_containers(
    command: Callable[[str], Launched],
) -> None:
    # given a script that prepares its training, and cleans up after it
    launched = command("cd $HERE; export COLOR=red; ./torchrun train.py; echo ended $?; exit 5")
    run(launched)
    # when the job succeeds
    launched.path("stop").touch()
    launched.sidecar.expect(WorkersFinished)
    launched.sidecar.send(ExitLauncher(0, "Succeeded"))
    # then the script continues after its torchrun, and its exit code counts
    assert launched.wait() == 5
    assert launched.out == "red True None\nended 0\n"


def test_the_output_of_workers_goes_where_the_script_redirects_torchrun(
    command: Callable[[str], Launched], folder: Path
) -> None:
    launched = command("cd $HERE; ./torchrun train.py 2>&1 | tr a-z A-Z > upper; echo done")
    run(launched)
    launched.path("stop").touch()
    launched.sidecar.expect(WorkersFinished)
    launched.sidecar.send(ExitLauncher(0, "Succeeded"))
    assert launched.wait() == 0
    assert launched.out == "done\n"
    assert "NONE TRUE NONE\n" in (folder / "upper").read_text()


def test_the_limits_of_the_script_apply_to_workers(command: Callable[[str], Launched], folder: Path) -> None:
    limits = "import os, resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], os.umask(0), os.nice(0))"
    (folder / "train.py").write_text(f"{limits}\n{TRAIN}")
    launched = command("cd $HERE; umask 027; ulimit -Sn 333; nice -n 3 ./torchrun train.py")
    run(launched)
    launched.prints(f"333 23 {min(os.nice(0) + 3, 19)}\nnone True None\n")


def test_after_a_failure_the_script_has_some_time_and_the_workers_code_counts(
    command: Callable[[str], Launched], folder: Path
) -> None:
    (folder / "train.py").write_text("import sys; sys.exit(7)")
    launched = command("cd $HERE; ./torchrun train.py; echo ended $?")
    launched.join()
    launched.sidecar.send(round_(0))
    assert launched.sidecar.expect(WorkerExited).exit_code == 7
    launched.sidecar.send(ExitLauncher(81, "Failed"))
    assert (launched.wait(), launched.out) == (7, "ended 1\n")


def test_daemons_of_the_script_are_no_leftovers_of_workers(command: Callable[[str], Launched]) -> None:
    daemon = (
        "(setsid sh -c 'echo $$ > $HERE/daemon; exec sleep 600' &) ; until [ -s $HERE/daemon ]; do sleep 0.02; done"
    )
    launched = command(f"cd $HERE; {daemon}; ./torchrun train.py")
    run(launched)
    launched.sidecar.send(round_(1))
    launched.sidecar.expect(WorkersStarted)
    (pid,) = launched.pids("daemon", 1)
    assert alive(pid)


def test_sigterm_before_the_call_ends_the_script(command: Callable[[str], Launched]) -> None:
    launched = command("echo $$ > $HERE/script; sleep 600; torchrun train.py")
    (pid,) = launched.pids("script", 1)
    launched.process.send_signal(signal.SIGTERM)
    assert launched.wait() == 143
    assert not alive(pid)


@pytest.mark.parametrize(
    ("script", "code", "text"),
    [
        ("exit 3; torchrun train.py", 3, "the command ended with exit code 3, and without a call of torchrun"),
        ("true; : torchrun train.py", 64, "If each worker is to run the command, set launcher.mode to Wrap"),
        ("cd $HERE; PET_NPROC_PER_NODE=2 ./torchrun train.py", 64, "is 2, but launcher.nprocPerNode is 1"),
    ],
)
def test_a_command_that_passes_no_job_ends_the_container_with_the_reason(
    command: Callable[[str], Launched], script: str, code: int, text: str
) -> None:
    launched = command(script)
    assert launched.wait() == code
    assert text in launched.err


def test_the_second_call_of_torchrun_is_rejected(command: Callable[[str], Launched]) -> None:
    launched = command("cd $HERE; ./torchrun train.py & sleep 0; wait; ./torchrun train.py")
    run(launched)
    launched.path("stop").touch()
    launched.sidecar.expect(WorkersFinished)
    launched.sidecar.send(ExitLauncher(0, "Succeeded"))
    assert launched.wait() == 64
    assert "calls torchrun a second time" in launched.err


@pytest.mark.parametrize("line", [b"{}\n", b"not JSON\n", wire.encode(ExitLauncher(0, "")).encode() + b"\n"])
def test_a_call_that_cannot_be_read_is_answered_with_an_error(
    command: Callable[[str], Launched], folder: Path, line: bytes
) -> None:
    launched = command("until [ -e $HERE/stop ]; do sleep 0.02; done; : torchrun")
    path = folder / pod.TORCHRUN_SOCKET
    wait_for(path.exists, "the launcher listens")
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(launched.limit_s)
        wait_for(lambda: caller.connect_ex(str(path)) == 0, "the launcher accepts")
        caller.sendall(line)
        answer = caller.recv(65536)
    assert b'"code":64' in answer
    assert b"cannot read this call" in answer
    launched.path("stop").touch()
    assert launched.wait() == 64


@pytest.mark.attack(
    "C4", "an entry instead of the launcher's socket", before="a folder kept the training from starting"
)
@pytest.mark.parametrize("obstacle", OBSTACLES.values(), ids=OBSTACLES)
def test_torchrun_reaches_the_launcher_with_any_file_at_the_path_of_its_socket(
    command: Callable[[str], Launched], folder: Path, obstacle: Obstacle
) -> None:
    private = folder / "private"
    private.write_text("x")
    private.chmod(0o600)
    obstacle(folder / pod.TORCHRUN_SOCKET, private)
    run(command("cd $HERE; ./torchrun train.py"))
    assert (private.stat().st_mode & 0o777, private.read_text()) == (0o600, "x")


@pytest.mark.attack("C4", "torchrun sends data after its call", before="the launcher kept every byte")
def test_the_launcher_keeps_nothing_that_torchrun_sends_after_its_call(
    command: Callable[[str], Launched], folder: Path
) -> None:
    launched = command("until [ -e $HERE/stop ]; do sleep 0.02; done; : torchrun")
    path = folder / pod.TORCHRUN_SOCKET
    wait_for(path.exists, "the launcher listens")
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(launched.limit_s)
        wait_for(lambda: caller.connect_ex(str(path)) == 0, "the launcher accepts")
        caller.sendall(wire.encode(RunStock("it has an option")).encode() + b"\n")
        assert b"Proceed" in caller.recv(65536)
        before = resident_mb(launched.process.pid)
        for _ in range(64):
            caller.sendall(bytes(1 << 20))
        assert resident_mb(launched.process.pid) < before + 16


def test_a_script_that_is_a_file_is_read(launch: Launch, command: Callable[[str], Launched], folder: Path) -> None:
    (folder / "run.sh").write_text("cd $HERE\n./torchrun train.py\n")
    launched = launch("sh", str(folder / "run.sh"), cwd=Path("/"), **AUTO)
    (pid,) = run(launched)
    assert os.getsid(pid) == pid


def test_wrap_runs_the_command_once_for_each_worker(launch: Launch, folder: Path) -> None:
    command = "echo $$ >> $HERE/pids; : torchrun; exec sleep 600"
    launched = launch("sh", "-c", command, **{pod.ENV_MODE: "Wrap", pod.ENV_NPROC: "2"})
    assert len(run(launched, 2)) == 2
