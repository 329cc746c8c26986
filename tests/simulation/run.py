"""One simulated job under one seed: set it up, inject faults, check after every event, and check the end."""

import random
from dataclasses import dataclass, replace

from tests.simulation.cluster import Setup, SimulatedCluster, new_cluster
from tests.simulation.faults import (
    AT_THE_END,
    BAD_NODE,
    BAD_NODES_SHARE,
    DRAINED,
    DRAINS_SHARE,
    DRILL,
    DRILLS_SHARE,
    HOST_NETWORK_SHARE,
    LADDER_SHARE,
    LEADERLESS_SHARE,
    NO_STARTS_SHARE,
    START_TIMEOUT_S,
    STARTS_SHARE,
    UPDATES_SHARE,
    Fault,
    Faults,
    draw_beside,
    draw_faults,
    draw_ladder,
    draw_leaderless,
    draw_no_start,
    draw_setup,
    draw_starts,
    draw_updates,
)
from tests.simulation.goodput_invariants import GoodputInvariants
from tests.simulation.invariants import BOUNDED_S, EXIT_S, Invariants
from tests.simulation.training import Numbers
from tests.simulation.world import Rule, Violation
from understudy_protocol.enums import Proactive

SNAPSHOTS_SHARE = 0.5
DAMAGED_SHARE = 0.02
OPTIMIZERS_SHARE = 0.3


@dataclass(frozen=True)
class Case:
    seed: int
    setup: Setup
    faults: tuple[Fault, ...]


def draw_case(seed: int) -> Case:
    rng, ladder = random.Random(f"case-{seed}"), random.Random(f"ladder-{seed}")
    setup, faults = draw_setup(rng), draw_faults(rng)
    setup = replace(setup, max_per_pod=ladder.choice([None, 0, 1, 1, 2]))
    nodes = random.Random(f"nodes-{seed}")
    if ladder.random() < LADDER_SHARE:
        setup, faults = replace(setup, steps=max(60, setup.steps)), draw_ladder(ladder)
    updates = random.Random(f"updates-{seed}")
    if updates.random() < UPDATES_SHARE:
        setup = replace(setup, update_retries=updates.choice([0, 0, 1, 2]))
        faults = sorted([*faults, *draw_updates(updates)], key=lambda fault: (fault.at == AT_THE_END, fault.at))
    if nodes.random() < BAD_NODES_SHARE:
        setup = replace(setup, proactive=nodes.choice([Proactive.NEXT_CHECKPOINT, Proactive.NOW]))
        faults = draw_beside(nodes, faults, BAD_NODE)
    starts = random.Random(f"starts-{seed}")
    if starts.random() < STARTS_SHARE and setup.reports_steps:
        setup, faults = replace(setup, start_timeout_s=START_TIMEOUT_S), draw_starts(starts, faults)
    leaderless = random.Random(f"leaderless-{seed}")
    if leaderless.random() < LEADERLESS_SHARE:
        actives, spares = leaderless.randint(2, 3), leaderless.randint(1, 2)
        setup = replace(setup, actives=actives, spares=spares, steps=200)
        faults = draw_leaderless(leaderless)
    no_starts = random.Random(f"no-starts-{seed}")
    if no_starts.random() < NO_STARTS_SHARE:
        faults = draw_no_start(no_starts, faults)
    drains = random.Random(f"drains-{seed}")
    if drains.random() < DRAINS_SHARE:
        faults = draw_beside(drains, faults, DRAINED)
    drills = random.Random(f"drills-{seed}")
    if drills.random() < DRILLS_SHARE:
        faults = draw_beside(drills, faults, DRILL)
    hosts = random.Random(f"hosts-{seed}")
    setup = replace(setup, host_network=hosts.random() < HOST_NETWORK_SHARE)
    snapshots = random.Random(f"snapshots-{seed}")
    setup = replace(setup, snapshots=snapshots.random() < SNAPSHOTS_SHARE, damaged=DAMAGED_SHARE)
    numbers = random.Random(f"numbers-{seed}")
    if numbers.random() < OPTIMIZERS_SHARE:
        setup = replace(setup, numbers=numbers.choice([Numbers.ROUND, Numbers.OPTIMIZER]))
    if setup.snapshots and setup.actives > 1:
        setup = replace(setup, copies=min(setup.actives - 1, snapshots.choice([0, 1, 1, 2])))
    return Case(seed, setup, tuple(faults))


def run_case(case: Case) -> SimulatedCluster:
    """Raises Violation, with all facts that explain it."""
    cluster = new_cluster(case.seed, case.setup)
    try:
        _run(cluster, case)
    except Exception as error:
        rule = error.rule if isinstance(error, Violation) else Rule.NO_ERROR
        raise Violation(rule, report(case, cluster, error)) from error
    return cluster


def _run(cluster: SimulatedCluster, case: Case) -> None:
    world, invariants, goodput = cluster.world, Invariants(cluster), GoodputInvariants(cluster, case.faults)
    world.check = invariants.check
    faults = Faults(cluster, list(case.faults))
    latest = max((fault.at + fault.waited_for_s for fault in case.faults), default=0.0)
    while not cluster.closed():
        world.run(world.now + 5.0, cluster.closed)
        goodput.check()
        invariants.workers_of_older_rounds_end()
        invariants.elections.a_majority_elects(world.now)
        invariants.a_fault_is_followed_by_a_step(max(faults.over_at, latest + 1_000_000.0))
    closed_at = world.now
    while world.now < (end := max(closed_at, faults.over_at, *(pod.reported_at for pod in cluster.pods)) + EXIT_S):
        world.run(end)  # a fault may come after the close
    goodput.check()
    invariants.all_hear_of_the_close(max(closed_at, faults.over_at))
    invariants.the_end_is_right()
    invariants.every_launcher_that_got_the_close_exits_with_it()


def report(case: Case, cluster: SimulatedCluster, error: Exception) -> str:
    lines = [f"{type(error).__name__}: {error}", f"replay: pytest tests/simulation --seed {case.seed}", str(case.setup)]
    lines += [f"  {fault}" for fault in case.faults]
    return "\n".join([*lines, *cluster.world.trace])


__all__ = ["BOUNDED_S", "Case", "draw_case", "run_case"]
