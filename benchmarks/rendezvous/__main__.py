"""`make bench-rendezvous`: runs the plan, stores every sample, and prints the records and the goals.

benchmarks/results/rendezvous.json   every sample, as soon as it is measured: --resume continues from there
build/bench/logs/                   the logs of the last session's processes
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks.arguments import listed, sizes, some_of
from benchmarks.child import ChildFailed, Unfinished
from benchmarks.install import VERSIONS, Peers, ensure_peers
from benchmarks.journal import Journal
from benchmarks.machine import room_for_packets
from benchmarks.records import Sample
from benchmarks.rendezvous import peers, understudy
from benchmarks.rendezvous.goals import GOALS
from benchmarks.rendezvous.plan import LIMIT_S, TRIES, Case, Choice, Outcome, Session, System, plan
from benchmarks.report import add_arguments, open_journal, show
from tests.cluster.commands import Progress
from tests.cluster.failures import ClusterError

T = TypeVar("T")
#: A run that has used so much of the limit before it gave up counts as hopeless.
HOPELESS_S = 0.9 * LIMIT_S

UNDERSTUDY_CASES = {
    Case.FIRST_ROUND: understudy.rounds,
    Case.NEXT_ROUND: understudy.rounds,
    Case.FAILOVER: understudy.failover,
    Case.SILENT_NODE: understudy.silent_node,
    Case.REST: understudy.wait_idle,
}
PEER_SYSTEMS = {System.NVRX: peers.nvrx, System.TORCH_DYNAMIC: peers.torch_dynamic}


def outcomes(session: Session, installed: Peers | None, profile: Path | None) -> Iterator[Outcome]:
    if session.system is System.AIOHTTP:
        return understudy.rounds(session.size, LIMIT_S, None, bare=True)
    if session.system is System.UNDERSTUDY:
        return UNDERSTUDY_CASES[session.cases[0]](session.size, LIMIT_S, profile)
    assert installed is not None
    return PEER_SYSTEMS[session.system](installed, session.size, LIMIT_S)


def measure(session: Session, installed: Peers | None, profile: Path | None) -> list[Sample]:
    """One sample for each case of the session. A case that did not finish is the last."""
    system, size, run = session.system.value, session.size, session.run
    samples: list[Sample] = []
    wanted = list(session.cases)
    try:
        for case, values in outcomes(session, installed, profile):
            if case in wanted:
                wanted.remove(case)
                samples.append(Sample(system, case.value, size, run, dict(values)))
    except Unfinished as error:
        samples.append(Sample(system, wanted[0].value, size, run, unfinished=str(error), after_s=error.after_s))
    return samples


def run(sessions: Sequence[Session], journal: Journal, installed: Peers | None, profile: Path | None) -> None:
    left_s = sum(session.expected_s for session in sessions)
    print(f"{len(sessions)} sessions, about {left_s / 60:.0f} minutes", flush=True)
    for number, session in enumerate(sessions, 1):
        left_s -= session.expected_s
        hopeless = journal.hopeless(session.system.value, session.cases, session.size, HOPELESS_S)
        if len(hopeless) >= TRIES:
            lines = f"not tried again: {hopeless[0].unfinished}"
        else:
            start = time.monotonic()
            samples = measure(session, installed, profile)
            journal.add(samples)
            lines = f"{'; '.join(map(_describe_run, samples))} ({time.monotonic() - start:.0f} s)"
        left = f"about {max(1.0, left_s / 60):.0f} min left" if left_s else "done"
        print(f"[{number}/{len(sessions)}] {session.system.value} {session.size:,}: {lines}; {left}", flush=True)


def _describe_run(sample: Sample) -> str:
    if sample.unfinished:
        return f"{sample.case}: {sample.unfinished}"
    return f"{sample.case} " + ", ".join(f"{metric} {value:.3f}" for metric, value in sample.values.items())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-rendezvous ARGS=…", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=listed(Case), default=(), help=some_of(Case))
    parser.add_argument("--systems", type=listed(System), default=(), help=some_of(System))
    parser.add_argument("--sizes", type=sizes, default=(), help="members, in place of each case's own sizes")
    parser.add_argument("--runs", type=int, help="of each; the default is 5, and 3 at rest")
    add_arguments(parser)
    parser.add_argument("--profile", type=Path, help="a file for a profile of our coordinator; it costs time")
    return parser.parse_args()


def main() -> int:
    requests = arguments()
    sessions = plan(Choice(requests.cases, requests.systems, requests.sizes, requests.runs))
    journal = open_journal("rendezvous", requests, VERSIONS)
    sessions = [
        x for x in sessions if not all(journal.has(x.system.value, case.value, x.size, x.run) for case in x.cases)
    ]
    try:
        installed = ensure_peers(Progress()) if any(x.system in PEER_SYSTEMS for x in sessions) else None
        journal.begin()
        with room_for_packets():
            run(sessions, journal, installed, requests.profile)
    except (ChildFailed, ClusterError, KeyboardInterrupt) as error:
        print(f"{error or 'interrupted'}\nfinished runs are kept: continue with --resume", file=sys.stderr)
        return 1
    finally:
        journal.close()
    show(journal, GOALS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
