"""One run with one seed: set up the world, apply the faults, let it recover, check the invariants."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from unittest import mock

from tests.simulation_operator.client import ClientFaults
from tests.simulation_operator.clockwork import run_simulated
from tests.simulation_operator.faults import (
    Fault,
    Setup,
    draw_changes,
    draw_faults,
    draw_malformed,
    draw_pool_faults,
    draw_pool_setup,
    draw_setup,
    schedule,
)
from tests.simulation_operator.invariants import MAX_RECOVERY_S, QUIET_S, RECOVERY_S, RESYNC_S, find_violations
from tests.simulation_operator.rules import Rule, Violation
from tests.simulation_operator.world import World
from understudy_operator.apply import adoption_link
from understudy_operator.controllers import job_worker as worker
from understudy_operator.controllers import pool_worker
from understudy_operator.observe import resync

FAULTS_OF_CLIENTS = (
    "slow",
    "throttled",
    "failed",
    "unanswered",
    "claim_unanswered",
    "list_unanswered",
    "event_lost",
    "event_twice",
    "event_late",
)

#: Requests of one process in a whole run. 80 runs without a mutation have had at most 543.
MOST_REQUESTS = 2000


@dataclass(frozen=True)
class Case:
    seed: int
    setup: Setup
    faults: tuple[Fault, ...]


def draw_case(seed: int) -> Case:
    rng = random.Random(f"operator-{seed}")
    beside = random.Random(f"aside-{seed}")
    setup = replace(draw_setup(rng), aside=beside.random() < 0.5, list_unanswered=beside.choice([0.0, 0.3]))
    faults = [*draw_faults(rng), *draw_malformed(random.Random(f"malformed-{seed}"))]
    faults += draw_changes(random.Random(f"changes-{seed}"))
    return Case(seed, setup, tuple(sorted(faults, key=lambda fault: fault.at)))


def draw_pool_case(seed: int) -> Case:
    rng = random.Random(f"pool-{seed}")
    warm = random.Random(f"warm-{seed}").random() < 0.5
    claim_unanswered = random.Random(f"claim-{seed}").choice([0.0, 0.3, 0.6])
    setup = replace(draw_pool_setup(rng), warm=warm, claim_unanswered=claim_unanswered)
    return Case(seed, setup, tuple(draw_pool_faults(rng)))


def run_case(case: Case) -> list[str]:
    """The trace of the run. Raises Violation with all information that explains it."""
    trace: list[str] = []
    worlds: list[World] = []
    random.seed(case.seed)  # for the pauses' lengths
    logging.getLogger("understudy_operator").setLevel(logging.CRITICAL)

    try:
        with played(worlds):
            run_simulated(_main(case, worlds))
    except Exception as error:
        rules = error.rules if isinstance(error, Violation) else frozenset({Rule.NO_ERROR})
        raise Violation(rules, _report(case, worlds, error)) from error
    finally:
        logging.getLogger("understudy_operator").setLevel(logging.NOTSET)
        trace += worlds[0].trace if worlds else []
    return trace


@contextmanager
def played(worlds: list[World]) -> Iterator[None]:
    """Real replicas of the operator in a simulated world: simulated lines to sidecars, random names and time."""

    def link(*given: object) -> object:
        return worlds[0].link(*given)  # type: ignore[arg-type]

    numbers = itertools.count()
    tokens = SimpleNamespace(token_hex=lambda _: f"token-{next(numbers)}")
    with (
        mock.patch.object(worker, "CoordinatorLink", link),
        mock.patch.object(adoption_link, "adopt", lambda *given: worlds[0].adopt(*given)),
        mock.patch.object(worker, "secrets", tokens),
        mock.patch.object(pool_worker, "secrets", tokens),
        mock.patch.object(resync, "RESYNC_S", RESYNC_S),
    ):
        yield


async def _main(case: Case, worlds: list[World]) -> None:
    setup = case.setup
    world = World(random.Random(f"world-{case.seed}"), setup.nodes, setup.replicas, has_lease=setup.lease)
    worlds.append(world)
    world.cluster.room, world.warm, world.aside = setup.room, setup.warm, setup.aside
    for name in FAULTS_OF_CLIENTS:
        setattr(world.client_faults, name, getattr(setup, name))
    for number, (actives, spares) in enumerate(setup.jobs):
        world.apply(f"job-{number}", actives, spares, "shared" if setup.pool else "")
    if setup.pool:
        world.apply_pool("shared", setup.pool)
    is_done = schedule(world, case.faults)
    await _wait(world, max(is_done, 20.0))
    for name in FAULTS_OF_CLIENTS:
        setattr(world.client_faults, name, getattr(ClientFaults(), name))
    world.kill_at_claim = 0
    world.log("the faults are over")
    await _wait(world, RECOVERY_S + QUIET_S)
    await _wait_until_stable(world, MAX_RECOVERY_S - RECOVERY_S)
    wrong = list(find_violations(world, len(case.faults) + (4 if any(asdict(world.client_faults).values()) else 2)))
    if wrong:
        raise Violation(frozenset(x.rule for x in wrong), "\n".join(x.text for x in wrong))


async def _wait(world: World, for_s: float) -> None:
    """Check each second for an operator that repeats the same request endlessly."""
    until = world.server.now() + for_s
    while (left_s := until - world.server.now()) > 0:
        await asyncio.sleep(min(left_s, 1.0))
        for process in world.processes:
            if process.requests > MOST_REQUESTS:
                endless = f"{process.name} sends requests without end: {process.requests}"
                raise Violation(frozenset({Rule.REQUESTS_ARE_BOUNDED}), endless)


async def _wait_until_stable(world: World, limit_s: float) -> None:
    """A call that was sent during the faults may time out, and the steps after it may wait, too."""
    until = world.server.now() + limit_s
    while world.server.now() < until and world.loop.time() - world.last_write_at < QUIET_S:
        await _wait(world, 1.0)


def _report(case: Case, worlds: list[World], error: Exception) -> str:
    lines = [
        f"{type(error).__name__}: {error}",
        f"replay: pytest tests/simulation_operator --operator-seed {case.seed}",
    ]
    lines += [str(case.setup), *(f"  {fault}" for fault in case.faults)]
    return "\n".join([*lines, *(worlds[0].trace if worlds else ())])
