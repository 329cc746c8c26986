"""Processes that save a state at the same time, beside other ways to keep it in memory."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.goals import UNDERSTUDY
from benchmarks.records import Sample
from benchmarks.snapshot.trainings import RANKS, STATE_MB, environment
from understudy_launcher.snapshot_memory import SnapshotMemory
from understudy_protocol import pod
from understudy_protocol.enums import RoundToken
from understudy_protocol.launcher import StartWorkers

DCP, DLROVER = "torch DCP", "DLRover"
SYSTEMS = (UNDERSTUDY, DCP, DLROVER)
SAVE = "save"
SHARED_MEMORY, DLROVER_SOCKETS = Path("/dev/shm"), Path("/tmp/ckpt_sock")  # noqa: S108 (DLRover has fixed names)
#: Each reads the number of a step, saves, and writes the seconds that this took. The first line says that it is ready.
_WORKER = """
import os, sys, time
import torch
torch.set_num_threads(1)
megabytes, folder = int(sys.argv[1]), sys.argv[2]
tensors = {{f"layer{{n}}": torch.full((megabytes * (1 << 20) // 32,), float(n)) for n in range(8)}}
{setup}
print("ready", flush=True)
for line in sys.stdin:
    step, before = int(line), time.perf_counter()
    {save}
    print(time.perf_counter() - before, flush=True)
"""
_SCRIPTS = {
    UNDERSTUDY: _WORKER.format(
        setup="from understudy_torch import snapshot",
        save='assert snapshot.save(step, {"model": tensors, "step": step})',
    ),
    DCP: _WORKER.format(
        setup="import torch.distributed.checkpoint as dcp",
        save='dcp.save({"model": tensors, "step": step}, checkpoint_id=folder, no_dist=True)',
    ),
    # What its checkpointer calls for StorageType.MEMORY, which does not return whether the state was saved.
    DLROVER: _WORKER.format(
        setup=f"""
from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer
engine = DdpCheckpointer(folder, local_shard_num={RANKS}, global_shard_num={RANKS})._engine
""",
        save='assert engine.save_to_memory(step, {"model": {"model": tensors, "step": step}}, {"model": folder})',
    ),
}


def measure_saves(system: str, runs: int, dlrover: Path) -> Iterator[Sample]:
    """A sample for each run: the time of the slowest process. Two saves before them touch the memory.

    dlrover: the folder with its packages.
    """
    name = f"bench-snapshot-{os.getpid()}"
    memory = SnapshotMemory(RANKS, (STATE_MB + 8) << 20, 1)
    token = RoundToken(0, 1, 0)
    memory.allocate()
    os.waitpid(memory.pid, 0)
    memory.start(StartWorkers(token, 0, 1, 0, RANKS, "127.0.0.1", 1))
    env = environment() | {pod.ENV_ROUND: str(token), "TORCHELASTIC_RUN_ID": name}
    env["PYTHONPATH"] = f"{env['PYTHONPATH']}:{dlrover}"
    with contextlib.ExitStack() as stack:
        stack.callback(_remove, name)
        workers = []
        for rank, file in memory.files.items():
            process = subprocess.Popen(
                [sys.executable, "-c", _SCRIPTS[system], str(STATE_MB), str(SHARED_MEMORY / f"{name}-{rank}")],
                env=env | {pod.ENV_SNAPSHOT_FD: str(file), "LOCAL_RANK": str(rank)},
                pass_fds=[file],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # DLRover logs each save
                text=True,
            )
            workers.append(stack.enter_context(process))
            stack.callback(process.kill)
            _await_ready(process)  # one after another: DLRover's first process starts a server for the others
        for run in range(-2, runs):
            took_s = max(_save(workers, run + 2))
            if run >= 0:
                yield Sample(system, SAVE, RANKS, run, {"blocked_s": took_s})
    for file in memory.files.values():
        os.close(file)


def _remove(name: str) -> None:
    for path in (*SHARED_MEMORY.glob(f"*{name}*"), DLROVER_SOCKETS / name):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _await_ready(worker: subprocess.Popen[str]) -> None:
    assert worker.stdout is not None
    for line in worker.stdout:
        if line == "ready\n":
            return
    raise RuntimeError(f"a process that saves has ended with exit code {worker.wait()} before its first save")


def _save(workers: Sequence[subprocess.Popen[str]], step: int) -> list[float]:
    """All workers save at once. Return their times in seconds."""
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(f"{step}\n")
        worker.stdin.flush()
    return [float(worker.stdout.readline()) for worker in workers if worker.stdout is not None]
