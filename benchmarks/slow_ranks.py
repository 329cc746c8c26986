"""`make bench-slow-ranks`: ordinary trainings with saves and evaluations, in which no rank may be named as slow.

The trainings run at the same time, each with four ranks in two members of `understudy local`, real torch and gloo:

    ddp      examples/ddp: rank 0 saves each 20th step
    fsdp     examples/fsdp: all ranks save each 50th step, and a snapshot in memory after each step
    uneven   samples of very different length, so that another rank is the last one in each step; rank 0 logs each 10th
             step, rank 1 waits for data each 37th, rank 0 saves each 40th, all evaluate each 100th and collect garbage

A window is ten steps in a row, which the coordinator compares. A false alarm is a line `SlowRank` in the output.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.child import CHECKOUT
from benchmarks.goals import UNDERSTUDY, Goal
from benchmarks.records import Sample
from benchmarks.report import add_arguments, open_journal, show
from tests.cluster import Cluster
from tests.torchrun.local_run import local_runs
from tests.torchrun.windows import NOTE_WINDOWS, windows

RANKS, MINUTES = 4, 60
END_S = 60.0
SIZE = ("--nodes", "2", "--nproc", "2", "--spares", "0")
#: Runs the script of the training.
WRAPPER = f"""{NOTE_WINDOWS}
import runpy, sys
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
UNEVEN = """
import gc, os, random, time
import torch, torch.distributed as dist
from understudy_torch import step
dist.init_process_group("gloo")
rank = dist.get_rank()
lengths = random.Random(rank)
network = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.ReLU(), torch.nn.Linear(512, 128))
model = torch.nn.parallel.DistributedDataParallel(network)
optimizer = torch.optim.AdamW(model.parameters())
n = 0
while True:
    n += 1
    time.sleep(min(0.5, lengths.lognormvariate(-2.5, 0.7)))
    if rank == 1 and n % 37 == 0: time.sleep(0.7)
    optimizer.zero_grad()
    loss = model(torch.randn(32, 128)).square().mean()
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss.detach())
    if rank == 0 and n % 10 == 0:
        print("step", n, loss.item(), flush=True)
    if rank == 0 and n % 40 == 0:
        torch.save(model.state_dict(), os.environ["HERE"] + "/saved")
        time.sleep(0.5)
    step(n)
    if n % 100 == 0:
        with torch.no_grad():
            for _ in range(20): network(torch.randn(256, 128))
        time.sleep(lengths.uniform(0.5, 1.5))
        gc.collect()
"""


@dataclass(frozen=True)
class Training:
    """words: of the command. HERE in them is the folder of the run. options: of `understudy local`."""

    name: str
    words: tuple[str, ...]
    options: tuple[str, ...] = ()


ENDLESS = ("--steps", "10000000")
TRAININGS = (
    Training(
        "ddp",
        (
            str(CHECKOUT / "examples" / "ddp" / "train.py"),
            *ENDLESS,
            *("--min-step-seconds", "0.1", "--checkpoint-dir", "HERE/checkpoints", "--checkpoint-every", "20"),
        ),
    ),
    Training(
        "fsdp",
        (
            str(CHECKOUT / "examples" / "fsdp" / "train.py"),
            "HERE/checkpoints",
            *ENDLESS,
            *("--min-step-seconds", "0.25", "--checkpoint-every", "50"),
        ),
        ("--snapshots", "32Mi"),
    ),
    Training("uneven", ("HERE/uneven.py",)),
)
#: No rank of any run may be named.
GOALS = tuple(Goal(training.name, RANKS, "false_alarms", at_most=0, of_largest=True) for training in TRAININGS)


class TrainingEnded(Exception):
    """A training has ended, had a fault, or reported no window: the run shows nothing."""


@dataclass(frozen=True)
class Run:
    process: subprocess.Popen[bytes]
    folder: Path


def measure(minutes: float, run: int) -> list[Sample]:
    """Raises TrainingEnded."""
    torch = Cluster().torch_path
    with ExitStack() as stack:
        runs = {training.name: stack.enter_context(_started(training, torch)) for training in TRAININGS}
        _wait(runs, minutes)
        return [_sample(name, one.folder, minutes, run) for name, one in runs.items()]


@contextmanager
def _started(training: Training, torch: Path) -> Iterator[Run]:
    """Ends the training as Ctrl-C does, so that nothing of it stays."""
    name = f"slow-ranks-{training.name}"
    with tempfile.TemporaryDirectory(prefix=name) as path, local_runs(Path(path), torch, WRAPPER, run=name) as start:
        Path(path, "uneven.py").write_text(UNEVEN)
        words = [word.replace("HERE", path) for word in training.words]
        process = start(*SIZE, *training.options, "--", sys.executable, "-u", "{train}", *words)
        try:
            yield Run(process, Path(path))
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(END_S)


def _wait(runs: Mapping[str, Run], minutes: float) -> None:
    end, printed_at = time.monotonic() + 60 * minutes, time.monotonic()
    while time.monotonic() < end:
        time.sleep(1)
        for name, run in runs.items():
            if trouble := describe_trouble(run.process.poll(), run.folder):
                _fail(name, run, trouble)
        if time.monotonic() - printed_at > 60:
            printed_at = time.monotonic()
            counts = {name: (len(windows(run.folder, RANKS)), len(alarms(run.folder))) for name, run in runs.items()}
            print(f"windows and false alarms: {counts}", flush=True)
    for name, run in runs.items():
        if not windows(run.folder, RANKS):
            _fail(name, run, "its ranks have reported no window")


def _fail(name: str, run: Run, trouble: str) -> None:
    log = CHECKOUT / "build" / f"slow-ranks-{name}.log"
    log.parent.mkdir(exist_ok=True)
    shutil.copy(run.folder / "log", log)
    raise TrainingEnded(f"{name}: {trouble}: see {log.relative_to(CHECKOUT)}")


def describe_trouble(code: int | None, folder: Path) -> str:
    """Why the windows of the training show nothing; "" if they count. code: of its process, None while it runs."""
    if code is not None:
        return f"the training has ended with exit code {code}"
    text = (folder / "log").read_text(errors="replace")
    return "a fault has happened" if "FaultDetected" in text or "JobFailed" in text else ""


def _sample(name: str, folder: Path, minutes: float, run: int) -> Sample:
    for line in alarms(folder):
        print(f"{name}: {line}", flush=True)
    values = {"minutes": minutes, "windows": len(windows(folder, RANKS)), "false_alarms": len(alarms(folder))}
    return Sample(UNDERSTUDY, name, RANKS, run, values)


def alarms(folder: Path) -> list[str]:
    return [line for line in (folder / "log").read_text(errors="replace").splitlines() if "SlowRank" in line]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench-slow-ranks ARGS=…", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=MINUTES)
    add_arguments(parser)
    requests = parser.parse_args(arguments)
    journal = open_journal("slow-ranks", requests)
    journal.add(measure(requests.minutes, len(journal.samples) // len(TRAININGS)))
    journal.close()
    show(journal, GOALS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
