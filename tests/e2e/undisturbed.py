"""The losses of a run without faults: a run with faults must have the same loss in each step, to float tolerance.

The same script runs with the same ranks, as plain processes on this machine. The losses depend only on the example's
files, the number of steps and torch, so they are kept in the cache under a hash of these.

All these trainings use double precision. With float32, each restart rounds the next step in another way, because
DistributedDataParallel groups the gradients of its first step differently. The soak has shown that this difference
grows to 2e-6 within 600 steps. It would hide a small error of the fault tolerance.
"""

import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tests.cluster import Cluster
from tests.cluster.commands import Progress
from tests.cluster.locks import locked
from tests.e2e.report import NAME, Entry, read_report
from tests.e2e.training import EXAMPLE, Training
from tests.ports import free_port

FILES = ("train.py", "checkpoints.py", "corpus.py", "trainingjob.yaml")
LIMIT_S = 600
#: Relative. Skipping or repeating one step changes the loss by a million times as much.
TOLERANCE = 1e-9


def undisturbed_losses(cluster: Cluster, steps: int, world_size: int, print_line: Callable[[str], None]) -> list[float]:
    """The mean loss over all ranks of step 1, 2, …, of a run of so many steps."""
    digest = hashlib.sha256(f"float64 {steps} {world_size} {cluster.torch_path.name}".encode())
    for name in FILES:
        digest.update((EXAMPLE / name).read_bytes())
    kept = cluster.torch_path.parent / "undisturbed" / f"{digest.hexdigest()[:16]}.json"
    # Two lanes may need it at once. Two runs at the same time are too slow.
    with locked(kept.with_suffix(".lock"), Progress(quiet=True)):
        if not kept.exists():
            print_line(f"training {steps} steps without faults, to compare with: about a minute")
            unfinished = kept.with_suffix(f".{os.getpid()}")
            unfinished.write_text(json.dumps(_train(cluster.torch_path, steps, world_size)))
            unfinished.rename(kept)
    losses: list[float] = json.loads(kept.read_text())
    return losses


def check_losses(training: Training, print_line: Callable[[str], None] = print) -> None:
    """Raises AssertionError unless every step has the loss that it has in a run without faults."""
    expected = undisturbed_losses(training.cluster, training.steps, training.world_size, print_line)
    found = differences(training.report(), expected)
    assert not found, "\n".join(found)


def differences(report: Iterable[Entry], expected: Sequence[float]) -> list[str]:
    """The differences between the reports of a training and the losses of step 1, 2, … without faults: missing steps up
    to the newest one, and other losses, also of repeated steps.
    """
    entries = [entry for entry in report if entry.event in ("step", "done")]
    if not entries:
        return ["no step is reported"]
    missing = set(range(1, max(entry.step for entry in entries) + 1)) - {entry.step for entry in entries}
    wrong = [x for x in entries if x.loss is None or not math.isclose(x.loss, expected[x.step - 1], rel_tol=TOLERANCE)]
    return [
        *(f"step {step} is not reported" for step in sorted(missing)),
        *(f"{entry}: expected a loss of {expected[entry.step - 1]}" for entry in wrong),
    ]


def _train(torch: Path, steps: int, world_size: int) -> list[float]:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="undisturbed-") as folder:
        report = f"--report={folder}/{NAME}.jsonl"
        command = [sys.executable, str(EXAMPLE / "train.py"), f"--steps={steps}", report, "--float64"]
        ranks = [
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                text=True,
                env={
                    **os.environ,
                    "PYTHONPATH": str(torch),
                    "OMP_NUM_THREADS": "1",
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(world_size),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                },
            )
            for rank in range(world_size)
        ]
        try:
            output, _ = ranks[0].communicate(timeout=LIMIT_S)
            codes = [rank.wait(timeout=30) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        if any(codes):
            raise AssertionError(f"the run without faults failed with {codes}:\n{output}")
        losses = {entry.step: entry.loss for entry in read_report(Path(folder)) if entry.loss is not None}
    return [losses[step] for step in range(1, steps + 1)]
