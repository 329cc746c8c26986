"""`understudy local` as a user runs it: real launchers, sidecars and workers, without torch and without Kubernetes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from understudy_local import control, run_folder
from understudy_protocol import pod

#: Each rank writes a file named by its round's token and its rank, with the time of each step, until the file `end`
#: exists.
SCRIPT = """
import os, time
from pathlib import Path
from typing import Any
from understudy_torch import step

folder = Path(os.environ["STEP_TIMES"])
names = ("RANK", "WORLD_SIZE", "UNDERSTUDY_ROUND", "MASTER_ADDR")
times = (folder / f"{os.environ['UNDERSTUDY_ROUND']}-{os.environ['RANK']}").open("w", buffering=1)
print("rank", os.environ["RANK"], "trains", flush=True)
number = 0
while not (folder / "end").exists():
    number += 1
    step(number)
    print(time.time(), file=times)
    time.sleep(0.02)
"""
#: The same, with one child in its own session, and another one in the worker's session.
WITH_CHILDREN = (
    """
import subprocess
for own_session in (False, True):
    child = subprocess.Popen(["sleep", "600"], start_new_session=own_session)
"""
    + SCRIPT
)
LIMIT_S = 40.0
ALLOWED_S = 0.1  # between a step and its time in the file, on a busy machine
UNDERSTUDY = (sys.executable, "-m", "understudy_cli", "local")


class Run:
    """One run, from a user's side."""

    def __init__(self, folder: Path, *options: str, script_text: str = SCRIPT) -> None:
        self.output, script = folder / "step-times", folder / "train.py"
        self.output.mkdir()
        script.write_text(script_text)
        self.name = f"test-{os.getpid()}-{folder.name.split('_')[-1][:8]}".replace("_", "-")[:32]
        self.log = folder / "log"
        own = [*UNDERSTUDY, "--name", self.name, "--preload", "", *options]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*own, "--", sys.executable, str(script)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "STEP_TIMES": str(self.output)},
            )

    def kill(self, target: str) -> str:
        done = subprocess.run(
            [*UNDERSTUDY, "kill", "--run", self.name, target], capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    def kills(self, target: str) -> str:
        """As a user who repeats the command if the run does not know the rank holder yet: the files show a new round
        earlier.
        """
        answer = ""

        def killed() -> bool:
            nonlocal answer
            answer = self.kill(target)
            return "killed" in answer

        self.wait_for(killed, f"{target} is killed")
        return answer

    def round_of(self, ranks: int, above: int) -> int:
        """The first round above that one in which this many ranks have started."""
        found: list[int] = []

        def started() -> bool:
            rounds = [path.name.split("-")[0] for path in self.output.iterdir() if path.name != "end"]
            found[:] = [int(token.split(".")[2]) for token in set(rounds) if rounds.count(token) == ranks]
            return any(number > above for number in found)

        self.wait_for(started, f"a round above {above} with {ranks} ranks")
        return max(found)

    def pauses(self, number: int, nproc: int) -> list[float]:
        """How long the training of each pod paused before that round, by the times in its ranks' files."""
        before, after = self._step_times(number - 1, nproc), self._step_times(number, nproc)
        return [min(after[pod]) - max(before[pod]) for pod in before.keys() & after.keys()]

    def _step_times(self, number: int, nproc: int) -> dict[int, list[float]]:
        """The times by the number of the pod, if it has made a step."""
        found: dict[int, list[float]] = {}
        for file in self.output.glob(f"*.{number}-*"):
            rank = int(file.name.partition("-")[2])
            if times := [float(at) for at in file.read_text().split()]:
                found.setdefault(rank // nproc, []).extend(times)
        return found

    def reports(self, strategy: str, number: int, nproc: int) -> None:
        """Wait for the recovery's line, and compare its seconds with the pauses of the pods."""
        self.has_printed(f"Recovered: {strategy} in ")
        (lines,) = re.findall(rf"Recovered: {strategy} in (\S+) s, round {number}:", self.log.read_text())
        pauses = self.pauses(number, nproc)
        assert any(abs(float(lines) - pause) <= max(ALLOWED_S, 0.1 * pause) for pause in pauses), (lines, pauses)

    def has_printed(self, text: str) -> None:
        self.wait_for(lambda: text in self.log.read_text(), f"it prints {text!r}")

    def wait_for(self, condition: Callable[[], bool], description: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, f"{description}: not within {LIMIT_S:g} s\n{self.log.read_text()}"
            time.sleep(0.02)

    def ends(self) -> int:
        try:
            return self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it did not end within {LIMIT_S:g} s\n{self.log.read_text()}")

    def trains_to_the_end(self) -> int:
        (self.output / "end").touch()
        return self.ends()


def lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE  # its parent has ended before it
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start(*options: str, script: str = SCRIPT) -> Run:
        runs.append(Run(tmp_path, *options, script_text=script))
        return runs[-1]

    yield start
    for run in runs:
        run.process.kill()
        run.process.wait()


def test_a_job_survives_the_loss_of_a_worker_a_member_and_its_coordinator(start: Callable[..., Run]) -> None:
    run = start("--nodes", "2", "--spares", "1", "--nproc", "2")
    number = run.round_of(4, above=-1)
    assert "killed the worker of rank 3" in run.kills("3")
    number = run.round_of(4, above=number)
    run.reports("InPlace", number, nproc=2)
    assert "killed all processes of node-1" in run.kills("node-1")
    number = run.round_of(4, above=number)
    run.reports("SpareSwap", number, nproc=2)
    # The first spare coordinates, and now has the ranks of node-1. A new spare is starting on that node: once it has
    # joined, members elect the next coordinator; before that the plan appoints one.
    assert "killed all processes of node-2" in run.kills("node-2")
    run.round_of(4, above=number)
    assert run.trains_to_the_end() == 0
    assert "rank 3 trains" in run.log.read_text()


def test_a_member_whose_worker_fails_twice_is_replaced_by_the_spare(start: Callable[..., Run]) -> None:
    run = start("--nodes", "2", "--spares", "1", "--restarts-per-member", "1")
    number = run.round_of(2, above=-1)
    run.kills("1")
    number = run.round_of(2, above=number)
    run.kills("1")
    run.round_of(2, above=number)
    run.has_printed("Recovered: SpareSwap")
    run.has_printed("failed twice within 1 h")
    assert run.trains_to_the_end() == 0


def test_one_fault_in_one_round_is_recovered_without_a_spare(start: Callable[..., Run]) -> None:
    run = start("--nodes", "1", "--spares", "0", "--no-zygote")
    number = run.round_of(1, above=-1)
    run.kills("0")
    run.round_of(1, above=number)
    assert run.trains_to_the_end() == 0


def test_an_unknown_target_cannot_be_killed(start: Callable[..., Run]) -> None:
    run = start("--nodes", "1", "--spares", "1")
    run.round_of(1, above=-1)
    assert "there is no rank 7: expected 0 to 0" in run.kill("7")
    assert "there is no member 'node-9': the members are node-0, node-1" in run.kill("node-9")
    assert run.trains_to_the_end() == 0
    assert f"no local run with the name {run.name} is active" in run.kill("0")


def test_ctrl_c_ends_a_run_with_all_its_processes(start: Callable[..., Run]) -> None:
    run = start("--nodes", "2", "--spares", "1", "--grace", "5")
    run.round_of(2, above=-1)
    processes = psutil.Process(run.process.pid).children(recursive=True)
    run.process.send_signal(signal.SIGINT)
    assert run.ends() == 130, run.log.read_text()
    run.wait_for(lambda: not any(map(lives, processes)), "everything of it has ended")


def test_an_interrupt_ends_a_background_run_of_a_shell_without_job_control(
    start: Callable[..., Run],
) -> None:
    """Such a shell lets its commands ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited
    try:
        run = start("--nodes", "1", "--grace", "5")
    finally:
        signal.signal(signal.SIGINT, before)
    run.round_of(1, above=-1)
    run.process.send_signal(signal.SIGINT)
    assert run.ends() == 130, run.log.read_text()


def children_of(run: Run) -> list[psutil.Process]:
    """The children of all its workers, two for each worker."""
    found: list[psutil.Process] = []

    def exists() -> bool:
        found[:] = [each for each in descendants(run) if name_of(each) == "sleep"]
        return len(found) == 4

    run.wait_for(exists, "the children of its workers")
    return found


def descendants(run: Run) -> list[psutil.Process]:
    return psutil.Process(run.process.pid).children(recursive=True)


def name_of(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


@pytest.mark.parametrize("zygote", [(), ("--no-zygote",)], ids=["forked", "fresh"])
def test_no_process_is_left_when_a_run_is_killed(start: Callable[..., Run], zygote: tuple[str, ...]) -> None:
    run = start("--nodes", "2", "--spares", "0", *zygote, script=WITH_CHILDREN)
    run.round_of(2, above=-1)
    children_of(run)
    processes = descendants(run)
    run.process.kill()
    run.wait_for(lambda: not any(map(lives, processes)), "everything of it has ended")


def test_no_process_is_left_when_the_process_behind_a_run_is_killed(start: Callable[..., Run]) -> None:
    run = start("--nodes", "2", "--spares", "0", script=WITH_CHILDREN)
    run.round_of(2, above=-1)
    children_of(run)
    processes = descendants(run)
    (behind,) = psutil.Process(run.process.pid).children()
    behind.kill()
    assert run.ends() == 137
    assert not any(map(lives, processes)), "it ends last"
    assert "the run was killed by SIGKILL" in run.log.read_text()


def test_no_process_of_its_workers_is_left_when_a_launcher_is_killed_and_the_run_continues(
    start: Callable[..., Run],
) -> None:
    # given two members whose workers have children
    run = start("--nodes", "2", "--spares", "1", script=WITH_CHILDREN)
    number = run.round_of(2, above=-1)
    children = children_of(run)
    # when the launcher of one is killed
    launcher = next(each for each in ancestors(run, children[0]) if is_launcher_of_an_active(each))
    lost = [child for child in children if launcher in child.parents()]
    assert len(lost) == 2
    launcher.kill()
    # then the children of its workers end, and the job continues
    run.wait_for(lambda: not any(map(lives, lost)), "the children of its worker have ended")
    run.round_of(2, above=number)
    assert run.trains_to_the_end() == 0


def test_children_of_workers_end_with_a_run_that_succeeds(start: Callable[..., Run]) -> None:
    run = start("--nodes", "2", "--spares", "0", script=WITH_CHILDREN)
    run.round_of(2, above=-1)
    children = children_of(run)
    assert run.trains_to_the_end() == 0
    assert not any(map(lives, children))


def test_each_node_is_shown_once_while_a_lost_member_is_replaced(start: Callable[..., Run]) -> None:
    # given a run with a spare
    run = start("--nodes", "2", "--spares", "1")
    number = run.round_of(2, above=-1)
    folder = next(folder for folder in run_folder.live() if folder.name == run.name)
    shown: list[list[str]] = []

    def is_whole() -> bool:
        members = control.ask(folder.control, {"show": True})["members"]
        shown.append([member["node"] for member in members])
        return len(members) == 3 and sorted(member["role"] for member in members) == ["active", "active", "spare"]

    run.wait_for(is_whole, "all are there, the spare too")
    # when the launcher of an active member is killed, and another member takes its place
    next(each for each in descendants(run) if is_launcher_of_an_active(each)).kill()
    run.has_printed("Recovered: SpareSwap")
    run.wait_for(is_whole, "another spare")
    run.round_of(2, above=number)
    # then no node is shown twice
    assert [nodes for nodes in shown if len(set(nodes)) < len(nodes)] == []
    assert run.trains_to_the_end() == 0


def is_launcher_of_an_active(process: psutil.Process) -> bool:
    return "launcher.pyz" in " ".join(process.cmdline()) and "spare" not in process.environ()[pod.ENV_SHARED_FOLDER]


def ancestors(run: Run, process: psutil.Process) -> list[psutil.Process]:
    return [each for each in process.parents() if each in descendants(run)]


def test_a_script_that_fails_at_once_fails_the_job(start: Callable[..., Run], tmp_path: Path) -> None:
    run = start("--nodes", "1", "--spares", "0", "--restarts", "1")
    number = run.round_of(1, above=-1)
    (tmp_path / "train.py").write_text("raise SystemExit('no data')")
    run.kills("0")
    assert run.ends() == 1
    assert number == 0
    assert "Failed" in run.log.read_text()
    assert "no data" in run.log.read_text()


def test_a_script_that_fails_everywhere_ends_the_run_with_its_traceback_once(start: Callable[..., Run]) -> None:
    run = start(
        "--nodes", "2", "--spares", "1", "--nproc", "2", script="def load():\n    raise ValueError('no data')\nload()"
    )
    assert run.ends() == 1
    lines = run.log.read_text().splitlines()
    output = "the script failed on all 4 ranks before its first step, in 3 rounds in a row: ValueError: no data"
    assert len([line for line in lines if line.startswith("understudy: Failed") and output in line]) == 1
    assert len([line for line in lines if "Traceback" in line]) == 1
    assert [line for line in lines if "in load" in line] != []


def ask(run: Run, verb: str) -> dict[str, Any]:
    """The answer of a verb, as JSON."""
    words = [*UNDERSTUDY, verb, run.name, "-o", "json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_run_is_explained_while_it_trains_and_after_its_end(start: Callable[..., Run]) -> None:
    # given a run in which a worker was killed
    run = start("--nodes", "2", "--spares", "1")
    number = run.round_of(2, above=-1)
    run.kills("1")
    run.round_of(2, above=number)
    run.has_printed("Recovered: InPlace")
    # when it is asked for, first while it trains
    run.wait_for(lambda: ask(run, "get")["job"]["phase"] == "Running", "it runs")
    assert [row["ranks"] for row in ask(run, "get")["pods"]] == ["0", "1", "spare"]
    # then the fault is explained, also after the end
    assert run.trains_to_the_end() == 0
    (fault,) = ask(run, "why")["faults"]
    assert (fault["fault"], fault["strategy"], fault["symptom"]) == ("Process", "InPlace", "killed by SIGKILL")
    assert fault["place"].startswith("rank 1, pod ")
    assert ask(run, "get")["job"]["phase"] == "Succeeded"
    account = ask(run, "goodput")
    assert account["job"]["wall_seconds"] == pytest.approx(sum(row["seconds"] for row in account["parts"]), rel=0.01)
    assert {"productive", "starting", "restart"} <= {row["part"] for row in account["parts"]}
    assert [row["name"] for row in account["lost_by_fault"]] == ["Process"]
    assert "Resumed" in [entry["kind"] for entry in ask(run, "timeline")["entries"]]


def test_a_run_that_was_stopped_is_not_shown_as_running(start: Callable[..., Run]) -> None:
    run = start("--nodes", "1", "--spares", "0", "--grace", "5")
    run.round_of(1, above=-1)
    run.process.send_signal(signal.SIGINT)
    assert run.ends() == 130
    assert ask(run, "get")["job"]["phase"] == "Stopped"


def test_a_missing_command_is_named_in_the_error() -> None:
    done = subprocess.run([*UNDERSTUDY, "--", "no-such-program"], capture_output=True, text=True, check=False)
    assert (done.returncode, "command 'no-such-program' is not on PATH" in done.stderr) == (2, True)


def test_a_script_that_cannot_start_is_refused_in_one_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import no_torch")
    command = [*UNDERSTUDY, "--", sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"understudy: {script}, line 1: it imports no_torch, which {sys.executable} does not have: install it there, "
        "or start the script with the Python that has it\n"
    )


def test_the_answers_of_a_run_are_json(start: Callable[..., Run]) -> None:
    run = start("--nodes", "1", "--spares", "0")
    run.round_of(1, above=-1)
    folder = next(folder for folder in run_folder.live() if folder.name == run.name)
    members: list[dict[str, object]] = []

    def runs() -> bool:
        members[:] = control.ask(folder.control, {"show": True})["members"]
        return [member["state"] for member in members] == ["running"]

    run.wait_for(runs, "its one member is shown to run")
    (member,) = members
    assert (member["node"], member["role"], member["ranks"], member["coordinates"]) == ("node-0", "active", "0", True)
    before = time.monotonic()
    answer = control.ask(folder.control, {"kill": "0"})
    assert json.dumps(answer)
    assert before <= answer["at"] <= time.monotonic()
