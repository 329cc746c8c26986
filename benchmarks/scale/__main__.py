"""`make bench-scale`: what a coordinator of up to 100,000 members costs, without sockets: CPU time, messages, memory.

first-round    all members call at once; until each has made its first step
voter-config   a spare joins; until the voter configuration that contains it is committed
rest           a minute in which the training steps: heartbeats
worker-failed  a worker fails, and all restart in place; until each has made its first step
member-lost    a member is lost, and a spare takes its rank; until each has made its first step
failover       all members have lost their coordinator, elect this one, and join it; the round continues

One process for each run, on one core. benchmarks/results/scale.json has every sample. Twenty minutes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence

from benchmarks.arguments import sizes
from benchmarks.child import CHECKOUT
from benchmarks.goals import UNDERSTUDY
from benchmarks.records import Sample
from benchmarks.report import add_arguments, open_journal, show

RUNS = 3
SIZES = (1024, 10_000, 32_768, 100_000)
#: The sessions of a run, and the last case of each.
SESSIONS = {"rounds": "member-lost", "failover": "failover"}


def measure(session: str, size: int, run: int) -> Iterator[Sample]:
    """A sample for each case of the session, as soon as it is measured. Raises CalledProcessError."""
    command = [sys.executable, "-m", "benchmarks.scale.coordinator", session, str(size)]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            answer = json.loads(line)
            yield Sample(UNDERSTUDY, answer.pop("case"), size, run, **answer)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench-scale ARGS=…", description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=sizes, default=SIZES, help="members")
    parser.add_argument("--runs", type=int, default=RUNS, help="of each size")
    add_arguments(parser)
    requests = parser.parse_args(arguments)
    journal = open_journal("scale", requests)
    for run in range(requests.runs):
        for size in requests.sizes:
            for session, last in SESSIONS.items():
                if not journal.has(UNDERSTUDY, last, size, run):
                    for sample in measure(session, size, run):
                        if not journal.has(UNDERSTUDY, sample.case, size, run):  # of an interrupted session
                            journal.add([sample])
                    print(f"{session}, {size:,} members, run {run + 1} of {requests.runs}", flush=True)
    journal.close()
    show(journal, ())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
