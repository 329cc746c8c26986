"""The systems that train, with one face: started with four nodes and perhaps a spare, broken, and ended.

A node is all processes that one machine would run: for a peer its launcher and worker, for us the sidecar as well.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import psutil

from benchmarks.child import CHECKOUT, LOGS, ChildFailed, Unfinished
from benchmarks.install import Peers
from benchmarks.recovery.plan import NODES, System
from benchmarks.recovery.told import POLL_S, Told
from understudy_local import control, run_folder
from understudy_local.run_folder import RunFolder

TRAIN = Path(__file__).with_name("train.py")
START_S = 120.0
#: Nobody is disturbed in his first steps.
SETTLE_S = 1.0
#: What a run that was killed needs to end all that it had started.
END_S = 10.0


class Training(ABC):
    """A training that runs. Times are time.monotonic()."""

    def __init__(self, told: Told, installed: Peers) -> None:
        self.told = told
        self.env = {**os.environ, "BENCH_TOLD": str(told.path), "TORCH_CPP_LOG_LEVEL": "ERROR"}
        self.python = installed.python

    @abstractmethod
    def alive(self) -> str:
        """Why nothing more is to be expected of it; "" while it lives."""

    @abstractmethod
    def ready(self) -> None:
        """Returns once the spare, if there is to be one, could take a rank at once."""

    @abstractmethod
    def kill_node(self) -> float:
        """One that trains, and hosts neither coordinator nor store: when."""

    @abstractmethod
    def kill_coordinator_node(self) -> float:
        """One that trains, and hosts the coordinator or the store: when."""

    @abstractmethod
    def spare(self) -> int:
        """The process id of the spare's launcher."""

    @abstractmethod
    def stop(self) -> None:
        """End whatever is left."""

    def spare_exit(self, limit_s: float) -> float:
        """Let the training end: seconds from the end of its last worker to that of the spare. Raises Unfinished."""
        workers, spare = [self.told.pid_of(rank) for rank in range(NODES)], self.spare()
        with contextlib.ExitStack() as open_files:
            watched = {pid: _watch(pid, open_files) for pid in (*workers, spare)}
            self.told.end()
            ends = _ends(watched, limit_s)
        return ends[spare] - max(ends[worker] for worker in workers)

    def kill_worker(self, rank: int) -> float:
        pid = self.told.pid_of(rank)
        at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        return at

    def await_start(self) -> None:
        """Until all ranks step."""
        self.told.last_of_all("step", 0.0, START_S + time.monotonic(), self.alive)

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start(system: System, told: Told, installed: Peers, spares: int) -> Training:
    if system is System.UNDERSTUDY:
        return Understudy(told, installed, spares)
    return Agents(system, told, installed, spares)


class Understudy(Training):
    def __init__(self, told: Told, installed: Peers, spares: int) -> None:
        super().__init__(told, installed)
        self._name, self._members = f"bench-{os.getpid()}", NODES + spares
        paths = [str(CHECKOUT / "operator"), str(CHECKOUT / "sidecar"), installed.env["PYTHONPATH"]]
        size = ("--nodes", str(NODES), "--spares", str(spares), "--name", self._name)
        with (LOGS / "recovery-understudy.log").open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "understudy_local", "local", *size, "--plain", "--", self.python, str(TRAIN)],
                env={**self.env, "PYTHONPATH": ":".join(paths)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def alive(self) -> str:
        return "" if self._process.poll() is None else f"it ended with code {self._process.returncode}"

    def ready(self) -> None:
        """All members are there, and each member's newest launcher has its zygote and a store that listens."""
        _until(lambda: self._there() == self._members and self._warm() == self._members, "all members are warm")

    def kill_node(self) -> float:
        members = self._show()
        active = next(x["node"] for x in members if x["role"] == "active" and not x["coordinates"])
        return self._kill(str(active))

    def kill_coordinator_node(self) -> float:
        """A spare that coordinates is given ranks first: else no rank would be lost."""
        if not any(x["role"] == "active" and x["coordinates"] for x in self._show()):
            at = self.kill_node()
            self.told.last_of_all("step", at, START_S, self.alive)
            self.ready()
            time.sleep(SETTLE_S)
        return self._kill(str(next(x["node"] for x in self._show() if x["coordinates"])))

    def spare(self) -> int:
        spare = next(x["node"] for x in self._show() if x["role"] == "spare")
        return _launcher_on(str(spare), psutil.Process(self._process.pid))

    def stop(self) -> None:
        started = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        self._process.wait()
        psutil.wait_procs(started, timeout=END_S)  # the process behind it ends the others, and clears the folder
        self._folder().clear()

    def _folder(self) -> RunFolder:
        return run_folder.of(self._name)

    def _show(self) -> list[dict[str, object]]:
        with contextlib.suppress(OSError):
            members: list[dict[str, object]] = control.ask(self._folder().control, {"show": True})["members"]
            return members
        return []

    def _there(self) -> int:
        return sum(member["state"] != "joining" for member in self._show())

    def _kill(self, target: str) -> float:
        return float(control.ask(self._folder().control, {"kill": target})["at"])

    def _warm(self) -> int:
        """Of how many nodes the newest launcher has said that its zygote is ready."""
        logs = [path.read_text() for path in self._folder().logs.glob("node-*.log")]
        return sum("the zygote is ready" in log.rpartition("understudy launcher: pid=")[2] for log in logs)


class Agents(Training):
    """torchrun's agents, or NVRx's launchers: four, and a fifth that waits. The first one hosts the store."""

    def __init__(self, system: System, told: Told, installed: Peers, spares: int) -> None:
        super().__init__(told, installed)
        self._system, self._spares = system, spares
        self._port = _free_port()
        self.env |= {"PYTHONPATH": installed.env["PYTHONPATH"], "OMP_NUM_THREADS": "1", **_OF[system]}
        self._logs: list[IO[str]] = []
        self._agents: list[subprocess.Popen[bytes]] = []
        for _ in range(NODES):
            self._start_agent()
        if spares:
            self.await_start()
            self._start_agent()

    def alive(self) -> str:
        codes = [agent.poll() for agent in self._agents]
        lost = sum(code is not None for code in codes)
        return "" if lost <= self._spares else f"{lost} of its launchers have ended, with codes {codes}"

    def ready(self) -> None:
        """A launcher that was killed is started again: it is the spare then, and imports for as long as it takes."""
        for number, agent in enumerate(self._agents):
            if agent.poll() is not None:
                self._agents[number] = self._agents[-1]
                self._agents.pop()
                self._start_agent()
                break
        if self._spares:
            spare = psutil.Process(self._agents[-1].pid)
            _until(lambda: _idle(spare), "the spare waits")

    def kill_node(self) -> float:
        workers = {line.pid for line in self.told.lines()}
        trains = [agent for agent in self._agents[1:] if _children(agent.pid) & workers]
        return _kill_tree(trains[0].pid)

    def kill_coordinator_node(self) -> float:
        return _kill_tree(self._agents[0].pid)

    def spare(self) -> int:
        return self._agents[-1].pid

    def stop(self) -> None:
        for agent in self._agents:
            with contextlib.suppress(psutil.NoSuchProcess):
                _kill_tree(agent.pid)
            agent.wait()
        for log in self._logs:
            log.close()

    def _start_agent(self) -> None:
        number = len(self._logs)
        self._logs.append((LOGS / f"recovery-{self._system.value}-{number}.log").open("w"))
        self._agents.append(
            subprocess.Popen(
                [self.python, *self._command(is_host=number == 0), str(TRAIN)],
                env={**self.env, "NODEID": str(number), "GROUP_RANK": str(number)},
                stdout=self._logs[-1],
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )

    def _command(self, *, is_host: bool) -> list[str]:
        nvrx = self._system is System.NVRX
        most = NODES + self._spares if nvrx else NODES  # NVRx counts the spare, torchrun lets it wait
        return [
            *("-W", "ignore", "-m", _NVRX if nvrx else "torch.distributed.run"),
            f"--nnodes={NODES}:{most}",
            "--nproc-per-node=1",
            "--max-restarts=100",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{self._port}",
            f"--rdzv-id=bench-{self._port}",
            f"--rdzv-conf=is_host={int(is_host)}",
            "--local-addr=127.0.0.1",
            *(["--ft-gpu-memory-reclaim-timeout=0"] if nvrx else []),
        ]


_NVRX = "nvidia_resiliency_ext.fault_tolerance.launcher"
_OF: Mapping[System, Mapping[str, str]] = {
    System.TORCHRUN: {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0"},
    System.TORCHRUN_OPTOUT: {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    System.NVRX: {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE": "1"},
}


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > deadline:
            raise ChildFailed(f"{what}: not within {START_S:g} s; the logs are in {LOGS}")
        time.sleep(POLL_S)


def _idle(process: psutil.Process) -> bool:
    """Whether it has imported what it imports: it takes next to no time of the CPU."""
    return process.cpu_percent(1.0) < 10.0


def _children(pid: int) -> set[int]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return {child.pid for child in psutil.Process(pid).children(recursive=True)}
    return set()


def _kill_tree(pid: int) -> float:
    tree = [pid, *_children(pid)]
    at = time.monotonic()
    for one in tree:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    return at


def _launcher_on(node: str, run: psutil.Process) -> int:
    for process in run.children():
        if "launcher.pyz" in " ".join(process.cmdline()):
            log = process.environ()["UNDERSTUDY_FOLDER"]
            if _node_of(run, log) == node:
                return process.pid
    raise ChildFailed(f"no launcher runs on {node}")


def _node_of(run: psutil.Process, folder: str) -> str:
    """A launcher is not told its node, the sidecar of the same folder is."""
    for process in run.children():
        env = process.environ()
        if "understudy_sidecar" in process.cmdline() and env["UNDERSTUDY_FOLDER"] == folder:
            return env["UNDERSTUDY_NODE"]
    return ""


def _watch(pid: int, open_files: contextlib.ExitStack) -> int:
    """A file that is readable from the process's end on."""
    pidfd = os.pidfd_open(pid)
    open_files.callback(os.close, pidfd)
    return pidfd


def _ends(watched: Mapping[int, int], limit_s: float) -> dict[int, float]:
    """When each process ended. Raises Unfinished where one does not."""
    deadline, ends = time.monotonic() + limit_s, dict[int, float]()
    left = {pidfd: pid for pid, pidfd in watched.items()}
    while left:
        ready, _, _ = select.select(list(left), (), (), max(0.0, deadline - time.monotonic()))
        if not ready:
            raise Unfinished(f"{len(left)} processes have not ended within {limit_s:g} s", limit_s)
        ends |= {left.pop(pidfd): time.monotonic() for pidfd in ready}
    return ends


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
