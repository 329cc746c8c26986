"""The workers' output in the container's log: with real launchers, and with a log that may have no reader."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.unit.launcher.fake_sidecar import TRAINER_PYTHON, Launched, alive, children, logs_of, round_, wait_for
from understudy_launcher.log_writer import Writer
from understudy_protocol import pod
from understudy_protocol.launcher import ExitLauncher, StopWorkers, WorkerExited, WorkersFinished, WorkersStarted

Launch = Callable[..., Launched]


def started(launched: Launched, number: int = 0, rank_offset: int = 0) -> None:
    launched.sidecar.send(round_(number, rank_offset))
    launched.sidecar.expect(WorkersStarted)


def ended(launched: Launched) -> None:
    launched.sidecar.send(ExitLauncher(0, "Succeeded"))
    assert launched.wait() == 0


BOTH = "import os, sys; print('to out'); print('to err', file=sys.stderr); os.system('echo of a child')"


@pytest.mark.parametrize("zygote", ["true", "false"])
def test_each_line_has_its_global_rank_and_keeps_its_stream(launch: Launch, zygote: str) -> None:
    # given workers that write to both streams, and whose children do so too
    launched = launch(TRAINER_PYTHON, "-u", "-c", BOTH, **{pod.ENV_NPROC: "2", pod.ENV_ZYGOTE: zygote})
    launched.join()
    # when they run as ranks 6 and 7
    started(launched, rank_offset=6)
    launched.sidecar.expect(WorkersFinished)
    ended(launched)
    # then
    expected = [f"[rank {rank}] {text}" for rank in (6, 7) for text in ("of a child", "to out")]
    assert sorted(launched.out.splitlines()) == expected
    lines = [line for line in launched.err.splitlines() if "to err" in line]
    assert sorted(lines) == ["[rank 6] to err", "[rank 7] to err"]


@pytest.mark.parametrize("zygote", ["true", "false"])
def test_without_the_prefix_workers_inherit_the_outputs(launch: Launch, zygote: str) -> None:
    off = {pod.ENV_LOG_PREFIX: "false", pod.ENV_ZYGOTE: zygote}
    launched = launch(TRAINER_PYTHON, "-c", "import os; print('out', os.readlink('/proc/self/fd/1'))", **off)
    launched.join()
    started(launched)
    launched.sidecar.expect(WorkersFinished)
    assert launched.out == f"out {launched.path('out')}\n"
    assert logs_of(launched.process.pid) == []


def test_lines_do_not_mix(launch: Launch) -> None:
    # given four workers that write partial lines as fast as they can
    write = "import os\nfor _ in range(3000):\n os.write(1, b'a' * 50); os.write(1, b'b' * 50 + b'\\n')"
    launched = launch(TRAINER_PYTHON, "-c", write, **{pod.ENV_NPROC: "4"})
    launched.join()
    started(launched)
    launched.sidecar.expect(WorkersFinished)
    ended(launched)
    # then every line is whole, and none is lost
    whole = ["a" * 50 + "b" * 50] * 3000
    for rank in range(4):
        mine = [line.partition("] ")[2] for line in launched.out.splitlines() if line.startswith(f"[rank {rank}] ")]
        assert mine == whole


def test_a_progress_bar_is_seen_while_it_runs(launch: Launch) -> None:
    bar = "import sys, time\nfor n in range(3):\n sys.stdout.write(f'\\r{n}0%'); sys.stdout.flush()\ntime.sleep(600)"
    launched = launch(TRAINER_PYTHON, "-c", bar)
    launched.join()
    started(launched)
    wait_for(lambda: launched.out.splitlines() == [f"[rank 0] {n}0%" for n in range(3)], "its states")


@pytest.mark.parametrize("zygote", ["true", "false"])
def test_the_last_output_of_a_killed_worker_is_in_the_log(launch: Launch, zygote: str) -> None:
    """It has no line end, and the launcher exits a moment later."""
    dies = "import os, signal; os.write(1, b'x' * 60000 + b' the end'); os.kill(os.getpid(), signal.SIGKILL)"
    launched = launch(TRAINER_PYTHON, "-c", dies, **{pod.ENV_ZYGOTE: zygote})
    launched.join()
    started(launched)
    launched.sidecar.expect(WorkerExited)
    launched.sidecar.send(ExitLauncher(81, "Failed"))
    launched.wait()
    assert launched.out.endswith("x the end\n")
    assert launched.err.splitlines()[-1].startswith("understudy launcher: exits")


def test_the_remaining_output_of_an_older_rounds_worker_is_read(launch: Launch) -> None:
    launched = launch("sh", "-c", 'printf "round $UNDERSTUDY_ROUND"; echo $$ >> "$HERE/pids"; exec sleep 600')
    launched.join()
    for number in range(3):
        started(launched, number)
        launched.pids("pids", number + 1)
    wait_for(lambda: len(launched.out.splitlines()) == 3, "the lines of all rounds")
    assert launched.out.splitlines()[0] == "[rank 0] round 0.1.0"


def test_a_process_that_keeps_a_pipe_open_does_not_delay_the_exit(launch: Launch) -> None:
    # given a process that the launcher cannot find, which writes into a worker's pipe forever
    launched = launch("sh", "-c", 'echo said; echo $$ >> "$HERE/worker"; exec sleep 1000')
    launched.join()
    started(launched)
    (pid,) = launched.pids("worker", 1)
    wait_for(lambda: "said" in launched.out, "the worker's line")
    logs = logs_of(launched.process.pid)
    with open(f"/proc/{pid}/fd/1", "wb") as pipe, subprocess.Popen(["yes"], stdout=pipe) as other:
        # when the launcher exits
        launched.sidecar.send(ExitLauncher(0, "Succeeded"))
        try:
            assert launched.wait() == 0
            # then the process that writes the logs exits too
            wait_for(lambda: not any(alive(pid) for pid in logs), "the end of logs")
        finally:
            other.kill()


def test_a_log_without_a_reader_does_not_block_the_launcher(launch: Launch, folder: Path) -> None:
    # given a container whose log is full, and a worker that keeps writing
    os.mkfifo(folder / "out")
    os.mkfifo(folder / "err")
    unread = [os.open(folder / name, os.O_RDONLY | os.O_NONBLOCK) for name in ("out", "err")]
    launched = launch("sh", "-c", 'echo $$ >> "$HERE/pids"; exec yes >&2')
    launched.join()
    started(launched)
    wait_for(launched.path("pids").exists, "the worker")
    pid = int(wait_for(launched.path("pids").read_text, "its number"))
    wait_for(lambda: _blocks(pid), "the worker's block in write")
    # when the launcher logs many lines
    for number in range(1000):
        launched.sidecar.send(StopWorkers(f"{number} " + "x" * 1000))
    # then it still handles SIGTERM and exits, within the time that it waits for the log
    asked = time.monotonic()
    os.kill(launched.process.pid, signal.SIGTERM)
    assert launched.wait() == 143
    assert time.monotonic() - asked < 10
    for fd in unread:
        os.close(fd)


def test_a_log_that_another_program_has_made_non_blocking_gets_all_lines(capfd: pytest.CaptureFixture[str]) -> None:
    # given the process of the logs, and a log whose file is non-blocking, with room for 64 KiB
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    (output, worker), (reader, log) = os.pipe(), os.pipe()
    os.set_blocking(output, False)
    os.set_blocking(log, False)
    socket.send_fds(ours, [b"1"], [output, log])
    os.close(log)
    writer = threading.Thread(target=Writer(theirs).serve, daemon=True)
    writer.start()
    # when a worker writes twice as much before the log is read
    os.write(worker, b"x" * 65536)
    wait_for(lambda: _unread(reader) == 65536, "the first half")
    os.write(worker, b"y" * 65536)
    wait_for(lambda: _unread(output) == 0, "the second half")
    os.close(worker)
    # then the log has all of it
    with open(reader, "rb") as content:
        found = content.read()
    capfd.readouterr()  # the writer's own stdout has the same
    assert (len(found), found[-1:]) == (131072, b"y")
    ours.close()
    writer.join()
    theirs.close()


def _unread(pipe: int) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, struct.pack("i", 0)))
    return int(count)


def _blocks(pid: int) -> bool:
    def written() -> str:
        return Path(f"/proc/{pid}/io").read_text().split("wchar: ")[1].split()[0]

    before = written()
    time.sleep(0.1)
    return before == written()


def gone(pid: int) -> bool:
    return not alive(pid)


def test_a_new_process_continues_the_logs_if_the_first_one_is_killed(launch: Launch) -> None:
    # given a worker that writes occasionally
    launched = launch("sh", "-c", 'while [ ! -e "$HERE/go" ]; do sleep 0.05; done; echo afterwards; sleep 600')
    launched.join()
    started(launched)
    (logs,) = logs_of(launched.process.pid)
    # when the process `logs` is killed
    os.kill(logs, signal.SIGKILL)
    wait_for(lambda: logs not in (others := logs_of(launched.process.pid)) and others, "another one")
    launched.path("go").touch()
    # then the worker's output is in the log as before, and the worker survives
    wait_for(lambda: launched.out == "[rank 0] afterwards\n", "its line")
    assert len(children(launched.process.pid)) == 1
    # and if it is killed repeatedly, the launcher gives it up with a log line
    for _ in range(3):
        (logs,) = wait_for(lambda: logs_of(launched.process.pid), "the next one")
        os.kill(logs, signal.SIGKILL)
        wait_for(partial(gone, logs), "its end")
    launched.logs("later rounds log without a prefix")


def test_only_the_launcher_has_the_sidecars_connection_open(launch: Launch) -> None:
    """The process `logs` must not keep files open whose end is a signal to a peer."""
    launched = launch("sleep", "600")
    launched.join()
    started(launched)
    wait_for(lambda: logs_of(launched.process.pid), "the process logs")
    (logs,) = logs_of(launched.process.pid)
    os.kill(logs, signal.SIGKILL)
    wait_for(lambda: logs not in (others := logs_of(launched.process.pid)) and others, "another one")
    (logs,) = logs_of(launched.process.pid)
    kinds = [os.readlink(f"/proc/{logs}/fd/{fd}").partition(":")[0] for fd in os.listdir(f"/proc/{logs}/fd")]
    assert kinds.count("socket") == 1, "its own"
    assert kinds.count("anon_inode") == 1, "its epoll"


def test_an_unknown_setting_is_rejected(launch: Launch) -> None:
    launched = launch("true", **{pod.ENV_LOG_PREFIX: "perhaps"})
    assert launched.wait() == 78
    assert "UNDERSTUDY_LOG_PREFIX='perhaps': expected true or false" in launched.err
