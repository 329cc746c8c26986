"""`make bench-step`: what a call of understudy_torch.step() costs a training, in a job and outside of one.

A process of its own steps as fast as it can, in runs of so many calls; meanwhile this one looks at its page as the
launcher does. Half a minute.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks import tables
from benchmarks.child import CHECKOUT
from benchmarks.goals import OURS, Goal, check
from benchmarks.records import Sample, sum_up, write_records
from understudy_launcher.step_page import StepFiles
from understudy_launcher.steps import LOOK_EVERY_S
from understudy_protocol import pod

RECORDS = CHECKOUT / "build" / "bench" / "step.json"
RUNS, CALLS = 1001, 10_000
GOALS = (Goal("in-a-job", 1, "call_us", at_most=2.0), Goal("outside", 1, "call_us", at_most=0.2))
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


def measure(case: str, runs: int, calls: int) -> list[Sample]:
    env = {"PYTHONPATH": str(CHECKOUT / "sidecar")}
    with tempfile.TemporaryDirectory() as folder, _looked_at(folder) as files:
        if case == "in-a-job":
            env[pod.ENV_STEP_FD] = ",".join(map(str, files.inherited))
        command = [sys.executable, "-c", _STEPS, str(runs), str(calls)]
        done = subprocess.run(command, env=env, pass_fds=files.inherited, check=True, capture_output=True, text=True)
    return [Sample(OURS, case, 1, run, {"call_us": float(line)}) for run, line in enumerate(done.stdout.split())]


@contextmanager
def _looked_at(folder: str) -> Iterator[StepFiles]:
    files, over = StepFiles(folder), threading.Event()

    def look() -> None:
        while not over.wait(LOOK_EVERY_S):
            files.page.news()

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield files
    finally:
        over.set()
        looking.join()
        files.given()
        files.close()


def main() -> int:
    records = sum_up([sample for goal in GOALS for sample in measure(goal.case, RUNS, CALLS)])
    write_records(RECORDS, records)
    print(f"median [min … max] (runs)\n\n{tables.plain(tables.record_rows(records))}\n")
    print(f"{tables.plain(tables.goal_rows(check(GOALS, records)))}\n")
    print(f"written: {RECORDS.relative_to(CHECKOUT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
