"""The loss of a run that nothing disturbed: what a run with faults must end with, to float tolerance.

The same script with the same ranks, as plain processes on this machine. It is a function of the example's files, the
number of steps and torch alone, so it is kept in the cache under a hash of them.
"""

import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.cluster import Cluster
from tests.e2e.training import EXAMPLE

FILES = ("train.py", "checkpoints.py", "corpus.txt", "trainingjob.yaml")
LIMIT_S = 600
TOLERANCE = 1e-3


def undisturbed_loss(cluster: Cluster, steps: int, world_size: int, say: Callable[[str], None]) -> float:
    """The final training loss after `steps` on `world_size` ranks."""
    digest = hashlib.sha256(f"{steps} {world_size} {cluster.torch_path.name}".encode())
    for name in FILES:
        digest.update((EXAMPLE / name).read_bytes())
    kept = cluster.torch_path.parent / "undisturbed" / f"{digest.hexdigest()[:16]}.json"
    if not kept.exists():
        say(f"training {steps} steps undisturbed, to compare with: about a minute")
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps(_train(cluster.torch_path, steps, world_size)))
    loss: float = json.loads(kept.read_text())
    return loss


def _train(torch: Path, steps: int, world_size: int) -> float:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(EXAMPLE / "train.py"), f"--steps={steps}"]
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
        told, _ = ranks[0].communicate(timeout=LIMIT_S)
        codes = [rank.wait(timeout=30) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if any(codes):
        raise AssertionError(f"the undisturbed run failed with {codes}:\n{told}")
    return loss_of(told)


def loss_of(output: str) -> float:
    """The loss of the line `done step=… loss=…` that rank 0 prints."""
    for line in output.splitlines():
        if line.startswith("done "):
            return float(dict(word.split("=") for word in line.split()[1:])["loss"])
    raise AssertionError(f"no line `done …` in:\n{output}")
