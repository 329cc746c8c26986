"""The plan: sessions of one system at one size, in which the systems of a case take turns.

Rules: in each run, all systems take their turn (ours, aiohttp, NVRx, torch, ours, …), so that other load on the machine
affects all of them. The first and the next round are two cases of one session. A system that is known not to finish is
tried TRIES times.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

RUNS = 5
TRIES = 3
#: A system that has not finished by then counts as one that never will.
LIMIT_S = 220.0


class Case(StrEnum):
    FIRST_ROUND = "first-round"
    NEXT_ROUND = "next-round"
    FAILOVER = "failover"
    SILENT_NODE = "silent-node"
    REST = "rest"


class System(StrEnum):
    UNDERSTUDY = "understudy"
    AIOHTTP = "aiohttp"
    NVRX = "nvrx"
    TORCH_DYNAMIC = "torch-dynamic"


Outcome = tuple[Case, Mapping[str, float]]


@dataclass(frozen=True)
class Session:
    system: System
    size: int
    run: int
    cases: tuple[Case, ...]

    @property
    def expected_s(self) -> float:
        """The approximate duration on two cores, with the start of its processes."""
        if self.cases[0] in (Case.FIRST_ROUND, Case.NEXT_ROUND):
            if self.hopeless:
                return LIMIT_S + 10
            return _ROUNDS_S[self.system][0] + _ROUNDS_S[self.system][1] * self.size / 1000
        return {Case.FAILOVER: 20.0, Case.SILENT_NODE: 12.0}.get(self.cases[0], 40.0 + self.size / 500)

    @property
    def hopeless(self) -> bool:
        return self.system is System.TORCH_DYNAMIC and self.size >= 256


#: Seconds for each session, and for each 1,000 members.
_ROUNDS_S = {
    System.UNDERSTUDY: (3.0, 2.0),
    System.AIOHTTP: (3.0, 2.0),
    System.NVRX: (10.0, 6.0),
    System.TORCH_DYNAMIC: (10.0, 6.0),
}

#: The sizes of each case, for each system that has it. rest: 1 is a whole sidecar, other sizes are a coordinator's.
SIZES: dict[tuple[Case, ...], dict[System, tuple[int, ...]]] = {
    (Case.FIRST_ROUND, Case.NEXT_ROUND): {
        System.UNDERSTUDY: (64, 256, 1024, 4096, 10000),
        System.AIOHTTP: (1024, 10000),
        System.NVRX: (64, 256, 1024, 4096, 10000),
        System.TORCH_DYNAMIC: (64, 256, 1024),
    },
    (Case.FAILOVER,): {System.UNDERSTUDY: (64, 1024)},
    (Case.SILENT_NODE,): {System.UNDERSTUDY: (64,)},
    (Case.REST,): {System.UNDERSTUDY: (1, 10000)},
}
#: Runs that only wait: fewer of them are enough.
FEWER_RUNS = {Case.REST: 3}


@dataclass(frozen=True)
class Choice:
    """A part of the plan; empty: all of it."""

    cases: Collection[Case] = ()
    systems: Collection[System] = ()
    sizes: Collection[int] = ()
    runs: int | None = None


def plan(choice: Choice) -> list[Session]:
    sessions: list[Session] = []
    for together, systems in SIZES.items():
        cases = tuple(case for case in together if not choice.cases or case in choice.cases)
        if cases:
            chosen = choice.systems or systems
            sessions += _interleaved(cases, {x: systems[x] for x in systems if x in chosen}, choice)
    return sessions


def _interleaved(cases: tuple[Case, ...], systems: Mapping[System, Iterable[int]], choice: Choice) -> list[Session]:
    wanted = {system: set(choice.sizes or sizes) for system, sizes in systems.items()}
    runs = choice.runs or FEWER_RUNS.get(cases[0], RUNS)
    visits = [
        Session(system, size, run, _of(system, cases))
        for size in sorted(set().union(*wanted.values()))
        for run in range(runs)
        for system, sizes in wanted.items()
        if size in sizes
    ]
    return [turn for turn in visits if turn.cases and (turn.run < TRIES or not turn.hopeless)]


def _of(system: System, cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """torch's handler cannot form a next round by itself: its agents leave, and start a first one."""
    return tuple(x for x in cases if not (system is System.TORCH_DYNAMIC and x is Case.NEXT_ROUND))
