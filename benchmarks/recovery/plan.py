"""What is to be broken, how often, and in which order. Pure.

Rules: a session is one start of one system, in which the same fault is done A_SESSION times. Sessions of a case are
interleaved, system by system. What is known to come to no end is tried once.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

NODES = 4
RUNS = 12
A_SESSION = 4
#: Of a case that is another, or of which the longest is what counts: -> (runs, runs a session).
_OTHER_RUNS = {"spare-exit": (3, 1), "sigterm-faulty": (30, 30)}
WORKERS = 8
LIMIT_S = 60.0


class Case(StrEnum):
    WORKER = "worker"
    NODE = "node"
    COORDINATOR_NODE = "coordinator-node"
    SPARE_EXIT = "spare-exit"
    SIGTERM_FAULTY = "sigterm-faulty"


class System(StrEnum):
    UNDERSTUDY = "understudy"
    TORCHRUN = "torchrun"
    TORCHRUN_OPTOUT = "torchrun-optout"
    NVRX = "nvrx"


#: What no system of that kind survives, as has been measured before: one try shows that it is still so.
HOPELESS = {
    (System.TORCHRUN, Case.WORKER),
    (System.TORCHRUN, Case.NODE),
    (System.TORCHRUN, Case.COORDINATOR_NODE),
    (System.TORCHRUN_OPTOUT, Case.COORDINATOR_NODE),
    (System.NVRX, Case.COORDINATOR_NODE),
}
#: torchrun as it comes loses its spare before the end; nobody else knows of faulty nodes.
_NOT_MEANT = {(System.TORCHRUN, Case.SPARE_EXIT)} | {
    (system, Case.SIGTERM_FAULTY) for system in System if system is not System.UNDERSTUDY
}
#: About how long a round takes on two cores, with what is waited for before it.
_ROUND_S = {
    (System.UNDERSTUDY, Case.WORKER): 2.0,
    (System.UNDERSTUDY, Case.NODE): 8.0,
    (System.UNDERSTUDY, Case.COORDINATOR_NODE): 9.0,
    (System.TORCHRUN_OPTOUT, Case.WORKER): 9.0,
    (System.TORCHRUN_OPTOUT, Case.NODE): 28.0,
    (System.NVRX, Case.WORKER): 8.0,
    (System.NVRX, Case.NODE): 20.0,
}
_START_S = 15.0


@dataclass(frozen=True)
class Session:
    system: System
    case: Case
    first_run: int
    runs: int

    @property
    def expected_s(self) -> float:
        each = LIMIT_S if (self.system, self.case) in HOPELESS else _ROUND_S.get((self.system, self.case), 5.0)
        return _START_S + self.runs * each

    @property
    def size(self) -> int:
        """Nodes; of one node, its workers."""
        return WORKERS if self.case is Case.SIGTERM_FAULTY else NODES

    @property
    def spares(self) -> int:
        return 0 if self.case is Case.WORKER else 1


def plan(cases: Collection[Case] = (), systems: Collection[System] = (), runs: int | None = None) -> list[Session]:
    """Empty: all of them."""
    sessions = []
    for case in Case:
        if cases and case not in cases:
            continue
        wanted, a_session = _OTHER_RUNS.get(case.value, (RUNS, A_SESSION))
        wanted = runs or wanted
        for first in range(0, wanted, a_session):
            for system in System:
                if (systems and system not in systems) or (system, case) in _NOT_MEANT:
                    continue
                if (system, case) in HOPELESS:
                    sessions += [Session(system, case, 0, 1)] if first == 0 else []
                else:
                    sessions.append(Session(system, case, first, min(a_session, wanted - first)))
    return sessions
