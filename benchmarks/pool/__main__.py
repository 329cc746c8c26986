"""`make bench-pool`: powers off nodes of the local cluster during a training, and measures the time until it continues.

benchmarks/results/pool.json   every sample, as soon as it is measured: --resume continues from there
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.arguments import listed, some_of
from benchmarks.child import CHECKOUT
from benchmarks.goals import UNDERSTUDY
from benchmarks.pool import verdicts
from benchmarks.pool.goals import GOALS, NODES, Case
from benchmarks.records import Sample
from benchmarks.report import add_arguments, open_journal, show
from tests.cluster import Cluster, ClusterError
from tests.e2e.acts import Act
from tests.e2e.pools import SharedPool
from tests.e2e.prepare import prepare
from tests.e2e.waiting import NotInTime
from tests.e2e.warm import NoVictim, PooledTraining, WarmPool, power_off_away_from

NAMESPACE = "understudy-bench"
RUNS = 5
FULL_S = 180.0
#: Tries of a run until the pods are placed so that there is a node to power off.
SESSIONS = 3
#: For a run that did not finish: acts.RECOVERY_LIMIT_S, all of which may have passed.
LIMIT_S = 90.0
METRICS = ("first_step_s", "after_detection_s")


@contextmanager
def session(cluster: Cluster, case: Case) -> Iterator[tuple[PooledTraining, SharedPool | None]]:
    """A running training, and the pool that it names. Both are deleted afterwards."""
    folder = CHECKOUT / "build" / "bench-pool"
    name = "" if case is Case.NO_SPARE else "shared"
    training = PooledTraining(cluster, Path(folder), NAMESPACE, name="bench", steps=1_000_000, pool=name)
    pool: SharedPool | None = None
    if case is Case.WARM:
        pool = WarmPool(cluster, NAMESPACE, training=training)
    elif case is Case.REPLACE:
        pool = SharedPool(cluster, NAMESPACE)
    try:
        training.delete()
        if pool is not None:
            pool.delete()
        training.apply()
        if pool is not None:
            pool.apply()
        yield training, pool
    finally:
        for node in cluster.nodes():
            cluster.restore(node)
        training.delete()
        if pool is not None:
            pool.delete()


def measure(cluster: Cluster, case: Case, runs: Sequence[int]) -> Iterator[Sample]:
    """Each run has its own training: one that has lost a node runs more crowded, and avoids that node."""
    for run in runs:
        try:
            act = power_off(cluster, case)
        except NotInTime as error:
            yield Sample(UNDERSTUDY, case, NODES, run, {}, str(error).splitlines()[0], METRICS, LIMIT_S)
            continue
        values = {"first_step_s": act.resumed_s, "after_detection_s": act.resumed_s - act.detected_s}
        yield Sample(UNDERSTUDY, case, NODES, run, values)


def power_off(cluster: Cluster, case: Case) -> Act:
    """Raises NotInTime, and NoVictim if the pods are badly placed in each try."""
    tries = 0
    while True:
        tries += 1
        try:
            with session(cluster, case) as (training, pool):
                if pool is not None:
                    pool.wait_until_full(FULL_S)
                return power_off_away_from(training, pool)
        except NoVictim:
            if tries == SESSIONS:
                raise


def measured(cluster: Cluster, case: Case, runs: Sequence[int]) -> Iterator[Sample]:
    return verdicts.measure(cluster, NAMESPACE, runs) if case is Case.VERDICT else measure(cluster, case, runs)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-pool ARGS=…", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=listed(Case), default=tuple(Case), help=some_of(Case))
    parser.add_argument("--runs", type=int, default=RUNS, help=f"of each; the default is {RUNS}")
    add_arguments(parser)
    return parser.parse_args()


def main() -> int:
    requests = arguments()
    journal = open_journal("pool", requests)
    try:
        cluster = prepare()
        journal.begin()
        cluster.kubectl("create", "namespace", NAMESPACE, check=False)
        for case in requests.cases:
            left = [run for run in range(requests.runs) if not journal.has(UNDERSTUDY, case, NODES, run)]
            for sample in measured(cluster, case, left) if left else ():
                journal.add([sample])
                result = ", ".join(f"{name} {value:.2f}" for name, value in sample.values.items())
                print(f"{case} {sample.run + 1}: {sample.unfinished or result}", flush=True)
    except (ClusterError, NotInTime, NoVictim, KeyboardInterrupt) as error:
        print(f"{error or 'interrupted'}\nfinished runs are kept: continue with --resume", file=sys.stderr)
        return 1
    finally:
        journal.close()
    show(journal, GOALS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
