"""`make bench-snapshot`: what snapshots in memory cost a training, and what is lost with a worker or a node.

save           four processes with a state of 256 MB each save at once; beside torch's distributed checkpoint to
               /dev/shm, and DLRover's Flash Checkpoint to memory. The time of the slowest one
every-step     a training of four ranks, 256 MB each, with steps of 1 s, a snapshot after each and a copy in the other
               pod; beside the same training without snapshots. The median step, and the memory in use beside that of
               all slots
copy           256 MB from one pod to another one, encrypted, over loopback; beside a plain socket
worker-killed  a training of four ranks, 64 MB each, with steps of 0.2 s; SIGKILL to a rank at a random time. The steps
               that are made again, and the time until the last rank has made its next step
node-lost      the training of `every-step` on network namespaces; one loses its power: its cable is pulled, then all
               of its processes get SIGKILL. The same values
round-in-place, round-with-spare
               a coordinator of 10,000 members, without sockets: a worker fails, or a member is lost and a spare takes
               its ranks; beside the same job without snapshots. The coordinator's CPU time

A quarter of an hour. Needs root, for the network namespaces.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.goals import UNDERSTUDY, Goal
from benchmarks.install import DLROVER_VERSION, ensure_dlrover
from benchmarks.report import add_arguments, open_journal, show
from benchmarks.snapshot import rounds, saves, stream, trainings
from benchmarks.snapshot.trainings import RANKS
from tests.cluster.commands import Progress

RUNS, FAULTS, STEP_RUNS, ROUND_RUNS = 9, 9, 5, 5
GOALS = (
    Goal(saves.SAVE, RANKS, "blocked_s", at_most=0.06),
    Goal(saves.SAVE, RANKS, "blocked_s", peer=saves.DCP, at_most_ratio=0.5),
    Goal(saves.SAVE, RANKS, "blocked_s", peer=saves.DLROVER, at_most_ratio=0.5),
    Goal(trainings.EVERY_STEP, RANKS, "step_s", peer=trainings.WITHOUT, at_most_ratio=1.05),
    Goal(trainings.EVERY_STEP, RANKS, "memory_ratio", at_most=1.02, of_largest=True),
    Goal(stream.STREAM, 1, "s_per_gb", at_most=1 / 1.5),
    Goal(trainings.KILLED, RANKS, "lost_steps", at_most=1.0, of_largest=True),
    Goal(trainings.KILLED, RANKS, "first_step_s", at_most=0.5),
    Goal(trainings.NODE_LOST, RANKS, "lost_steps", at_most=1.0, of_largest=True),
    # 1.5 s of detection, which bench-detection measures, and 2.5 s after it
    Goal(trainings.NODE_LOST, RANKS, "first_step_s", at_most=4.0),
    *(Goal(case, rounds.MEMBERS, "cpu_s", peer=trainings.WITHOUT, at_most_ratio=1.1) for case in rounds.CASES.values()),
)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench-snapshot ARGS=…", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS, help="saves of each system, and copies")
    parser.add_argument("--faults", type=int, default=FAULTS, help="killed workers, and lost nodes")
    parser.add_argument("--step-runs", type=int, default=STEP_RUNS, help="trainings with and without snapshots")
    parser.add_argument("--round-runs", type=int, default=ROUND_RUNS, help="large jobs with and without snapshots")
    add_arguments(parser)
    requests = parser.parse_args(arguments)
    journal = open_journal("snapshot", requests, {"DLRover": DLROVER_VERSION})
    for system in saves.SYSTEMS:
        if not journal.has(system, saves.SAVE, RANKS, requests.runs - 1):
            dlrover = ensure_dlrover(Progress())
            journal.begin()
            journal.add(list(saves.measure_saves(system, requests.runs, dlrover)))
    if not journal.has(UNDERSTUDY, stream.STREAM, 1, requests.runs - 1):
        journal.add(stream.measure_copies(requests.runs))
        journal.add(list(stream.measure_plain(requests.runs)))
    for number in range(requests.step_runs):
        for system in (UNDERSTUDY, trainings.WITHOUT):
            if not journal.has(system, trainings.EVERY_STEP, RANKS, number):
                journal.add([trainings.measure_steps(system, number)])
    if not journal.has(UNDERSTUDY, trainings.KILLED, RANKS, requests.faults - 1):
        journal.add(list(trainings.measure_kills(requests.faults)))
    if not journal.has(UNDERSTUDY, trainings.NODE_LOST, RANKS, requests.faults - 1):
        journal.add(list(trainings.measure_lost_nodes(requests.faults)))
    for number in range(requests.round_runs):
        for system in rounds.SESSIONS:
            if not journal.has(system, "round-with-spare", rounds.MEMBERS, number):
                journal.add(list(rounds.measure_rounds(system, number)))
    journal.close()
    show(journal, GOALS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
