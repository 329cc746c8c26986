"""Trainings that save after each step, in local mode: what that costs a step, and what a fault costs.

The steps only sleep, so both cores are left to the saves and copies. A note is a line that a rank has written about a
start or a step: event, number of the round, step, time.time(), pid.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.child import CHECKOUT
from benchmarks.goals import UNDERSTUDY
from benchmarks.records import Sample
from benchmarks.rendezvous.network import nodes
from tests.cluster import Cluster
from understudy_local import control, run_folder

RANKS, NPROC = 4, 2
KILLED, NODE_LOST, EVERY_STEP = "worker-killed", "node-lost", "every-step"
WITHOUT = "without snapshots"
#: Of one rank. A worker is killed in a training of small states and short steps.
STATE_MB, KILLED_STATE_MB = 256, 64
STEP_S, KILLED_STEP_S = 1.0, 0.2
STEPS = 20
LIMIT_S = 120.0
#: Arguments: the folder of the notes, the size of the state, the seconds of a step, whether it saves.
_TRAINS = """
import os, sys, time
import torch, torch.distributed as dist
from understudy_torch import snapshot, step
folder, megabytes, step_s, saves = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4] == "saves"
dist.init_process_group("gloo")
torch.set_num_threads(1)
state = (snapshot.load() if saves else None) or {"step": 0, "model": torch.zeros(megabytes * (1 << 18))}
notes = open(f"{folder}/notes-{os.environ['RANK']}", "a", buffering=1)
while saves and state["step"] == 0 and not snapshot.save(0, state):
    time.sleep(0.1)  # the launcher still allocates the memory
number = os.environ["UNDERSTUDY_ROUND"].split(".")[2]
def note(event):
    notes.write(f"{event} {number} {state['step']} {time.time()} {os.getpid()}\\n")
note("start")
while True:
    end = torch.zeros(1)
    dist.all_reduce(end)
    state["step"] += 1
    note("step")
    if saves:
        snapshot.save(state["step"], state)
    step(state["step"])
    time.sleep(step_s)
"""
Notes = Mapping[str, list[list[str]]]  # by rank: the complete lines of one round, as words


@dataclass(frozen=True)
class Run:
    folder: Path
    process: subprocess.Popen[bytes]

    def notes(self, number: int) -> Notes:
        found = {}
        for path in self.folder.glob("notes-*"):
            lines = [line.split() for line in path.read_text().split("\n")[:-1]]
            found[path.name] = [words for words in lines if words[1] == str(number)]
        return found

    def wait(self, number: int, steps: int) -> Notes:
        """The notes of the round once each rank has made so many steps in it."""

        def is_so() -> bool:
            notes = self.notes(number)
            return len(notes) == RANKS and all(len(lines) > steps for lines in notes.values())

        self.until(is_so, f"round {number} has made {steps} steps")
        return self.notes(number)

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            if is_so():
                return
            time.sleep(0.02)
        raise TimeoutError(f"waited {LIMIT_S:g} s until {what}:\n{(self.folder / 'log').read_text()}")

    def cost(self, number: int, at: float) -> dict[str, float]:
        """Of the fault at this time.time(), which has ended the round of this number."""
        first = self.wait(number + 1, 1)
        restored = min(int(lines[0][2]) for lines in first.values())
        newest = max(int(lines[-1][2]) for lines in self.notes(number).values() if lines)
        took_s = max(float(lines[1][3]) for lines in first.values()) - at
        return {"lost_steps": float(max(0, newest - restored)), "first_step_s": took_s}


def measure_kills(kills: int) -> Iterator[Sample]:
    """A sample for each SIGKILL to a worker."""
    rng = random.Random(24)
    options = (*_memory(KILLED_STATE_MB), "--spares", "0")
    with _training(("understudy_cli", "local", *_LOCAL, *options), KILLED_STATE_MB, KILLED_STEP_S) as run:
        for number in range(kills):
            run.wait(number, 5)
            time.sleep(rng.uniform(0.0, 0.5))  # the instant of the fault is random
            victim = rng.choice(sorted(run.notes(number).items()))[1][0]
            at = time.time()
            os.kill(int(victim[4]), signal.SIGKILL)
            yield Sample(UNDERSTUDY, KILLED, RANKS, number, run.cost(number, at))


def measure_lost_nodes(losses: int) -> Iterator[Sample]:
    """A sample for each power-off of a node that trains and does not coordinate. The third node has a spare."""
    rng = random.Random(25)
    with nodes(3) as machines:
        name = f"bench-snapshot-{os.getpid()}"
        placed = ",".join(f"{node.name}={node.ip}" for node in machines)
        options = ("--name", name, "--nodes", placed, "--spares", "1", "--nproc", str(NPROC), *_memory(STATE_MB))
        with _training(("benchmarks.recovery.local_nodes", *options), STATE_MB, STEP_S, "far") as run:
            asked = run_folder.of(name).control
            for number in range(losses):
                run.wait(number, 5)
                run.until(lambda: _are_ready(_members(asked)), "all members are ready")
                time.sleep(rng.uniform(0.0, STEP_S))
                victim = next(x["node"] for x in _members(asked) if x["role"] == "active" and not x["coordinates"])
                at = time.time()
                control.ask(asked, {"kill": str(victim)})
                cost = run.cost(number, at)
                control.ask(asked, {"kill": f"restore {victim}"})
                yield Sample(UNDERSTUDY, NODE_LOST, RANKS, number, cost)
        run_folder.of(name).clear()


def measure_steps(system: str, number: int) -> Sample:
    """The median step. With snapshots also the memory that they take, beside that of their slots."""
    saves = system == UNDERSTUDY
    options = (*_LOCAL, "--spares", "0", *(_memory(STATE_MB) if saves else ()))
    with _training(("understudy_cli", "local", *options), STATE_MB, STEP_S, saves=saves) as run:
        times = [float(line[3]) for line in run.wait(0, STEPS + 5)["notes-0"][5:]]
        values = {"step_s": statistics.median(later - earlier for earlier, later in itertools.pairwise(times))}
        if saves:
            copied = _slot_bytes(STATE_MB) * RANKS * 4  # two slots of its own, and as much for another rank
            values["memory_ratio"] = _resident_bytes(run.process.pid) / copied
    return Sample(system, EVERY_STEP, RANKS, number, values)


_LOCAL = ("--nodes", "2", "--nproc", str(NPROC), "--plain")


def _slot_bytes(state_mb: int) -> int:
    return (state_mb + 8) << 20


def _memory(state_mb: int) -> tuple[str, ...]:
    return ("--snapshots", f"{state_mb + 8}Mi", "--snapshot-copies", "1")


@contextlib.contextmanager
def _training(
    module: Sequence[str], state_mb: int, step_s: float, interface: str = "lo", *, saves: bool = True
) -> Iterator[Run]:
    with tempfile.TemporaryDirectory(prefix="bench-snapshot-") as name:
        folder = Path(name)
        (folder / "train.py").write_text(_TRAINS)
        script = [str(folder / "train.py"), name, str(state_mb), str(step_s), "saves" if saves else "no"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *module, "--", sys.executable, "-u", *script],
                env=environment() | {"GLOO_SOCKET_IFNAME": interface},
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=CHECKOUT,
            )
        try:
            yield Run(folder, process)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(LIMIT_S)


def environment() -> dict[str, str]:
    paths = (str(CHECKOUT), str(CHECKOUT / "sidecar"), str(CHECKOUT / "operator"), str(Cluster().torch_path))
    plain = {name: value for name, value in os.environ.items() if not name.startswith("UNDERSTUDY_")}
    return plain | {"PYTHONPATH": ":".join(paths), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def _members(asked: Path) -> list[dict[str, object]]:
    members: list[dict[str, object]] = control.ask(asked, {"show": True})["members"]
    return members


def _are_ready(members: list[dict[str, object]]) -> bool:
    return len(members) == 3 and all(x["state"] in ("running", "warm") for x in members)


def _resident_bytes(pid: int) -> int:
    """Of the snapshots and copies of a local run, and of the processes that copy."""
    files: dict[int, int] = {}
    private = 0
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, OSError):
            for fd in Path(f"/proc/{process.pid}/fd").iterdir():
                if os.readlink(fd).startswith(("/memfd:snapshots-", "/memfd:copies-")):
                    facts = fd.stat()
                    files[facts.st_ino] = 512 * facts.st_blocks
            if "understudy_sidecar.copy_process" in process.cmdline():
                # USS also has the pages of the snapshots that no other process has mapped.
                status = Path(f"/proc/{process.pid}/status").read_text()
                private += 1024 * int(status.partition("RssAnon:")[2].split()[0])
    return sum(files.values()) + private
