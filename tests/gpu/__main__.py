"""`make gpu`: runs each case on a real launcher and prints a table; exit 1 if a promise is broken.

    python -m tests.gpu [--device cpu]

Without an NVIDIA GPU it prints one line and exits 0. With --device cpu it runs the cases that need no GPU, which shows
that the suite itself works.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.gpu.snapshots import (
    StateFailed,
    flip_a_bit,
    median,
    run_state,
    save_and_restart,
    snapshot_rounds,
    suitable_size,
)
from tests.unit.launcher.fake_sidecar import Launched, plain_environment, round_, wait_for
from understudy_launcher.devices import missing_devices_reason
from understudy_launcher.package import write_package
from understudy_protocol import pod
from understudy_protocol.launcher import ForkFallback, WorkerExited, WorkersStarted

LIMIT_S = 120.0
TRAINING = Path(__file__).with_name("training.py")
#: Of the free memory that a worker takes. The rest is for CUDA's own context, and for NCCL.
SHARE = 0.8
TOUCHES_CUDA = "import torch\ntorch.cuda.init()\n"


class Broken(Exception):
    """A promise is broken. The text has the numbers."""


def check(*, holds: bool, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)


@contextmanager
def launched(device: str, share: float, nproc: int = 1, *, env: Mapping[str, str] | None = None) -> Iterator[Launched]:
    """A launcher whose fork server preloads torch."""
    folder = Path(tempfile.mkdtemp(prefix="understudy-gpu-"))
    write_package(folder)
    whole = plain_environment() | {
        pod.ENV_SHARED_FOLDER: str(folder),
        "HERE": str(folder),
        pod.ENV_NPROC: str(nproc),
        pod.ENV_PRELOAD: "torch,torch.distributed",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        **(env or {}),
    }
    command = ["/bin/sh", f"{folder}/{pod.LAUNCHER_SCRIPT}", "python3", "-u", str(TRAINING), device, str(share)]
    found = Launched(command, folder, whole, folder, LIMIT_S)
    try:
        found.join()
        yield found
    finally:
        found.end()
        shutil.rmtree(folder)


def run(job: Launched, number: int, nproc: int = 1) -> list[dict[str, Any]]:
    """Start a round. Return the facts of its workers, once all have computed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job.sidecar.send(replace(round_(number, world_size=nproc, master_port=port), master_addr="127.0.0.1"))
    job.sidecar.expect(WorkersStarted)
    path = job.path(f"facts-{number}")

    def complete() -> list[str]:
        lines = path.read_text().splitlines() if path.exists() else []
        return lines if len(lines) == nproc else []

    found = wait_for(complete, lambda: f"the workers of round {number}; the log:\n{job.err}", LIMIT_S)
    return [json.loads(line) for line in found]


def forks(device: str) -> str:
    """Workers are forks of a process that has imported torch and not touched the GPU. Each has a GPU context."""
    with launched(device, 0.1) as job:
        (first,), (second,) = run(job, 0), run(job, 1)
        check(holds=first["parent"] == second["parent"] != job.process.pid, otherwise="the workers are no forks")
        check(holds=second["sum"] == 1000.0 and second["reduced"] == 1.0, otherwise=f"wrong results: {second}")
        refused = [x for x in job.sidecar.heard if isinstance(x, ForkFallback) and x.reason]
        check(holds=not refused, otherwise=f"the workers are not forked: {refused}")
        return f"{second['seconds']:.2f} s from the fork to the first collective ({second['backend']})"


def memory(device: str) -> str:
    """A worker that holds most of the memory gets SIGKILL. The next round's worker takes as much."""
    took = []
    with launched(device, SHARE) as job:
        (held,) = (newest,) = run(job, 0)
        for number in range(1, 4):
            killed_at = time.time()
            os.kill(newest["pid"], signal.SIGKILL)
            job.sidecar.expect(WorkerExited)
            (newest,) = run(job, number)
            least = 0.98 * held["bytes"]
            check(holds=newest["bytes"] >= least, otherwise=f"only {newest['bytes']} of {held['bytes']} bytes are free")
            took.append(newest["allocated_at"] - killed_at)
    return f"{held['bytes'] / 2**30:.1f} GiB again {min(took):.2f} to {max(took):.2f} s after SIGKILL"


def two_ranks(device: str) -> str:
    """Two ranks share a device (with gloo: NCCL refuses it)."""
    with launched(device, 0.2, nproc=2) as job:
        facts = run(job, 0, nproc=2)
        check(holds=[x["reduced"] for x in facts] == [2.0, 2.0], otherwise=f"wrong results: {facts}")
    return "both compute"


def flight_recorder(device: str) -> str:
    """The flight recorder of a forked worker has its NCCL collective."""
    with launched(device, 0.1) as job:
        (facts,) = run(job, 0)
        check(holds=facts["recorded"] > 0, otherwise=f"nothing is recorded: {facts}")
    return f"{facts['recorded']} collectives recorded"


def preload(device: str) -> str:
    """A preloaded module that touches CUDA is reported with its name, and the workers train as new processes."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "touches_cuda.py").write_text(TOUCHES_CUDA)
        path = os.pathsep.join((folder, os.environ.get("PYTHONPATH", "")))
        env = {pod.ENV_PRELOAD: "torch,touches_cuda", "PYTHONPATH": path}
        with launched(device, 0.1, env=env) as job:
            (facts,) = run(job, 0)
            check(holds=facts["sum"] == 1000.0, otherwise=f"wrong results: {facts}")
            reasons = [x.reason for x in job.sidecar.heard if isinstance(x, ForkFallback)]
            check(holds=any("touches_cuda" in x for x in reasons), otherwise=f"not reported: {reasons}\n{job.err}")
    return reasons[-1]


def library(_: str) -> str:
    """NVIDIA's library counts the devices, and says how many are missing."""
    import torch

    count = torch.cuda.device_count()
    began = time.monotonic()
    check(holds=missing_devices_reason(count) == "", otherwise=missing_devices_reason(count))
    took = time.monotonic() - began
    more = missing_devices_reason(count + 1)
    check(holds=more.startswith(f"{count} of {count + 1} devices answer"), otherwise=more)
    return f"{count} in {took:.2f} s; with one more: {more}"


def snapshots(_: str) -> str:
    """A state in GPU memory is saved, and restored on the GPU with its content. A flipped bit is refused."""
    size = suitable_size()
    with snapshot_rounds(size) as rounds:
        saved = save_and_restart("save", size, rounds)
        loaded = run_state("load", size, rounds)
        check(holds=not loaded["different"], otherwise=f"these parts of the state are wrong: {loaded['different']}")
        save_and_restart("save", size, rounds)
        flip_a_bit(rounds, size // 2)
        try:
            run_state("load", size, rounds)
        except StateFailed as error:
            check(holds="is damaged (its digest is wrong)" in str(error), otherwise=str(error))
        else:
            raise Broken("a snapshot with a flipped bit was restored")
    first, second, *later = saved["seconds"]
    return (
        f"{size / 2**30:.1f} GiB: the first two saves {first:.2f} and {second:.2f} s, a later one "
        f"{min(later):.3f} to {max(later):.3f} s; restored on the GPU in {loaded['seconds'][0]:.2f} s"
    )


def without_pinning(_: str) -> str:
    """The same without registered memory, with sums on the CPU and a load on the CPU; and torch's own checkpoint."""
    size = suitable_size()
    with snapshot_rounds(size) as rounds:
        plain = save_and_restart("unpinned", size, rounds)
        loaded = run_state("load-cpu", size, rounds)
    dcp = run_state("dcp", size)
    return (
        f"a save {median(plain, of=slice(2, None)):.2f} s; restored by way of the CPU in {loaded['seconds'][0]:.2f} s; "
        f"torch.distributed.checkpoint to /dev/shm {median(dcp, of=slice(2, None)):.2f} s"
    )


def overlap(_: str) -> str:
    """A copy to registered memory on another stream, beside products of matrices."""
    size = suitable_size()
    facts = run_state("overlap", size)
    alone, beside, after = (median(facts, name) for name in ("alone", "beside", "after"))
    return (
        f"{size / 2**30:.1f} GiB: {beside / alone:.3f} of the time of the products alone ({alone:.2f} s), and "
        f"{after / alone:.3f} if the products wait for the copy; registered in {facts['seconds'][0]:.2f} s"
    )


CASES: tuple[Callable[[str], str], ...] = (
    forks,
    memory,
    two_ranks,
    flight_recorder,
    preload,
    library,
    snapshots,
    without_pinning,
    overlap,
)
WITHOUT_GPU = (forks, memory, two_ranks)


def _no_gpu() -> str:
    """Why there is none to test; "": there is one."""
    try:
        import torch
    except ImportError:
        return f"{sys.executable} has no torch"
    return "" if torch.cuda.is_available() else "torch finds no NVIDIA GPU on this machine"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    device = parser.parse_args(arguments).device
    if device == "cuda" and (reason := _no_gpu()):
        print(f"skipped: {reason}")
        return 0
    code = 0
    for case in CASES if device == "cuda" else WITHOUT_GPU:
        try:
            result = f"ok      {case(device)}"
        except (Broken, AssertionError, TimeoutError, StateFailed) as error:
            result, code = f"BROKEN  {error}", 1
        print(f"{case.__name__:16} {result}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
