"""`make bench-snapshot`: snapshots in memory: how long save() blocks a training, and what the fault of a worker costs.

save           four processes with a state of 256 MB each save at once; beside torch's distributed checkpoint to
               /dev/shm. The time of the slowest one
worker-killed  a training of four ranks in local mode, with a state of 64 MB each and steps of 0.2 s; SIGKILL to a rank
               at a random time. The steps that are made again, and the time until the last rank has made its next step

Three minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.child import CHECKOUT
from benchmarks.goals import UNDERSTUDY, Goal
from benchmarks.records import Sample
from benchmarks.report import add_arguments, open_journal, show
from tests.cluster import Cluster
from understudy_launcher.snapshot_memory import SnapshotMemory
from understudy_protocol import pod
from understudy_protocol.enums import RoundToken
from understudy_protocol.launcher import StartWorkers

RUNS, KILLS, RANKS = 9, 9, 4
DCP = "torch DCP"
SAVE, KILLED = "save", "worker-killed"
STATE_MB, KILLED_STATE_MB = 256, 64
LIMIT_S = 120.0
GOALS = (
    Goal(SAVE, RANKS, "blocked_s", at_most=0.06),
    Goal(SAVE, RANKS, "blocked_s", peer=DCP, at_most_ratio=0.5),
    Goal(KILLED, RANKS, "lost_steps", at_most=1.0, of_largest=True),
    Goal(KILLED, RANKS, "first_step_s", at_most=0.5),
)
_SAVES = """
import os, shutil, sys, time
import torch
import torch.distributed.checkpoint as dcp
from understudy_torch import snapshot
system, megabytes = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
tensors = {f"layer{n}": torch.full((megabytes * (1 << 20) // 32,), float(n)) for n in range(8)}
folder = f"/dev/shm/bench-snapshot-{os.getpid()}"
for line in sys.stdin:
    step, before = int(line), time.perf_counter()
    if system == "understudy":
        assert snapshot.save(step, {"model": tensors, "step": step})
    else:
        dcp.save({"model": tensors, "step": step}, checkpoint_id=folder, no_dist=True)
    print(time.perf_counter() - before, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
"""
#: Appends a line for the start of each round, and for each step in it.
_TRAINS = """
import os, sys, time
import torch, torch.distributed as dist
from understudy_torch import snapshot, step
dist.init_process_group("gloo")
torch.set_num_threads(1)
state = snapshot.load() or {"step": 0, "model": torch.zeros(int(sys.argv[2]) * (1 << 18))}
notes = open(f"{sys.argv[1]}/notes-{os.environ['RANK']}", "a", buffering=1)
number = os.environ["UNDERSTUDY_ROUND"].split(".")[2]
def note(event):
    notes.write(f"{event} {number} {state['step']} {time.time()} {os.getpid()}\\n")
note("start")
while True:
    end = torch.zeros(1)
    dist.all_reduce(end)
    state["step"] += 1
    note("step")
    snapshot.save(state["step"], state)
    step(state["step"])
    time.sleep(0.2)
"""


def measure_saves(system: str, runs: int) -> Iterator[Sample]:
    """A sample for each run; two before them touch the memory of both slots."""
    memory = SnapshotMemory(RANKS, (STATE_MB + 8) << 20, 1)
    token = RoundToken(0, 1, 0)
    memory.allocate()
    os.waitpid(memory.pid, 0)
    memory.start(StartWorkers(token, 0, 1, 0, RANKS, "127.0.0.1", 1))
    env = _environment() | {pod.ENV_ROUND: str(token)}
    with contextlib.ExitStack() as stack:
        workers = []
        for file in memory.files.values():
            process = subprocess.Popen(
                [sys.executable, "-c", _SAVES, system, str(STATE_MB)],
                env=env | {pod.ENV_SNAPSHOT_FD: str(file)},
                pass_fds=[file],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            workers.append(stack.enter_context(process))
            stack.callback(process.kill)
        for run in range(-2, runs):
            took_s = max(_save(workers, run + 2))
            if run >= 0:
                yield Sample(system, SAVE, RANKS, run, {"blocked_s": took_s})
    for file in memory.files.values():
        os.close(file)


def _save(workers: Sequence[subprocess.Popen[str]], step: int) -> list[float]:
    """All workers save at once. Return their times in seconds."""
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(f"{step}\n")
        worker.stdin.flush()
    return [float(worker.stdout.readline()) for worker in workers if worker.stdout is not None]


def measure_kills(kills: int) -> Iterator[Sample]:
    """A sample for each kill of a worker."""
    with tempfile.TemporaryDirectory(prefix="bench-snapshot-") as name:
        folder, rng = Path(name), random.Random(24)
        (folder / "train.py").write_text(_TRAINS)
        size = f"{KILLED_STATE_MB + 8}Mi"
        options = ["--nodes", "2", "--nproc", "2", "--spares", "0", "--snapshots", size, "--plain"]
        command = [sys.executable, "-u", str(folder / "train.py"), str(folder), str(KILLED_STATE_MB)]
        local = [sys.executable, "-m", "understudy_cli", "local"]
        with (folder / "log").open("wb") as log:
            job = subprocess.Popen(
                [*local, *options, "--", *command], env=_environment(), stdout=log, stderr=subprocess.STDOUT
            )
        try:
            for number in range(kills):
                _await(folder, number, 5)
                time.sleep(rng.uniform(0.0, 0.5))  # the instant of the fault is random
                victim = rng.choice(sorted(_notes(folder, number).items()))[1][0]
                at = time.time()
                os.kill(int(victim[4]), signal.SIGKILL)
                first = _await(folder, number + 1, 1)
                restored = min(int(notes[0][2]) for notes in first.values())
                took_s = max(float(notes[1][3]) for notes in first.values()) - at
                lost = max(0, _newest_step(folder, number) - restored)
                yield Sample(UNDERSTUDY, KILLED, RANKS, number, {"lost_steps": float(lost), "first_step_s": took_s})
        finally:
            job.send_signal(signal.SIGTERM)
            job.wait(LIMIT_S)


def _environment() -> dict[str, str]:
    paths = (str(CHECKOUT / "sidecar"), str(CHECKOUT / "operator"), str(Cluster().torch_path))
    plain = {name: value for name, value in os.environ.items() if not name.startswith("UNDERSTUDY_")}
    return plain | {"PYTHONPATH": ":".join(paths), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def _notes(folder: Path, number: int) -> Mapping[str, list[list[str]]]:
    """By rank: the complete lines of this round, as words."""
    found = {}
    for path in folder.glob("notes-*"):
        lines = [line.split() for line in path.read_text().split("\n")[:-1]]
        found[path.name] = [words for words in lines if words[1] == str(number)]
    return found


def _await(folder: Path, number: int, steps: int) -> Mapping[str, list[list[str]]]:
    """The notes of the round once each rank has made so many steps in it."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        notes = _notes(folder, number)
        if len(notes) == RANKS and all(len(lines) > steps for lines in notes.values()):
            return notes
        time.sleep(0.02)
    raise TimeoutError(
        f"round {number} has not made {steps} steps within {LIMIT_S:g} s:\n{(folder / 'log').read_text()}"
    )


def _newest_step(folder: Path, number: int) -> int:
    return max(int(lines[-1][2]) for lines in _notes(folder, number).values() if lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench-snapshot ARGS=…", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS, help="saves of each system")
    parser.add_argument("--kills", type=int, default=KILLS, help="of workers")
    add_arguments(parser)
    requests = parser.parse_args(arguments)
    journal = open_journal("snapshot", requests)
    for system in (UNDERSTUDY, DCP):
        if not journal.has(system, SAVE, RANKS, requests.runs - 1):
            journal.add(list(measure_saves(system, requests.runs)))
    if not journal.has(UNDERSTUDY, KILLED, RANKS, requests.kills - 1):
        journal.add(list(measure_kills(requests.kills)))
    journal.close()
    show(journal, GOALS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
