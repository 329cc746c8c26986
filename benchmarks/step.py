"""`make bench-step`: the cost of a call of understudy_torch.step() for a training, in a job and outside of one.

A separate process calls step() as fast as it can, in runs of so many calls. Meanwhile this process reads its page as
the launcher does. For a script that does not call step(), it calls the hook of an optimizer's step in its place, with
a module that replaces torch. Half a minute.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.child import CHECKOUT
from benchmarks.goals import UNDERSTUDY, Goal
from benchmarks.records import Sample
from benchmarks.report import add_arguments, open_journal, show
from understudy_launcher.step_page import StepFiles
from understudy_launcher.steps import READ_EVERY_S
from understudy_protocol import pod

RUNS, CALLS = 101, 100_000
IN_A_JOB, OF_AN_OPTIMIZER = "in-a-job", "of-an-optimizer"
GOALS = (
    Goal(IN_A_JOB, 1, "call_us", at_most=2.0),
    Goal("outside", 1, "call_us", at_most=0.2),
    Goal(OF_AN_OPTIMIZER, 1, "call_us", at_most=5.0),
)
_STEPS = """
import sys, time
from understudy_torch import step
runs, calls = map(int, sys.argv[1:])
for run in range(runs):
    before = time.perf_counter()
    for n in range(calls):
        step(n, calls)
    print((time.perf_counter() - before) / calls * 1e6)
"""


_HOOK = """
import sys, time, types
sys.modules["torch"] = torch = types.ModuleType("torch")
torch.compiler = types.SimpleNamespace(is_compiling=lambda: False)
from understudy_zygote.optimizer_steps import make_hook
hook, optimizer = make_hook(), types.SimpleNamespace(state={})
runs, calls = map(int, sys.argv[1:])
for run in range(runs):
    before = time.perf_counter()
    for n in range(calls):
        hook(optimizer, (), {})
    print((time.perf_counter() - before) / calls * 1e6)
"""


def measure(case: str, runs: int, calls: int) -> list[Sample]:
    env = {"PYTHONPATH": str(CHECKOUT / "sidecar")}
    with tempfile.TemporaryDirectory() as folder, _looked_at(folder) as files:
        if case in (IN_A_JOB, OF_AN_OPTIMIZER):
            env[pod.ENV_STEP_FD] = ",".join(map(str, files.inherited))
        program = _HOOK if case == OF_AN_OPTIMIZER else _STEPS
        command = [sys.executable, "-c", program, str(runs), str(calls)]
        done = subprocess.run(command, env=env, pass_fds=files.inherited, check=True, capture_output=True, text=True)
    return [Sample(UNDERSTUDY, case, 1, run, {"call_us": float(line)}) for run, line in enumerate(done.stdout.split())]


@contextmanager
def _looked_at(folder: str) -> Iterator[StepFiles]:
    files, is_done = StepFiles(folder), threading.Event()

    def look() -> None:
        while not is_done.wait(READ_EVERY_S):
            files.page.read()

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield files
    finally:
        is_done.set()
        looking.join()
        files.given()
        files.close()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench-step ARGS=…", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS, help=f"of {CALLS:,} calls each")
    add_arguments(parser)
    requests = parser.parse_args(arguments)
    journal = open_journal("step", requests)
    for goal in GOALS:
        if not journal.has(UNDERSTUDY, goal.case, goal.size, requests.runs - 1):
            journal.add(measure(goal.case, requests.runs, CALLS))
    journal.close()
    show(journal, GOALS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
