"""Sessions of the peers: the process that hosts the store, and the other participants in a few niced processes.

All participants are connected to the store before the clock starts: the time of a round is from their release to the
last one's rank. `connect_s` is the time before that, with the start of the threads and torch's own name look-ups.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

from benchmarks.child import Child, ChildFailed
from benchmarks.install import Peers
from benchmarks.machine import Usage
from benchmarks.rendezvous.plan import Case, Outcome

NICE = 5
START_S = 120.0
MANY, FEW_PROCESSES, MANY_PROCESSES = 2048, 4, 8
FIRST, NEXT = 0, 1  # rounds


def nvrx(peers: Peers, size: int, limit_s: float) -> Iterator[Outcome]:
    """The first round, and the one that its store's host opens after a fault, without the detection of a loss."""
    with ExitStack() as stack:
        crowds, connect_s = _standing(stack, "nvrx", peers, size)
        yield Case.FIRST_ROUND, {**_round(crowds, FIRST, size, limit_s), "connect_s": connect_s}
        yield Case.NEXT_ROUND, _round(crowds, NEXT, size, limit_s)


def torch_dynamic(peers: Peers, size: int, limit_s: float) -> Iterator[Outcome]:
    """Only the first round: its handler forms another one only after its agents have left this one."""
    with ExitStack() as stack:
        crowds, connect_s = _standing(stack, "torch-dynamic", peers, size)
        yield Case.FIRST_ROUND, {**_round(crowds, FIRST, size, limit_s), "connect_s": connect_s}


def _standing(stack: ExitStack, system: str, peers: Peers, size: int) -> tuple[list[Child], float]:
    """Processes whose participants wait for their release, the store's first; and how long they took to connect."""
    others = min(size - 1, FEW_PROCESSES if size < MANY else MANY_PROCESSES)
    crowds = [
        stack.enter_context(
            Child(
                f"{system}-{number}",
                "benchmarks.rendezvous.participants",
                system,
                python=peers.python,
                env=peers.env,
                nice=NICE if number else 0,
            )
        )
        for number in range(1 + others)
    ]
    for crowd in crowds:
        crowd.await_start(START_S)
    port = crowds[0].prepare("host", START_S)["port"]
    start = time.monotonic()
    for number, crowd in enumerate(crowds):
        indices = list(range(number, size, others)) if number else [0]
        crowd.send("stand", port=port, indices=indices, of=size)
    for crowd in crowds:
        crowd.answer(START_S)
    return crowds, time.monotonic() - start


def _round(crowds: list[Child], number: int, size: int, limit_s: float) -> dict[str, float]:
    before = Usage.of(crowds[0].pid).cpu_s
    start = time.monotonic()
    for crowd in crowds:
        crowd.send("take_part", number=number)
    answers = [crowd.answer(start + limit_s - time.monotonic()) for crowd in crowds]
    ranks = sorted(rank for answer in answers for rank in answer["ranks"])
    if ranks != list(range(size)):
        raise ChildFailed(f"the ranks are not 0 to {size - 1}: {ranks[:20]} …")
    return {
        "seconds": max(answer["at"] for answer in answers) - start,
        "coordinator_cpu_s": Usage.of(crowds[0].pid).cpu_s - before,
    }
