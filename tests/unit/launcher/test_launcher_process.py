"""The launcher as a pod runs it: entry script, zipapp, real workers, and a sidecar that the test plays."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.launcher.fake_sidecar import (
    LIMIT_S,
    TRAINER_PYTHON,
    Launched,
    alive,
    children,
    logs_of,
    name_of,
    round_,
    wait_for,
    zombies,
)
from understudy_protocol import pod
from understudy_protocol.enums import NO_ROUND, WorkersState
from understudy_protocol.launcher import (
    DrainWorkers,
    ExitLauncher,
    Hung,
    LauncherHello,
    NextPort,
    Stepped,
    StopWorkers,
    Terminating,
    Unkillable,
    WorkerExited,
    WorkersDrained,
    WorkersFinished,
    WorkersStarted,
    WriteStacks,
)

Launch = Callable[..., Launched]

SLEEPS = ("/bin/sh", "-c", 'echo $$ >> "$HERE/pids"; exec sleep 600')
#: Two shells and a sleep: the worker, its child in the background, its child in front.
FAMILY = ("/bin/sh", "-c", 'sleep 600 & echo $! >> "$HERE/pids"; sh -c "sleep 600; :" & echo $! >> "$HERE/pids"; wait')


def started(launched: Launched, number: int = 0, **options: int) -> WorkersStarted:
    launched.sidecar.send(round_(number, **options))
    return launched.sidecar.expect(WorkersStarted)


# A job's life ---------------------------------------------------------------------------------------------------------


def test_workers_run_to_their_end_and_the_launcher_exits_when_ordered(launch: Launch) -> None:
    launched = launch(
        "sh", "-c", 'echo "rank $RANK of $WORLD_SIZE, $UNDERSTUDY_ROUND"; echo oops >&2', **{pod.ENV_NPROC: "2"}
    )
    hello = launched.join()
    assert (hello.token, hello.group_rank, hello.workers) == (NO_ROUND, None, WorkersState.IDLE)
    started(launched, 3, rank_offset=2)
    assert launched.sidecar.expect(WorkersFinished).token.round == 3
    launched.sidecar.send(ExitLauncher(0, "Succeeded: all workers exited 0"))
    assert launched.wait() == 0
    assert sorted(launched.out.splitlines()) == ["[rank 2] rank 2 of 4, 0.1.3", "[rank 3] rank 3 of 4, 0.1.3"]
    assert launched.err.count("oops\n") == 2
    assert "understudy launcher: exits 0: Succeeded: all workers exited 0\n" in launched.err


def test_a_newer_round_replaces_the_workers_and_all_their_children(launch: Launch) -> None:
    launched = launch(*FAMILY)
    launched.join()
    started(launched, 0)
    wait_for(lambda: logs_of(launched.process.pid), "the process that writes the logs has its name")
    old = [*launched.pids("pids", 2), *children(launched.process.pid)]
    assert len(old) == 3
    started(launched, 1)
    assert not [pid for pid in old if alive(pid)], "reported as started only when no old worker is left"
    new = launched.pids("pids", 4)[2:]
    assert all(alive(pid) for pid in new)


def test_a_stopped_member_idles_and_joins_the_next_round(launch: Launch) -> None:
    launched = launch(*SLEEPS)
    launched.join()
    started(launched, 0)
    (old,) = launched.pids("pids", 1)
    launched.sidecar.send(StopWorkers("fenced"))
    assert launched.sidecar.expect(LauncherHello).workers is WorkersState.IDLE
    assert not alive(old)
    started(launched, 1)
    assert alive(launched.pids("pids", 2)[1])


def test_rounds_leave_nothing_open(launch: Launch) -> None:
    launched = launch(*SLEEPS, **{pod.ENV_NPROC: "2"})
    launched.join()

    def open_after(number: int) -> int:
        started(launched, number, rank_offset=0)
        launched.sidecar.expect(NextPort)
        return len(list(Path(f"/proc/{launched.process.pid}/fd").iterdir()))

    assert open_after(0) == open_after(1) == open_after(2)
    assert len(list(launched.path(f"errors-{os.getuid()}").iterdir())) == 0


# Failures -------------------------------------------------------------------------------------------------------------


def test_a_workers_exit_code_is_reported_and_becomes_the_containers(launch: Launch) -> None:
    launched = launch("sh", "-c", "exit 3")
    launched.join()
    started(launched)
    exited = launched.sidecar.expect(WorkerExited)
    assert (exited.local_rank, exited.exit_code, exited.signal, exited.message) == (0, 3, None, "exit code 3")
    assert abs(exited.at - time.time()) < LIMIT_S
    launched.sidecar.send(ExitLauncher(81, "Failed: the budget is spent"))
    assert launched.wait() == 3


def test_a_killed_worker_is_reported_and_its_neighbor_keeps_running(launch: Launch) -> None:
    launched = launch(*SLEEPS, **{pod.ENV_NPROC: "2"})
    launched.join()
    started(launched)
    victim, neighbor = launched.pids("pids", 2)
    os.kill(victim, signal.SIGKILL)
    exited = launched.sidecar.expect(WorkerExited)
    assert (exited.exit_code, exited.signal, exited.message) == (None, "SIGKILL", "killed by SIGKILL")
    assert alive(neighbor)
    launched.sidecar.send(ExitLauncher(81, "Failed"))
    assert launched.wait() == 137
    assert not alive(neighbor)


def test_a_failed_workers_children_are_killed(launch: Launch) -> None:
    launched = launch("sh", "-c", 'sleep 600 & echo $! >> "$HERE/pids"; exit 1')
    launched.join()
    started(launched)
    launched.sidecar.expect(WorkerExited)
    (child,) = launched.pids("pids", 1)
    wait_for(lambda: not alive(child), "the end of the worker's child")


def test_the_message_is_the_one_in_torchs_error_file(launch: Launch) -> None:
    text = '{"message": {"message": "RuntimeError: NCCL\\\\nand more", "extraInfo": {"py_callstack": "line 7"}}}'
    launched = launch("sh", "-c", f"""printf '{text}' > "$TORCHELASTIC_ERROR_FILE"; exit 1""")
    launched.join()
    started(launched)
    exited = launched.sidecar.expect(WorkerExited)
    assert (exited.message, exited.traceback) == ("RuntimeError: NCCL", "line 7")


def test_an_exception_about_a_file_whose_name_is_no_utf_8_is_reported(launch: Launch) -> None:
    """Python decodes each wrong byte to half a surrogate pair, and the sidecar rejects messages with such halves."""
    launched = launch(TRAINER_PYTHON, "-c", "raise ValueError(b'caf\\xe9.bin'.decode(errors='surrogateescape'))")
    launched.join()
    started(launched)
    exited = launched.sidecar.expect(WorkerExited)
    assert exited.message == r"ValueError: caf\udce9.bin"
    assert exited.traceback.endswith(r"ValueError: caf\udce9.bin")


#: torch's @record in a worker that takes long to end after its exception.
LINGERS = """
import json, os, time
failure = {"message": "ValueError: first", "extraInfo": {"timestamp": str(int(time.time()))}}
with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    file.write(json.dumps({"message": failure}))
with open(os.environ["HERE"] + "/failed", "w") as file:
    file.write(f"{os.getpid()}\\n")
open(os.environ["HERE"] + "/go").read()
raise SystemExit(1)
"""


@pytest.mark.parametrize("zygote", ["true", "false"])
def test_a_worker_fails_at_its_exception_and_not_at_its_end(launch: Launch, zygote: str) -> None:
    launched = launch("python3", "-c", LINGERS, **{pod.ENV_ZYGOTE: zygote, pod.ENV_PRELOAD: "json"})
    os.mkfifo(launched.path("go"))
    launched.join()
    before = time.time()
    started(launched)
    launched.pids("failed", 1)
    raised_by = time.time()
    wait_for(lambda: time.time() > raised_by + 1.5, "a time that cannot be taken for the exception's")
    launched.path("go").write_text("now")
    exited = launched.sidecar.expect(WorkerExited)
    assert exited.message == "ValueError: first"
    assert before - 0.1 <= exited.at <= raised_by


def test_a_missing_command_is_reported_as_a_failure(launch: Launch) -> None:
    launched = launch("/nowhere/train", **{pod.ENV_NPROC: "2"})
    launched.join()
    started(launched)
    for local_rank in range(2):
        exited = launched.sidecar.expect(WorkerExited)
        assert (exited.local_rank, exited.exit_code) == (local_rank, 127)
        assert "'/nowhere/train'" in exited.message
    started(launched, 1)


# The sidecar's restarts -----------------------------------------------------------------------------------------------


def test_a_sidecar_that_restarts_finds_the_workers_running(launch: Launch) -> None:
    launched = launch(*SLEEPS)
    launched.join()
    started(launched, 5)
    (worker,) = launched.pids("pids", 1)
    hello = launched.sidecar.restart()
    assert (hello.token.round, hello.group_rank, hello.workers) == (5, 0, WorkersState.RUNNING)
    assert alive(worker)
    started(launched, 6)


def test_a_failure_while_the_sidecar_is_disconnected_is_reported_when_it_reconnects(launch: Launch) -> None:
    launched = launch(*SLEEPS)
    launched.join()
    started(launched)
    (worker,) = launched.pids("pids", 1)
    launched.sidecar.crash()
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: "killed by SIGKILL" in launched.err, "the launcher's own line")
    assert launched.sidecar.restart().workers is WorkersState.FAILED
    assert launched.sidecar.expect(WorkerExited).signal == "SIGKILL"


def test_a_line_that_is_no_message_is_logged_and_dropped(launch: Launch) -> None:
    launched = launch(*SLEEPS)
    launched.join()
    launched.sidecar.send_lines("{nonsense", '{"v":9,"type":"FromTheFuture"}', '{"v":1,"type":"StopWorkers"}')
    started(launched)
    launched.logs("of the unknown type FromTheFuture")
    launched.logs("StopWorkers.reason is missing")


# SIGTERM --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "expected"), [(0, 143), (7, 7)])
def test_sigterm_lets_the_workers_save_and_keeps_their_code(launch: Launch, code: int, expected: int) -> None:
    script = f'trap \'touch "$HERE/saved"; exit {code}\' TERM; echo $$ >> "$HERE/pids"; while :; do sleep 0.02; done'
    launched = launch("sh", "-c", script, **{pod.ENV_GRACE: "60"})
    launched.join()
    started(launched)
    launched.pids("pids", 1)
    launched.process.terminate()
    assert launched.sidecar.expect(Terminating).grace_s == 60
    assert launched.wait() == expected
    assert launched.path("saved").exists()
    assert not [message for message in launched.sidecar.heard if isinstance(message, (WorkerExited, WorkersFinished))]


def test_sigterm_reaches_the_training_behind_a_shell_that_dies_of_it(launch: Launch) -> None:
    script = (
        "import os, signal, sys, time; here = os.environ['HERE']\n"
        "signal.signal(signal.SIGTERM, lambda *_: (open(here + '/saved', 'w'), sys.exit(0)))\n"
        "open(here + '/pids', 'a').write(f'{os.getpid()}\\n')\n"
        "while True: time.sleep(60)"
    )
    launched = launch("bash", "-c", f'"$PYTHON" -c "{script}"; true', PYTHON=TRAINER_PYTHON)
    launched.join()
    started(launched)
    launched.pids("pids", 1)
    launched.process.terminate()
    assert launched.wait() == 143
    assert launched.path("saved").exists()


def test_workers_that_do_not_end_are_killed_before_the_grace_is_over(launch: Launch) -> None:
    stubborn = ("sh", "-c", 'trap "" TERM; echo $$ >> "$HERE/pids"; while :; do sleep 600; done')
    launched = launch(*stubborn, **{pod.ENV_GRACE: "0.5"})
    launched.join()
    started(launched)
    (worker,) = launched.pids("pids", 1)
    launched.process.terminate()
    assert launched.wait() == 137
    assert not alive(worker)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_launcher_without_its_sidecar_ends_at_once_on_sigterm(launch: Launch, number: signal.Signals) -> None:
    launched = launch(*SLEEPS)
    wait_for(lambda: "understudy launcher: pid=" in launched.err, "the launcher's first line")
    launched.process.send_signal(number)
    assert launched.wait() == 143


def test_nohup_is_honored(folder: Path, launch: Launch) -> None:
    launched = launch(*SLEEPS, stub=["nohup", "/bin/sh", f"{folder}/{pod.LAUNCHER_SCRIPT}"])
    launched.join()
    launched.process.send_signal(signal.SIGHUP)
    started(launched)


# The next round's port ------------------------------------------------------------------------------------------------


def test_a_port_is_reserved_until_rank_0_binds_it_and_then_another_one_is(launch: Launch) -> None:
    bind = "import socket, os; s = socket.socket(); s.bind(('', int(os.environ['MASTER_PORT']))); s.listen()"
    launched = launch(TRAINER_PYTHON, "-c", bind)
    port = launched.join().master_port
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("", port))
    started(launched, 0, master_port=port)
    ports, _ = launched.sidecar.expect_both(NextPort, WorkersFinished)
    assert ports.master_port not in (0, port)
    assert launched.sidecar.restart().master_port == ports.master_port


def test_a_member_without_rank_0_keeps_its_port(launch: Launch) -> None:
    launched = launch(*SLEEPS)
    port = launched.join().master_port
    started(launched, 0, rank_offset=1)
    assert launched.sidecar.restart().master_port == port
    assert not [message for message in launched.sidecar.heard if isinstance(message, NextPort)]


# Steps ----------------------------------------------------------------------------------------------------------------


def test_a_script_reports_its_steps(launch: Launch) -> None:
    script = "import understudy_torch\nfor n in range(3000): understudy_torch.step(n + 1, 3000)"
    launched = launch(TRAINER_PYTHON, "-c", script, **{pod.ENV_NPROC: "2"})
    launched.join()
    started(launched, 2)
    first = launched.sidecar.expect(Stepped)
    assert (first.token.round, first.total) == (2, 3000)
    launched.sidecar.expect(WorkersFinished)
    reported = [message.step for message in launched.sidecar.heard if isinstance(message, Stepped)]
    assert reported == sorted(reported)
    assert reported[-1] == 3000


def test_a_step_is_reported_with_the_newest_snapshot(launch: Launch) -> None:
    script = """
import time, understudy_torch
from understudy_protocol.snapshot_slots import slots_of_process
slots = slots_of_process()
for step in (7, 8):
    assert slots.save(step, None, lambda state: (b"{}", []))
understudy_torch.step(9)
time.sleep(600)
"""
    launched = launch(TRAINER_PYTHON, "-c", script, **{pod.ENV_SNAPSHOT_BYTES: "4096"})
    launched.join()
    started(launched)
    found = launched.sidecar.expect(Stepped)
    assert found.snapshot is not None
    assert (found.step, found.snapshot.step) == (9, 8)
    assert 0 < found.snapshot.age_s < 60


def test_the_newest_step_is_reported_while_the_worker_continues(launch: Launch) -> None:
    script = "import time, understudy_torch\nfor n in range(1, 100): understudy_torch.step(n)\ntime.sleep(600)"
    launched = launch(TRAINER_PYTHON, "-c", script)
    launched.join()
    started(launched)
    while launched.sidecar.expect(Stepped).step < 99:
        pass


def test_steps_come_from_behind_a_shell_and_from_a_forked_child(launch: Launch) -> None:
    forks = "import os\nfrom understudy_torch import step\nstep(1)\nif os.fork(): os.wait()\nelse: step(2)"
    launched = launch("sh", "-c", f"{TRAINER_PYTHON} -c '{forks}'; true")
    launched.join()
    started(launched)
    launched.sidecar.expect(WorkersFinished)
    assert [x.step for x in launched.sidecar.heard if isinstance(x, Stepped)][-1] == 2


def test_a_step_is_reported_before_the_workers_end(launch: Launch) -> None:
    launched = launch(TRAINER_PYTHON, "-c", "import understudy_torch; understudy_torch.step(1)")
    launched.join()
    started(launched)
    launched.sidecar.expect(WorkersFinished)
    kinds = [type(message) for message in launched.sidecar.heard]
    assert kinds.index(Stepped) < kinds.index(WorkersFinished)


def test_the_stacks_of_a_worker_that_hangs_are_in_the_log_before_the_report(launch: Launch) -> None:
    script = "import time, understudy_torch\nunderstudy_torch.step(41)\ndef hangs(): time.sleep(600)\nhangs()"
    launched = launch(TRAINER_PYTHON, "-c", script, **{pod.ENV_NPROC: "2", pod.ENV_STEP_TIMEOUT: "1"})
    launched.join()
    order = started(launched, 2)
    hung = launched.sidecar.expect(Hung)
    assert (hung.token, hung.step) == (order.token, 41)
    assert hung.silent_s >= 1.0
    log = launched.err
    for rank in (0, 1):
        header = rf"worker local_rank={rank} rank={rank} made no step for \d s since step 41: its stacks follow\n"
        assert re.search(rf"{header}\[rank {rank}\] Current thread .*\n.* in hangs\n", log), log
    launched.sidecar.send(round_(3))
    launched.sidecar.expect(WorkersStarted)


@pytest.mark.parametrize("zygote", ["true", "false"])
def test_the_stacks_of_workers_without_a_step_are_in_the_log_before_the_report(
    launch: Launch, folder: Path, zygote: str
) -> None:
    # given workers that wait for a peer; the zygote's forks have not imported understudy_torch themselves
    imports = "" if zygote == "true" else "import understudy_torch\n"
    script = "import time\ndef waits_for_a_peer():\n  print('waits', flush=True)\n  time.sleep(600)\nwaits_for_a_peer()"
    (folder / "train.py").write_text(imports + script)
    env = {pod.ENV_NPROC: "2", pod.ENV_START_TIMEOUT: "600", pod.ENV_ZYGOTE: zygote, pod.ENV_PRELOAD: "json"}
    launched = launch(TRAINER_PYTHON, str(folder / "train.py"), **env)
    launched.join()
    order = started(launched, 2)
    wait_for(lambda: launched.out.count("waits") == 2, "both workers")
    # when the coordinator orders their stacks
    launched.sidecar.send(WriteStacks(order.token))
    # then the answer arrives when they are in the log
    hung = launched.sidecar.expect(Hung)
    assert (hung.token, hung.local_rank, hung.step) == (order.token, 0, -1)
    log = launched.err
    for rank in (0, 1):
        header = rf"worker local_rank={rank} rank={rank} made no step for \d s since its start: its stacks follow\n"
        assert re.search(rf"{header}\[rank {rank}\] (Current t|T)hread .*\n(.*\n)*?.* in waits_for_a_peer\n", log), log


# Leftovers: processes that have left their worker's group -------------------------------------------------------------

#: Starts a process in its own session, and one through a double fork, and waits.
ESCAPES = """
import os, subprocess, sys, time
def note(pid):
    with open(os.environ["HERE"] + "/pids", "a") as pids:
        pids.write(f"{pid}\\n")
note(subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        note(os.getpid())
        time.sleep(600)
    os._exit(0)
os.wait()
if len(sys.argv) > 1:
    sys.exit(int(sys.argv[1]))
time.sleep(600)
"""
#: The workers of a DataLoader are daemons of multiprocessing; these also lead their own sessions.
DATA_LOADER = """
import multiprocessing as mp, os, time
def load():
    os.setsid()
    with open(os.environ["HERE"] + "/pids", "a") as pids:
        pids.write(f"{os.getpid()}\\n")
    time.sleep(600)
if __name__ == "__main__":
    for _ in range(2):
        mp.get_context("fork").Process(target=load, daemon=True).start()
    time.sleep(600)
"""


@pytest.mark.parametrize("zygote", ["true", "false"])
@pytest.mark.parametrize("script", [ESCAPES, DATA_LOADER], ids=["escapes", "data loader"])
def test_a_round_starts_only_when_no_process_of_the_previous_one_is_alive(
    launch: Launch, script: str, zygote: str
) -> None:
    launched = launch("python3", "-c", script, **{pod.ENV_ZYGOTE: zygote, pod.ENV_PRELOAD: "json"})
    launched.join()
    started(launched, 0)
    left = launched.pids("pids", 2)
    started(launched, 1)
    assert not [pid for pid in left if alive(pid)]
    launched.logs("SIGKILL to workers' processes outside their process groups:")
    assert all(alive(pid) for pid in launched.pids("pids", 4)[2:])


def test_a_daemon_of_workers_that_have_finished_ends_with_the_next_round(launch: Launch) -> None:
    launched = launch(TRAINER_PYTHON, "-c", ESCAPES, "0")
    launched.join()
    started(launched, 0)
    left = launched.pids("pids", 2)
    launched.sidecar.expect(WorkersFinished)
    assert all(alive(pid) for pid in left), "a daemon may upload the training's output"
    started(launched, 1)
    assert not [pid for pid in left if alive(pid)]


def test_no_process_is_left_when_a_round_has_drained_or_was_stopped_or_the_launcher_exits(launch: Launch) -> None:
    launched = launch(TRAINER_PYTHON, "-c", ESCAPES)
    launched.join()
    started(launched, 0)
    drained = launched.pids("pids", 2)
    launched.sidecar.send(DrainWorkers(round_(0).token, 20.0))
    launched.sidecar.expect(WorkersDrained)
    assert not [pid for pid in drained if alive(pid)]
    started(launched, 1)
    stopped = launched.pids("pids", 4)[2:]
    launched.sidecar.send(StopWorkers("fenced"))
    launched.sidecar.expect(LauncherHello)
    assert not [pid for pid in stopped if alive(pid)]
    started(launched, 2)
    closed = launched.pids("pids", 6)[4:]
    launched.sidecar.send(ExitLauncher(81, "Failed"))
    assert launched.wait() == 81
    assert not [pid for pid in closed if alive(pid)]


#: A process that forks repeatedly, each time into another session, and never waits.
HYDRA = """
import os, time
if os.fork() == 0:
    while True:
        os.setsid() if os.getsid(0) != os.getpid() else None
        if os.fork():
            os._exit(0)
time.sleep(600)
"""


def test_a_process_that_forks_faster_than_it_can_be_found_is_killed(launch: Launch) -> None:
    launched = launch(TRAINER_PYTHON, "-c", HYDRA, **{pod.ENV_ZYGOTE: "false"})
    launched.join()
    started(launched, 0)
    wait_for(lambda: len(children(launched.process.pid)) > 1, "the adoption of the first orphan")
    launched.sidecar.send(StopWorkers("now"))
    launched.sidecar.expect(LauncherHello)
    assert children(launched.process.pid) == []


def test_processes_that_are_older_than_the_launcher_survive(folder: Path, launch: Launch) -> None:
    """An entrypoint may start a daemon and then exec the launcher."""
    entrypoint = f'sleep 600 & echo $! > "$HERE/earlier"; exec /bin/sh {folder}/{pod.LAUNCHER_SCRIPT} "$@"'
    launched = launch(*SLEEPS, stub=["sh", "-c", entrypoint, "entrypoint"])
    launched.join()
    started(launched, 0)
    (earlier,) = launched.pids("earlier", 1)
    started(launched, 1)
    assert alive(earlier)
    os.kill(earlier, signal.SIGKILL)


def test_a_store_and_the_zygote_outlive_the_kill_of_leftovers(launch: Launch) -> None:
    launched = launch("python3", "-c", ESCAPES, **{pod.ENV_PRELOAD: "json"})
    launched.join()
    started(launched, 0)
    launched.pids("pids", 2)
    before = [pid for pid in children(launched.process.pid) if name_of(pid) == "zygote"]
    started(launched, 1)
    assert [pid for pid in children(launched.process.pid) if name_of(pid) == "zygote"] == before


# The worker grace -----------------------------------------------------------------------------------------------------

#: Local rank 1 fails on request; local rank 0 saves at SIGTERM, which takes a moment.
SAVES_AT_SIGTERM = """
if [ "$LOCAL_RANK" = 1 ]; then read line < "$HERE/go"; exit 1; fi
trap 'sleep 0.3; touch "$HERE/saved"; exit 0' TERM
echo $$ >> "$HERE/pids"
while :; do sleep 0.02; done
"""


@pytest.mark.parametrize(("grace", "saved"), [("10", True), ("0", False)])
def test_a_healthy_worker_may_save_within_the_worker_grace(launch: Launch, grace: str, saved: bool) -> None:
    launched = launch("sh", "-c", SAVES_AT_SIGTERM, **{pod.ENV_NPROC: "2", pod.ENV_WORKER_GRACE_PERIOD: grace})
    os.mkfifo(launched.path("go"))
    launched.join()
    started(launched, 0)
    launched.pids("pids", 1)
    launched.path("go").write_text("go\n")
    launched.sidecar.expect(WorkerExited)
    started(launched, 1)
    assert launched.path("saved").exists() is saved


def test_a_worker_without_a_sigterm_handler_gets_the_grace_without_the_signal(launch: Launch) -> None:
    """For example a rank that dumps NCCL's flight recorder in a thread of torch."""
    dumps = 'echo $$ >> "$HERE/pids"; read line < "$HERE/go"; touch "$HERE/dumped"'
    launched = launch("sh", "-c", dumps, TORCH_NCCL_DUMP_ON_TIMEOUT="1")
    os.mkfifo(launched.path("go"))
    launched.join()
    started(launched, 0)
    launched.pids("pids", 1)
    launched.sidecar.send(round_(1))
    launched.logs("replaces round=0.1.0, within 5 s: SIGTERM to 1 workers, only to those that handle it")
    launched.path("go").write_text("go\n")
    launched.sidecar.expect(WorkersStarted)
    assert launched.path("dumped").exists()


# A worker that SIGKILL does not end -----------------------------------------------------------------------------------

#: Lets any process trace it, even if the kernel allows that only to parents (Yama).
TRACEABLE = (
    "import ctypes, os, time\n"
    "ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1 % 2**64), 0, 0, 0)\n"
    "open(os.environ['HERE'] + '/pids', 'a').write(f'{os.getpid()}\\n')\n"
    "time.sleep(600)"
)


@contextlib.contextmanager
def unkillable(pid: int) -> Iterator[None]:
    """A process that stops inside the kernel during its exit, as if a driver blocked it. Needs no privileges."""
    seize, on_exit, detach = 0x4206, 0x40, 17
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    assert libc.ptrace(seize, pid, None, on_exit) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        libc.ptrace(detach, pid, None, None)


@pytest.mark.parametrize("zygote", ["true", "false"])
def test_a_worker_that_cannot_be_killed_is_reported_and_delays_the_next_round(launch: Launch, zygote: str) -> None:
    launched = launch("python3", "-c", TRACEABLE, **{pod.ENV_ZYGOTE: zygote, pod.ENV_PRELOAD: "json"})
    launched.join()
    started(launched, 0)
    (worker,) = launched.pids("pids", 1)
    with unkillable(worker):
        launched.sidecar.send(round_(1))
        report = launched.sidecar.expect(Unkillable)
        assert (report.token, report.local_rank, report.pid) == (round_(1).token, 0, worker)
        assert report.state in ("t", "D")
        assert 5.0 <= report.seconds < LIMIT_S
        launched.logs(f"pid={worker} local_rank=0 state={report.state}")
        assert alive(worker)
        assert not [message for message in launched.sidecar.heard[-2:] if isinstance(message, WorkersStarted)]
    launched.sidecar.expect(WorkersStarted)
    assert not alive(worker)


def test_a_leftover_that_cannot_be_killed_is_reported_without_a_local_rank(launch: Launch) -> None:
    launched = launch("python3", "-c", f"import os, time\nif os.fork(): time.sleep(600)\nos.setsid()\n{TRACEABLE}")
    launched.join()
    started(launched, 0)
    (leftover,) = launched.pids("pids", 1)
    with unkillable(leftover):
        launched.sidecar.send(round_(1))
        report = launched.sidecar.expect(Unkillable)
        assert (report.local_rank, report.pid) == (None, leftover)
    launched.sidecar.expect(WorkersStarted)


# Orphans and its own end ----------------------------------------------------------------------------------------------


def test_orphans_are_reaped(launch: Launch) -> None:
    """A grandchild in its own session outlives its parents, as a daemon does, and ends later."""
    daemon = 'setsid sh -c "echo \\$\\$ > $HERE/pids; read line < $HERE/go" &'
    launched = launch("sh", "-c", f'{daemon} while [ ! -s "$HERE/pids" ]; do sleep 0.01; done')
    os.mkfifo(launched.path("go"))
    launched.join()
    started(launched)
    launched.sidecar.expect(WorkersFinished)
    (orphan,) = launched.pids("pids", 1)
    wait_for(lambda: orphan in children(launched.process.pid), "the launcher's adoption of the orphan")
    launched.path("go").write_text("go\n")
    wait_for(lambda: orphan not in children(launched.process.pid), "the reaping of the orphan")
    assert zombies(launched.process.pid) == []


def test_workers_do_not_outlive_a_launcher_that_is_killed(launch: Launch) -> None:
    launched = launch(*SLEEPS)
    launched.join()
    started(launched)
    (worker,) = launched.pids("pids", 1)
    launched.process.kill()
    wait_for(lambda: not alive(worker), "the worker's end")


def test_a_bug_in_the_launcher_ends_it_loudly_and_leaves_no_worker(folder: Path, launch: Launch) -> None:
    broken = (
        "import sys; sys.path.insert(0, sys.argv.pop(1))\n"
        "from understudy_launcher import __main__, supervise\n"
        "supervise.Supervisor._on_stop_workers = lambda *_: 1 / 0\n"
        "sys.exit(__main__.main(sys.argv[1:]))\n"
    )
    launched = launch(*FAMILY, stub=[TRAINER_PYTHON, "-c", broken, str(folder / pod.LAUNCHER_ZIPAPP), "--"])
    launched.join()
    started(launched)
    wait_for(lambda: logs_of(launched.process.pid), "the process that writes the logs has its name")
    family = [*launched.pids("pids", 2), *children(launched.process.pid)]
    launched.sidecar.send(StopWorkers("now"))
    assert launched.wait() == 70
    assert "a bug in the launcher" in launched.err
    assert "ZeroDivisionError" in launched.err
    wait_for(lambda: not any(alive(pid) for pid in family), "the end of the workers and their children")


UNSHARE = ("unshare", "-pf", "--kill-child", "--mount-proc")
#: A Python without ctypes, so that pid 1, here a shell, inherits the orphans.
WITHOUT_CTYPES = (
    "import sys; sys.modules['ctypes'] = None; sys.path.insert(0, sys.argv.pop(1))\n"
    "from understudy_launcher.__main__ import main; sys.exit(main(sys.argv[1:]))"
)


def _can_unshare() -> bool:
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _can_unshare(), reason="no right to make a PID namespace")
def test_a_launcher_as_pid_1_reaps_orphans_and_handles_sigterm(folder: Path, launch: Launch) -> None:
    launched = launch(*FAMILY, stub=[*UNSHARE, "/bin/sh", f"{folder}/{pod.LAUNCHER_SCRIPT}"])
    assert launched.join().pid == 1
    started(launched, 0)
    launched.pids("pids", 2)
    started(launched, 1)
    launched.pids("pids", 4)
    (inner,) = children(launched.process.pid)
    wait_for(lambda: len(children(inner)) == 1, "one worker only, and no orphan")
    os.kill(inner, signal.SIGTERM)
    launched.sidecar.expect(Terminating)
    assert launched.wait() == 143


#: A /dev of its own, in which the kubelet has created the termination message file.
OWN_DEV = """
mkdir dev && touch dev/null dev/termination-log && mount --bind /dev/null dev/null && mount --bind dev /dev && exec "$@"
"""


@pytest.mark.skipif(not _can_unshare(), reason="no right to make a PID namespace")
def test_a_pod_that_is_replaced_writes_the_reason_as_the_containers_termination_message(
    folder: Path, launch: Launch
) -> None:
    launched = launch(
        *SLEEPS, stub=[*UNSHARE, "/bin/sh", "-c", OWN_DEV, "sh", "/bin/sh", f"{folder}/{pod.LAUNCHER_SCRIPT}"]
    )
    assert launched.join().pid == 1
    launched.sidecar.send(ExitLauncher(84, "replaced: its sidecar cannot store its state"))
    assert launched.wait() == 84
    assert (folder / "dev" / "termination-log").read_text() == "replaced: its sidecar cannot store its state"


@pytest.mark.skipif(not _can_unshare(), reason="no right to make a PID namespace")
def test_rounds_continue_if_proc_shows_another_pid_namespace(folder: Path, launch: Launch) -> None:
    """Leftovers are not found there, because the pids in /proc belong to another namespace."""
    without_proc = [word for word in UNSHARE if word != "--mount-proc"]
    launched = launch(*FAMILY, stub=[*without_proc, "/bin/sh", f"{folder}/{pod.LAUNCHER_SCRIPT}"])
    assert launched.join().pid == 1
    for number in range(2):
        started(launched, number)
        launched.pids("pids", 2 * number + 2)
    launched.process.terminate()


@pytest.mark.skipif(not _can_unshare(), reason="no right to make a PID namespace")
def test_without_ctypes_pid_1_reaps_the_orphans_and_rounds_continue(folder: Path, launch: Launch) -> None:
    init = [*UNSHARE, "sh", "-c", '"$@"; exit $?', "init"]
    launched = launch(
        *FAMILY, stub=[*init, TRAINER_PYTHON, "-c", WITHOUT_CTYPES, f"{folder}/{pod.LAUNCHER_ZIPAPP}", "--"]
    )
    assert launched.join().pid != 1
    launched.logs("cannot become a subreaper (no ctypes in this Python)")
    for number in range(3):
        started(launched, number)
        launched.pids("pids", 2 * number + 2)


@contextlib.contextmanager
def listening_for_memory(folder: Path) -> Iterator[socket.socket]:
    """As the sidecar listens for the memory for snapshots."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / pod.COPIES_SOCKET))
        listener.listen()
        listener.settimeout(LIMIT_S)
        yield listener


def passed_to(listener: socket.socket) -> tuple[bytes, int]:
    """The line and the number of files that the launcher passes."""
    connection, _ = listener.accept()
    with connection:
        line, fds, _, _ = socket.recv_fds(connection, 10, 10)
    for fd in fds:
        os.close(fd)
    return line, len(fds)


def test_a_launcher_passes_its_memory_again_if_the_sidecar_does_not_listen_for_it_yet(
    launch: Launch, folder: Path
) -> None:
    # given a sidecar that is starting, and listens only for the launcher
    launched = launch(*SLEEPS, **{pod.ENV_SNAPSHOT_BYTES: "4096", pod.ENV_SNAPSHOT_COPIES: "1"})
    launched.join()
    launched.logs("the sidecar gets no memory for copies of snapshots yet: [Errno 2] No such file or directory")
    # when it listens for the memory, too
    with listening_for_memory(folder) as listener:
        # then it gets the file of the pod's worker, and the file for copies
        assert passed_to(listener) == (b"1", 2)


def test_a_launcher_that_cannot_allocate_the_memory_for_snapshots_reports_it_to_the_sidecar(
    launch: Launch, folder: Path
) -> None:
    """Else a fetch of a copy would wait for the memory."""
    with listening_for_memory(folder) as listener:
        # given a pod with less than a petabyte
        launched = launch(*SLEEPS, **{pod.ENV_SNAPSHOT_BYTES: "9" * 15, pod.ENV_SNAPSHOT_COPIES: "1"})
        launched.join()
        assert passed_to(listener) == (b"0", 0)


def storage_processes(launched: Launched) -> list[int]:
    """Those that run. A process has this name a moment after the launcher has started it."""
    return [pid for pid in children(launched.process.pid) if name_of(pid) == "storage" and alive(pid)]


def test_the_process_that_writes_snapshots_to_storage_is_replaced_with_the_next_round(
    launch: Launch, folder: Path
) -> None:
    # given a pod that writes snapshots to a folder
    env = {pod.ENV_SNAPSHOT_BYTES: "4096", pod.ENV_SNAPSHOT_STORAGE_PATH: str(folder / "snapshots")}
    launched = launch(*SLEEPS, **env)
    launched.join()
    started(launched)
    (first,) = wait_for(lambda: storage_processes(launched), "the process that writes snapshots has its name")
    # when the process is killed
    os.kill(first, signal.SIGKILL)
    launched.logs("no snapshot is written to storage until the next round: the process that does so has ended")
    # then the workers run on, and the next round has another process
    started(launched, 1)
    (second,) = wait_for(lambda: storage_processes(launched), "the next process that writes snapshots has its name")
    assert second != first
    # and this process outlives further rounds
    started(launched, 2)
    assert storage_processes(launched) == [second]
    # and it ends with the launcher
    launched.sidecar.send(ExitLauncher(0, "the job has ended"))
    assert launched.wait() == 0
    wait_for(lambda: not alive(second), "the end of the process")
