"""A training under `understudy local`, from a user's side: its lines, its faults, and its processes.

A script prints `resumes at step N` when it starts to train, and `step N loss X` after each step, both on rank 0. The
time of a line is the time at which this process read it.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import psutil

from tests.frameworks.cases import Case
from tests.unit.launcher.fake_sidecar import plain_environment
from understudy_local import control, rank_process, run_folder
from understudy_local.options import UsageError

SCRIPTS = Path(__file__).parent / "scripts"
#: For each condition. A run takes half a minute; other programs of the machine may make it many times slower.
LIMIT_S = 240.0
POLL_S = 0.02
FORK_SERVER, NEW_PROCESS = "forks", "new processes"
READY = "the fork server is ready"
LEARNED = "the fork server has learned"
_LINE = re.compile(r"(?:\[rank 0\] )?(?:resumes at step (?P<first>\d+)|step (?P<step>\d+) loss (?P<loss>\S+))$")


@dataclass(frozen=True)
class Resumed:
    at: float
    step: int


@dataclass(frozen=True)
class Step:
    at: float
    step: int
    loss: float


@dataclass(frozen=True)
class Recovery:
    """seconds: from the SIGKILL to the first new step. resumed_at: the step of the checkpoint."""

    seconds: float
    last_step: int  # before the SIGKILL
    resumed_at: int


def command_of(case: Case, folder: Path, environment: Path) -> list[str]:
    words = (*case.command, str(SCRIPTS / case.script), str(folder), *case.arguments)
    return [word.replace("{bin}", str(environment / "bin")) for word in words]


def environment_of(case: Case, environment: Path) -> dict[str, str]:
    """As a user's terminal with an active environment. One thread for each process: two processes share two cores."""
    path = f"{environment / 'bin'}:{os.environ['PATH']}"
    ours = {"PATH": path, "OMP_NUM_THREADS": "1", "TORCH_EXTENSIONS_DIR": str(environment / "torch_extensions")}
    return {**plain_environment(), **ours}


def parsed(line: str, at: float) -> Resumed | Step | None:
    match = _LINE.match(line)
    if match is None:
        return None
    if match["first"] is not None:
        return Resumed(at, int(match["first"]))
    return Step(at, int(match["step"]), float(match["loss"]))


def undisturbed(case: Case, folder: Path, environment: Path) -> dict[int, float]:
    """The loss by step, without Understudy: two processes with the variables that torchrun sets on two nodes, or those
    that Open MPI sets.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = environment_of(case, environment) | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": "undisturbed",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    if case.under_open_mpi:
        env |= {
            "OMPI_MCA_orte_hnp_uri": "4096.0;tcp://127.0.0.1:1",
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            "JAX_COORDINATOR_PORT": str(port),
        }
    logs = [folder.with_suffix(f".{rank}.log") for rank in range(2)]
    started = []
    with ExitStack() as stack:
        for rank, log in enumerate(logs):
            own = {"RANK": str(rank), "GROUP_RANK": str(rank)}
            own |= {"OMPI_COMM_WORLD_RANK": str(rank)} if case.under_open_mpi else {}
            output = stack.enter_context(log.open("w"))
            command = command_of(replace(case, command=Case.command), folder, environment)
            started.append(subprocess.Popen(command, env=env | own, stdout=output, stderr=subprocess.STDOUT))
        try:
            codes = [process.wait(LIMIT_S) for process in started]
        finally:
            for process in started:
                process.kill()
                process.wait()
    assert codes == [0, 0], "\n".join(log.read_text()[-3000:] for log in logs)
    found = [parsed(line, 0.0) for line in logs[0].read_text().splitlines()]
    return {record.step: record.loss for record in found if isinstance(record, Step)}


class Training:
    """One run of `understudy local`: two members of one worker, and a spare. The context manager ends it."""

    def __init__(self, case: Case, folder: Path, environment: Path) -> None:
        self._case, self.name = case, f"frameworks-{os.getpid()}"
        self.records: list[Resumed | Step] = []
        self._log: list[str] = []
        words = [sys.executable, "-m", "understudy_cli", "local", "--plain", "--name", self.name]
        words += ["--nodes", "2", "--spares", "1", *case.options, "--", *command_of(case, folder, environment)]
        env = environment_of(case, environment) | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        self._process = subprocess.Popen(
            words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Training:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.terminate()  # the second signal kills the workers
        self._process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def text(self) -> str:
        return "\n".join(self._log)

    @property
    def starts(self) -> list[Resumed]:
        return [record for record in self.records if isinstance(record, Resumed)]

    @property
    def steps(self) -> list[Step]:
        return [record for record in self.records if isinstance(record, Step)]

    def start_method(self) -> str:
        """How the processes that run the script were started."""
        pids = [pid for launcher in self._launchers() for pid in rank_process.worker_pids(launcher.pid)]
        assert pids, "no worker was found"
        parents = {psutil.Process(pid).parent() for pid in pids}
        names = {"" if parent is None else parent.name() for parent in parents}
        return FORK_SERVER if names == {"zygote"} and not self._case.is_launcher else NEW_PROCESS

    def wait_for_steps(self, count: int) -> None:
        """This many steps since the last start."""

        def made() -> bool:
            records = list(self.records)
            starts = [number for number, record in enumerate(records) if isinstance(record, Resumed)]
            return bool(starts) and len(records) - starts[-1] > count

        self._wait(made, f"{count} steps")

    def wait_for_spare(self) -> None:
        """The fork server of a spare is ready, as it is in a job that has run for a minute."""
        self._wait(lambda: any(READY in log.read_text() for log in self._logs_of_spares()), "a spare that is ready")

    def wait_for_learned(self) -> None:
        """All fork servers, also that of the spare, have imported the modules of the workers."""
        self._wait(
            lambda: all(LEARNED in run_folder.of(self.name).log(row["node"]).read_text() for row in self._rows()),
            "the modules of the workers are learned",
        )

    def lose(self, target: str) -> Recovery:
        """SIGKILL to a rank's worker or to a member. Wait for the first new step."""
        victims = self._workers()
        assert victims
        last_step, answers = self.steps[-1].step, []

        def killed() -> bool:
            try:
                answers.append(control.ask(run_folder.of(self.name).control, {"kill": target}))
            except UsageError:  # a user would repeat the command
                return False
            return True

        count = len(self.records)
        self._wait(killed, f"{target} is killed")
        found: list[Resumed | Step] = []

        def trains() -> bool:
            new = list(self.records)[count:]
            first = next((number for number, record in enumerate(new) if isinstance(record, Resumed)), len(new))
            found[:] = new[first : first + 2]
            return len(found) == 2

        self._wait(trains, f"a new step after {target} was killed")
        left = [process for process in victims if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
        assert not left, f"processes of the former round still run: {left}"
        start, step = found
        return Recovery(round(step.at - answers[0]["at"], 2), last_step, start.step)

    def holder_of(self, ranks: str) -> str:
        """The member that has these ranks."""
        return next(row["node"] for row in self._rows() if row["ranks"] == ranks)

    def wait_for_end(self) -> int:
        processes = self._processes()
        self._wait(lambda: self._process.poll() is not None, "the end of the run")
        self._reader.join(LIMIT_S)
        assert not [process for process in processes if process.is_running()], "processes outlive the run"
        return self._process.returncode

    def _rows(self) -> Sequence[Mapping[str, str]]:
        rows: Sequence[Mapping[str, str]] = control.ask(run_folder.of(self.name).control, {"show": True})["members"]
        return rows

    def _logs_of_spares(self) -> list[Path]:
        return [run_folder.of(self.name).log(row["node"]) for row in self._rows() if row["role"] == "spare"]

    def _processes(self) -> list[psutil.Process]:
        return psutil.Process(self._process.pid).children(recursive=True)

    def _launchers(self) -> list[psutil.Process]:
        """The parents of the processes that write the logs (docs/how-to/workers.md, Names)."""
        found = []
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                parent = process.parent()
                if process.name() == "logs" and parent is not None:
                    found.append(parent)
        return found

    def _workers(self) -> list[psutil.Process]:
        """The workers that run now, and all processes that they have started."""
        own = [psutil.Process(pid) for launcher in self._launchers() for pid in rank_process.worker_pids(launcher.pid)]
        return [one for worker in own for one in (worker, *worker.children(recursive=True))]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            at = time.monotonic()
            self._log.append(line.rstrip("\n"))
            record = parsed(self._log[-1], at)
            if record is not None:
                self.records.append(record)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + LIMIT_S
        while not condition():
            is_over = self._process.poll() is not None
            if (is_over and not condition()) or time.monotonic() >= end:
                why = f"the run ended with {self._process.returncode}" if is_over else f"not within {LIMIT_S:g} s"
                raise AssertionError(f"{why}: {what}\n{self.text[-6000:]}")
            time.sleep(POLL_S)
