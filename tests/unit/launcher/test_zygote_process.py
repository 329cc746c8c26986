"""The launcher with a zygote, as a pod runs it: workers are forked, and after any process's end the next round runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.launcher.fake_sidecar import TRAINER_PYTHON, Launched, alive, children, round_, wait_for, zombies
from understudy_protocol import pod
from understudy_protocol.launcher import (
    ExitLauncher,
    Learned,
    Preload,
    StartWorkers,
    WorkerExited,
    WorkersFinished,
    WorkersStarted,
)

Launch = Callable[..., Launched]

#: Writes its rank and round, and waits.
SCRIPT = """
import os, time
with open(os.environ["HERE"] + "/pids-" + os.environ["UNDERSTUDY_ROUND"].rpartition(".")[2], "a") as pids:
    pids.write(f"{os.getpid()}\\n")
print("parent", os.getppid(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def script(folder: Path) -> Path:
    path = folder / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def launched(launch: Launch, script: Path) -> Launched:
    return launch("python3", "-u", str(script), **{pod.ENV_NPROC: "2", pod.ENV_PRELOAD: "json,decimal"})


def run(launched: Launched, number: int) -> list[int]:
    """Start a round. Return the pids of its workers."""
    launched.sidecar.send(round_(number))
    launched.sidecar.expect(WorkersStarted)
    return launched.pids(f"pids-{number}", 2)


def zygote_of(launched: Launched) -> int:
    (found,) = [pid for pid in children(launched.process.pid) if "understudy_zygote" in _command_line(pid)]
    return found


def _command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def test_workers_are_forked_and_replaced_by_the_next_rounds(launched: Launched) -> None:
    launched.join()
    first = run(launched, 0)
    zygote = zygote_of(launched)
    assert sorted(children(zygote))[-2:] == sorted(first)
    second = run(launched, 1)
    assert not any(alive(pid) for pid in first)
    assert set(second) <= set(children(zygote))
    assert zombies(launched.process.pid) == []


def test_the_command_line_names_the_script(launched: Launched, script: Path) -> None:
    launched.join()
    (pid, _) = run(launched, 0)
    assert str(script) in _command_line(pid)


def test_the_end_of_a_fork_is_reported_with_its_code(launch: Launch, folder: Path) -> None:
    (folder / "train.py").write_text("import sys; sys.exit(7)")
    launched = launch("python3", str(folder / "train.py"))
    launched.join()
    launched.sidecar.send(round_(0))
    assert launched.sidecar.expect(WorkerExited).exit_code == 7


def test_all_forks_finish_and_the_launcher_exits_when_ordered(launch: Launch, folder: Path) -> None:
    launched = launch("python3", "-c", "print('done')", **{pod.ENV_NPROC: "3"})
    launched.join()
    launched.sidecar.send(round_(0))
    launched.sidecar.expect(WorkersFinished)
    zygote = zygote_of(launched)
    launched.sidecar.send(ExitLauncher(0, "Succeeded"))
    assert launched.wait() == 0
    wait_for(lambda: not alive(zygote), "the end of the zygote")
    assert sorted(launched.out.splitlines()) == [f"[rank {rank}] done" for rank in range(3)]


@pytest.mark.parametrize("turned_off", ["zygote", "shell"])
def test_a_worker_that_is_not_forked_starts_as_a_fresh_process(launch: Launch, script: Path, turned_off: str) -> None:
    python = f"exec python3 -u {script}"
    command = ["python3", "-u", str(script)] if turned_off == "zygote" else ["sh", "-c", python]
    launched = launch(*command, **{pod.ENV_ZYGOTE: "false" if turned_off == "zygote" else "true"})
    launched.join()
    launched.sidecar.send(round_(0))
    (pid,) = launched.pids("pids-0", 1)
    assert children(launched.process.pid) == [pid]


def test_workers_die_with_their_zygote_and_the_next_round_has_another(launched: Launched) -> None:
    launched.join()
    first = run(launched, 0)
    killed = zygote_of(launched)
    os.kill(killed, signal.SIGKILL)
    assert launched.sidecar.expect(WorkerExited).signal == "SIGKILL"
    wait_for(lambda: not any(alive(pid) for pid in first), "the end of its workers")
    second = run(launched, 1)
    assert zygote_of(launched) != killed
    assert set(second) <= set(children(zygote_of(launched)))
    launched.logs("the fork server ended (it has ended): the launcher restarts it")


def test_a_zygote_that_cannot_start_is_reported_and_workers_start_as_fresh_processes(
    launch: Launch, script: Path, folder: Path
) -> None:
    (folder / pod.ZYGOTE_MODULE).unlink()
    launched = launch("python3", "-u", str(script), **{pod.ENV_NPROC: "2"})
    launched.join()
    pids = run(launched, 0)
    launched.logs("the fork server is off")
    # the process that should have become the zygote ends by itself
    wait_for(lambda: sorted(children(launched.process.pid)) == sorted(pids), "the workers alone")


def test_all_processes_die_with_a_killed_launcher(launched: Launched) -> None:
    launched.join()
    pids = [*run(launched, 0), zygote_of(launched)]
    launched.process.kill()
    wait_for(lambda: not any(alive(pid) for pid in pids), "the end of all")


def test_a_round_whose_store_is_missing_fails_at_once(launched: Launched) -> None:
    launched.join()
    launched.sidecar.send(StartWorkers(round_(0).token, 0, 2, 0, 4, "127.0.0.1", 4711, True))
    failure = launched.sidecar.expect(WorkerExited)
    assert (failure.local_rank, failure.message) == (0, "the store of this round ended before the workers started")


def test_a_fork_server_without_torch_distributed_reports_why_it_creates_no_store(launched: Launched) -> None:
    launched.join()
    launched.logs("could not create the round's store (torch.distributed is not among the preloaded modules)")


def test_an_unknown_setting_is_rejected(launch: Launch) -> None:
    launched = launch(TRAINER_PYTHON, "-c", "", **{pod.ENV_ZYGOTE: "perhaps"})
    assert launched.wait() == 78
    assert "UNDERSTUDY_ZYGOTE='perhaps': expected true or false" in launched.err


#: Its worker writes which of its modules were imported before the script, imports them, and makes a step.
LEARNING = """
import os, sys, time
with open(os.environ["HERE"] + "/had-" + os.environ["UNDERSTUDY_ROUND"].rpartition(".")[2], "w") as file:
    file.write(str("sqlite3" in sys.modules))
import sqlite3, wave
from understudy_torch import step
step(1)
time.sleep(600)
"""


def test_the_workers_of_the_next_round_have_the_modules_that_the_first_ones_import(
    launch: Launch, folder: Path
) -> None:
    # given a script whose first worker has made a step
    (folder / "train.py").write_text(LEARNING)
    launched = launch("python3", str(folder / "train.py"))
    launched.join()
    launched.sidecar.send(round_(0))
    # when the fork server has learned its modules
    modules = launched.sidecar.expect(Learned).modules
    # then they are reported, and the next worker has them from the start
    assert "sqlite3" in modules
    assert not [name for name in modules if name.startswith("understudy")]
    launched.sidecar.send(round_(1))
    wait_for((folder / "had-1").exists, "the second round")
    wait_for((folder / "had-1").read_text, "its output")
    assert [(folder / f"had-{number}").read_text() for number in range(2)] == ["False", "True"]


def test_the_fork_server_of_a_spare_imports_what_another_pod_has_learned(launch: Launch, folder: Path) -> None:
    (folder / "train.py").write_text(LEARNING)
    launched = launch("python3", str(folder / "train.py"))
    launched.join()
    launched.sidecar.send(Preload(("sqlite3",)))
    assert launched.sidecar.expect(Learned).modules == ("sqlite3",)
    launched.sidecar.send(round_(0))
    wait_for(lambda: (folder / "had-0").exists() and (folder / "had-0").read_text(), "the first round")
    assert (folder / "had-0").read_text() == "True"


def fork_servers_of(zygote: int) -> list[int]:
    """Its forks that are fork servers too: workers have the name of Python."""
    return [pid for pid in children(zygote) if Path(f"/proc/{pid}/comm").read_text() == "zygote\n"]


def test_workers_outlive_a_fork_server_with_learned_modules_that_ends_before_its_first_fork(
    launch: Launch, folder: Path
) -> None:
    # given a worker, and a second fork server that has learned its modules
    (folder / "train.py").write_text(SCRIPT.replace("time.sleep(600)", LEARNING))
    launched = launch("python3", str(folder / "train.py"))
    launched.join()
    launched.sidecar.send(round_(0))
    (worker,) = launched.pids("pids-0", 1)
    launched.sidecar.expect(Learned)
    first = zygote_of(launched)
    (second,) = fork_servers_of(first)
    # when the second one is killed
    os.kill(second, signal.SIGKILL)
    # then the log says it in one line, and the worker lives
    launched.logs("the fork server with the learned modules has ended before it forked a worker (it has ended)")
    assert alive(worker)
    # and the first one forks the next worker, without the learned modules
    launched.sidecar.send(round_(1))
    (next_worker,) = launched.pids("pids-1", 1)
    assert next_worker in children(first)
    wait_for(lambda: (folder / "had-1").exists() and (folder / "had-1").read_text(), "its imports")
    assert (folder / "had-1").read_text() == "False"
    assert WorkerExited not in map(type, launched.sidecar.heard)
