"""`make bench-recovery`: causes faults in trainings of all systems in turns, and measures how long each recovery takes.

benchmarks/results/recovery.json   every sample, as soon as it is measured: --resume continues from there
build/bench/logs/                 the logs of the last session's processes
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.arguments import listed, some_of
from benchmarks.child import LOGS, ChildFailed, Unfinished
from benchmarks.install import VERSIONS, Peers, ensure_peers
from benchmarks.journal import Journal
from benchmarks.records import Sample
from benchmarks.recovery import systems
from benchmarks.recovery.goals import GOALS
from benchmarks.recovery.plan import NODES, Case, Session, System, missing, plan
from benchmarks.recovery.reports import Reports
from benchmarks.recovery.sigterm import exit_of_a_faulty_member
from benchmarks.recovery.training import SETTLE_S, Training
from benchmarks.rendezvous import network
from benchmarks.report import add_arguments, open_journal, show
from tests.cluster.commands import Progress
from tests.cluster.failures import ClusterError

METRICS = dict.fromkeys(Case, ("first_all_reduce_s", "first_step_s")) | {Case.SPARE_EXIT: ("exit_s",)}


def measure(session: Session, installed: Peers) -> Iterator[Sample]:
    """A sample for each run of the session, up to the first that does not finish."""
    system, case = session.system.value, session.case.value
    if session.case is Case.SIGTERM_FAULTY:
        for run in range(session.first_run, session.first_run + session.runs):
            took_s = exit_of_a_faulty_member(installed, session.limit_s)
            yield Sample(system, case, session.size, run, {"exit_s": took_s})
        return
    with (
        tempfile.TemporaryDirectory(prefix="bench-recovery-") as folder,
        network.nodes(systems.nodes_of(session)) as nodes,
    ):
        result = Reports(Path(folder) / "reports", NODES)
        with systems.start(session, result, installed, nodes) as training:
            training.await_start()
            for run in range(session.first_run, session.first_run + session.runs):
                training.ready()
                time.sleep(SETTLE_S)
                try:
                    yield Sample(system, case, NODES, run, _broken(session, run, training))
                except Unfinished as error:
                    yield Sample(system, case, NODES, run, {}, str(error), METRICS[session.case], error.after_s)
                    return


def _broken(session: Session, run: int, training: Training) -> dict[str, float]:
    match session.case:
        case Case.SPARE_EXIT:
            return {"exit_s": training.spare_exit(session.limit_s)}
        case Case.NODE | Case.NODE_STORE_APART:
            at = training.power_off_node()
        case Case.COORDINATOR:
            at = training.power_off_coordinator()
        case _:
            at = training.kill_worker(training.rank_to_kill(run))
    reduced = training.reports.last_of_all("all_reduce", at, session.limit_s, training.alive)
    stepped = training.reports.last_of_all("step", at, session.limit_s, training.alive)
    return {"first_all_reduce_s": reduced - at, "first_step_s": stepped - at}


def run(sessions: Sequence[Session], journal: Journal, installed: Peers) -> None:
    left_s = sum(session.expected_s for session in sessions)
    print(f"{len(sessions)} sessions, about {left_s / 60:.0f} minutes", flush=True)
    for number, session in enumerate(sessions, 1):
        left_s -= session.expected_s
        for sample in measure(session, installed):
            journal.add([sample])
            result = sample.unfinished or ", ".join(f"{name} {value:.3f}" for name, value in sample.values.items())
            print(f"[{number}/{len(sessions)}] {sample.system} {sample.case} {sample.run + 1}: {result}", flush=True)
        if left_s:
            print(f"  about {max(1.0, left_s / 60):.0f} min left", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-recovery ARGS=…", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=listed(Case), default=(), help=some_of(Case))
    parser.add_argument("--systems", type=listed(System), default=(), help=some_of(System))
    parser.add_argument("--runs", type=int, help="of each; the default is 12, or 3 of a spare's exit and in process")
    add_arguments(parser)
    return parser.parse_args()


def main() -> int:
    requests = arguments()
    LOGS.mkdir(parents=True, exist_ok=True)
    journal = open_journal("recovery", requests, VERSIONS)
    sessions = missing(plan(requests.cases, requests.systems, requests.runs), journal)
    try:
        installed = ensure_peers(Progress())
        journal.begin()
        run(sessions, journal, installed)
    except (ChildFailed, ClusterError, KeyboardInterrupt) as error:
        print(f"{error or 'interrupted'}\nfinished sessions are kept: continue with --resume", file=sys.stderr)
        return 1
    finally:
        journal.close()
    show(journal, GOALS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
