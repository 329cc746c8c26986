"""The plan: sessions of one system at one size, in which the systems of a case take turns. Pure.

Rules: a session is one start of one system, in a namespace of its own, with several cases in the life of its jobs:
creation, observation, deletion. A restart of all jobs is a separate session, and so is JobSet's restart in place, whose
spec differs. The size of a case is its number of pods: one job, or many jobs of one pod each. In the case
`recover-beside` a job of SMALL_JOB pods recovers while a job of that size is created.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

RUNS = 5
#: A result that takes longer is reported as unfinished.
LIMIT_S = 900.0
IDLE_S = 60.0
SMALL_JOB = 10
NODES = 200


class Case(StrEnum):
    CREATE = "create"
    STATUS = "status"
    IN_PLACE = "in-place"
    BESIDE = "recover-beside"
    POD = "pod"
    REST = "rest"
    START = "start"
    DELETE = "delete"
    RECREATE = "recreate"
    JOBS_CREATE = "create-jobs"
    JOBS_RECREATE = "recreate-jobs"
    SHIPPED_CREATE = "create-shipped"
    SHIPPED_RECREATE = "recreate-shipped"
    MANY_CREATE = "create-many"
    MANY_DELETE = "delete-many"
    MANY_RECREATE = "recreate-many"


class System(StrEnum):
    UNDERSTUDY = "understudy"
    JOBSET = "jobset"


MANY = {Case.MANY_CREATE, Case.MANY_DELETE, Case.MANY_RECREATE}
RESTARTS = {Case.RECREATE, Case.JOBS_RECREATE, Case.SHIPPED_RECREATE, Case.MANY_RECREATE}
#: These run on a cluster whose controller manager has its own default limits.
SHIPPED = {Case.SHIPPED_CREATE, Case.SHIPPED_RECREATE}
#: Both systems do the same in these cases: the Job controller creates the pods.
WITHOUT_LAUNCHER = {Case.JOBS_CREATE, Case.JOBS_RECREATE, Case.MANY_RECREATE}

#: Cases that follow each other in one session -> the part that each system runs.
LIVES: dict[tuple[Case, ...], dict[System, tuple[Case, ...]]] = {
    (Case.CREATE, Case.STATUS, Case.IN_PLACE, Case.REST, Case.START, Case.DELETE): {
        System.UNDERSTUDY: (Case.CREATE, Case.STATUS, Case.IN_PLACE, Case.REST, Case.START, Case.DELETE),
        System.JOBSET: (Case.CREATE, Case.REST, Case.DELETE),
    },
    (Case.BESIDE,): {System.UNDERSTUDY: (Case.BESIDE,)},
    (Case.POD,): dict.fromkeys(System, (Case.POD,)),
    (Case.RECREATE,): {System.UNDERSTUDY: (Case.RECREATE,), System.JOBSET: (Case.RECREATE,)},
    (Case.JOBS_CREATE,): dict.fromkeys(System, (Case.JOBS_CREATE,)),
    (Case.JOBS_RECREATE,): {System.UNDERSTUDY: (Case.JOBS_RECREATE,)},
    (Case.SHIPPED_CREATE,): dict.fromkeys(System, (Case.SHIPPED_CREATE,)),
    (Case.SHIPPED_RECREATE,): dict.fromkeys(System, (Case.SHIPPED_RECREATE,)),
    (Case.IN_PLACE,): {System.JOBSET: (Case.IN_PLACE,)},
    (Case.MANY_CREATE, Case.MANY_DELETE): dict.fromkeys(System, (Case.MANY_CREATE, Case.MANY_DELETE)),
    (Case.MANY_RECREATE,): dict.fromkeys(System, (Case.MANY_RECREATE,)),
}
SIZES = dict.fromkeys(Case, (100, 1000, 5000)) | dict.fromkeys(MANY, (2000,)) | dict.fromkeys((Case.REST,), (5000,))
SIZES[Case.START] = SIZES[Case.JOBS_CREATE] = SIZES[Case.BESIDE] = (5000,)
SIZES |= dict.fromkeys((*SHIPPED, Case.RECREATE, Case.JOBS_RECREATE), (1000,)) | {Case.POD: (1,)}


@dataclass(frozen=True)
class Session:
    system: System
    size: int
    run: int
    cases: tuple[Case, ...]

    @property
    def jobs(self) -> int:
        return self.size if self.cases[0] in MANY else 1

    @property
    def pods(self) -> int:
        """Pods of the jobs that are created first. The job that recovers beside a creation is small."""
        return SMALL_JOB if Case.BESIDE in self.cases else self.size

    @property
    def pods_of_a_job(self) -> int:
        return self.pods // self.jobs

    @property
    def creates(self) -> Case:
        """The case of the session's first creation."""
        if self.cases[0] in MANY:
            return Case.MANY_CREATE
        return self.cases[0] if self.cases[0] in (Case.JOBS_CREATE, Case.SHIPPED_CREATE) else Case.CREATE

    @property
    def restarts(self) -> bool:
        return self.cases[0] in RESTARTS

    @property
    def shipped(self) -> bool:
        return self.cases[0] in SHIPPED

    @property
    def launcher(self) -> bool:
        """Whether our operator creates the pods itself."""
        return self.system is System.UNDERSTUDY and self.cases[0] not in WITHOUT_LAUNCHER

    @property
    def in_place_alone(self) -> bool:
        """JobSet's restart in place: a strategy in its spec, behind a feature gate."""
        return self.system is System.JOBSET and self.cases == (Case.IN_PLACE,)

    @property
    def expected_s(self) -> float:
        """The approximate duration on two slow cores."""
        a_thousand = 110.0 if self.restarts else 60.0
        if self.jobs > 1:
            a_thousand *= 4.5
        if self.shipped and self.system is System.JOBSET:
            a_thousand += 100.0 if self.restarts else 20.0
        return 20.0 + a_thousand * self.size / 1000 + sum(_TAKES_S.get(case, 0.0) for case in self.cases)


_TAKES_S = {Case.REST: IDLE_S + 10.0, Case.STATUS: 8.0, Case.IN_PLACE: 8.0, Case.BESIDE: 15.0, Case.START: 15.0}


@dataclass(frozen=True)
class Choice:
    """A part of the plan; empty: all of it."""

    cases: Collection[Case] = ()
    systems: Collection[System] = ()
    sizes: Collection[int] = ()
    runs: int | None = None


def plan(choice: Choice) -> list[Session]:
    sessions: list[Session] = []
    for together, owners in LIVES.items():
        wanted = [case for case in together if not choice.cases or case in choice.cases]
        sizes = choice.sizes or sorted({size for case in wanted for size in SIZES[case]})
        for size in sizes:
            for run in range(choice.runs or RUNS):
                for system, cases in owners.items():
                    chosen = tuple(x for x in cases if x in wanted and (choice.sizes or size in SIZES[x]))
                    if chosen and (not choice.systems or system in choice.systems):
                        sessions.append(Session(system, size, run, chosen))
    return sessions
