"""Snapshots of a state in GPU memory: the test plays the launcher, and each process is a worker of a round."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.snapshot_rounds import Rounds, become_worker, token
from understudy_protocol.snapshots import SavedStep

LIMIT_S = 120.0
MIB = 1 << 20
#: Of the GPU's free memory, and of the machine's: two slots, a state that is loaded, and torch's files in /dev/shm.
OF_GPU, OF_MACHINE, MOST = 0.25, 0.12, 8 << 30
STATES = Path(__file__).with_name("states.py")
PAGE = 4096
SAVES = 5


class StateFailed(Exception):
    """The process of a case has failed. The text has the end of its output."""


def suitable_size() -> int:
    """Bytes of a state that fits the GPU and the machine, a multiple of what its parts need."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    return int(min(MOST, free * OF_GPU, available * OF_MACHINE)) // (64 * MIB) * (64 * MIB)


@contextmanager
def snapshot_rounds(size: int) -> Iterator[Rounds]:
    """With touched memory, as a pod has it by then."""
    rounds = Rounds(size + 64 * MIB)
    try:
        rounds.memory.allocate()
        os.waitpid(rounds.memory.pid, 0)
        yield rounds
    finally:
        rounds.close()


def run_state(what: str, size: int, rounds: Rounds | None = None) -> dict[str, Any]:
    """The facts of states.py. Raises StateFailed."""
    env, files = dict(os.environ), []
    if rounds is not None:
        become_worker(rounds, env.__setitem__)
        files = [rounds.memory.files[0]]
    env |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(STATES), what, str(size)]
    done = subprocess.run(
        command, env=env, pass_fds=files, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        raise StateFailed(f"{what} ended with exit code {done.returncode}:\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def restore(rounds: Rounds, step: int) -> None:
    """The next round restores this step of the round before."""
    saved = SavedStep(token(rounds.number), step)
    found = rounds.next()
    assert saved in found, (saved, found)
    rounds.choose(saved)


def save_and_restart(what: str, size: int, rounds: Rounds) -> dict[str, Any]:
    """A round saves, and the next one restores the newest snapshot. Returns the facts of the first."""
    rounds.next()
    saved = run_state(what, size, rounds)
    restore(rounds, SAVES)
    return saved


def flip_a_bit(rounds: Rounds, offset: int) -> None:
    """In the content of both slots."""
    file = rounds.memory.files[0]
    slot_bytes = (os.fstat(file).st_size - PAGE) // 2 - PAGE
    for slot in range(2):
        at = PAGE + slot * (PAGE + slot_bytes) + PAGE + offset
        (byte,) = os.pread(file, 1, at)
        os.pwrite(file, bytes([byte ^ 1]), at)


def median(facts: dict[str, Any], name: str = "seconds", *, of: slice = slice(None)) -> float:
    return float(statistics.median(facts[name][of]))
