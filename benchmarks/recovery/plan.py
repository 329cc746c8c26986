"""The plan: faults, their number, and their order. Pure.

Rules: a session is one start of one system, with up to A_SESSION faults of the same kind; it ends with the first run
that does not finish. So a system that never recovers is tried in three sessions. The systems of a case take turns,
session by session.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from benchmarks.journal import Journal

NODES = 4
RUNS = 12
A_SESSION = 4
WORKERS = 8
LIMIT_S = 60.0
#: Some systems detect the loss of a node by default timeouts of minutes, and then recover.
POWER_OFF_LIMIT_S = 180.0
#: For the cases with a grace: `recovery.workerGracePeriod`, and how long a worker takes to save in one of them.
GRACE_S, SAVE_S = 5.0, 1.0


class Case(StrEnum):
    WORKER = "worker"
    WORKER_GRACE = "worker-grace"
    WORKER_GRACE_SAVE = "worker-grace-save"
    WORKER_STORE_APART = "worker-store-apart"
    NODE = "node-power-off"
    NODE_STORE_APART = "node-power-off-store-apart"
    COORDINATOR = "coordinator-power-off"
    SPARE_EXIT = "spare-exit"
    SIGTERM_FAULTY = "sigterm-faulty"


class System(StrEnum):
    UNDERSTUDY = "understudy"
    OUR_TORCHRUN = "understudy-torchrun"
    NO_ZYGOTE = "understudy-no-zygote"
    TORCHRUN = "torchrun"
    TORCHRUN_OPTOUT = "torchrun-optout"
    TORCHRUN_TUNED = "torchrun-tuned"
    NVRX = "nvrx"
    NVRX_HEARTBEATS = "nvrx-heartbeats"
    NVRX_INPROCESS = "nvrx-inprocess"


STORE_APART = (Case.WORKER_STORE_APART, Case.NODE_STORE_APART)
_POWER_OFF = (Case.NODE, Case.NODE_STORE_APART, Case.COORDINATOR)
_OF_WORKERS = (Case.WORKER, Case.WORKER_GRACE, Case.WORKER_GRACE_SAVE, Case.WORKER_STORE_APART)
_ALL = tuple(System)
_TORCHRUN = (System.TORCHRUN, System.TORCHRUN_OPTOUT, System.TORCHRUN_TUNED)
#: torchrun with its defaults loses its spare before the end of a training; in-process restart has no launcher.
SYSTEMS: dict[Case, tuple[System, ...]] = {
    Case.WORKER: _ALL,
    Case.WORKER_GRACE: (System.UNDERSTUDY,),
    Case.WORKER_GRACE_SAVE: (System.UNDERSTUDY,),
    Case.WORKER_STORE_APART: (System.TORCHRUN, System.NVRX_INPROCESS),
    Case.NODE: _ALL,
    Case.NODE_STORE_APART: (*_TORCHRUN, System.NVRX, System.NVRX_HEARTBEATS, System.NVRX_INPROCESS),
    Case.COORDINATOR: _ALL,
    Case.SPARE_EXIT: (System.UNDERSTUDY, System.TORCHRUN_OPTOUT, System.NVRX),
    Case.SIGTERM_FAULTY: (System.UNDERSTUDY,),
}
#: For cases that differ, or whose longest run counts: -> (runs, runs a session).
_OTHER_RUNS = {Case.SPARE_EXIT: (3, 1), Case.SIGTERM_FAULTY: (30, 30)}
#: It starts no process in place of a lost one, so a session has one fault.
_INPROCESS_RUNS = (3, 1)
#: The approximate duration of a round on two cores, with the wait before it. If unknown, LIMIT_S or more.
_ROUND_S = {
    (System.UNDERSTUDY, Case.WORKER): 2.0,
    (System.UNDERSTUDY, Case.WORKER_GRACE): 2.0,
    (System.UNDERSTUDY, Case.WORKER_GRACE_SAVE): 3.0,
    (System.UNDERSTUDY, Case.NODE): 15.0,
    (System.UNDERSTUDY, Case.COORDINATOR): 20.0,
    (System.UNDERSTUDY, Case.SPARE_EXIT): 5.0,
    (System.UNDERSTUDY, Case.SIGTERM_FAULTY): 5.0,
    (System.OUR_TORCHRUN, Case.WORKER): 2.0,
    (System.OUR_TORCHRUN, Case.NODE): 15.0,
    (System.OUR_TORCHRUN, Case.COORDINATOR): 20.0,
    (System.NO_ZYGOTE, Case.WORKER): 8.0,
    (System.NO_ZYGOTE, Case.NODE): 20.0,
    (System.NO_ZYGOTE, Case.COORDINATOR): 25.0,
    (System.TORCHRUN_OPTOUT, Case.WORKER): 9.0,
    (System.TORCHRUN_OPTOUT, Case.SPARE_EXIT): 5.0,
    (System.TORCHRUN_TUNED, Case.WORKER): 9.0,
    (System.NVRX, Case.WORKER): 8.0,
    (System.NVRX_HEARTBEATS, Case.WORKER): 8.0,
    (System.NVRX, Case.SPARE_EXIT): 5.0,
}
_START_S = 20.0


@dataclass(frozen=True)
class Session:
    system: System
    case: Case
    first_run: int
    runs: int

    @property
    def expected_s(self) -> float:
        each = _ROUND_S.get((self.system, self.case))
        return _START_S + (self.limit_s if each is None else self.runs * each)

    @property
    def limit_s(self) -> float:
        return POWER_OFF_LIMIT_S if self.case in _POWER_OFF else LIMIT_S

    @property
    def size(self) -> int:
        """Nodes; for a case on one node, its workers."""
        return WORKERS if self.case is Case.SIGTERM_FAULTY else NODES

    @property
    def spares(self) -> int:
        """In-process restart needs a spare also for a lost worker."""
        return 0 if self.case in _OF_WORKERS and self.system is not System.NVRX_INPROCESS else 1


def plan(cases: Collection[Case] = (), systems: Collection[System] = (), runs: int | None = None) -> list[Session]:
    """Empty: all of them. runs: replaces each case's own number."""
    sessions = []
    for case in cases or Case:
        visits = [_sessions(system, case, runs) for system in SYSTEMS[case] if not systems or system in systems]
        for turn in range(max(map(len, visits), default=0)):
            sessions += [of_system[turn] for of_system in visits if turn < len(of_system)]
    return sessions


def _sessions(system: System, case: Case, runs: int | None) -> list[Session]:
    own, a_session = _OTHER_RUNS.get(case, (RUNS, A_SESSION))
    if system is System.NVRX_INPROCESS:
        own, a_session = _INPROCESS_RUNS
    wanted = runs or own
    return [Session(system, case, first, min(a_session, wanted - first)) for first in range(0, wanted, a_session)]


def missing(sessions: Collection[Session], journal: Journal) -> list[Session]:
    """The sessions, or parts of them, without samples. A session with an unfinished run is over."""
    left = []
    for session in sessions:
        same = [x for x in journal.samples if (x.system, x.case) == (session.system.value, session.case.value)]
        runs = range(session.first_run, session.first_run + session.runs)
        if any(x.unfinished and x.run in runs for x in same):
            continue
        open_runs = [run for run in runs if all(x.run != run for x in same)]
        if open_runs:
            left.append(replace(session, first_run=open_runs[0], runs=len(open_runs)))
    return left
