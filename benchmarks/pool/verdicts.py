"""The time from a node's change to the verdict.json that the sidecar of a pod there has written, and back.

The condition of a fatal Xid is written on the node of an active member that is not the coordinator, and then removed.
The file is read in the container's own file system. Both times count from the start of the kubectl that writes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.goals import UNDERSTUDY
from benchmarks.pool.goals import NODES, Case
from benchmarks.records import Sample
from tests.cluster import Cluster
from tests.e2e.node_conditions import NO_XID, XID, condition
from tests.e2e.plain import PlainJob
from tests.e2e.training import Raw
from tests.e2e.waiting import NotInTime

METRICS = ("written_s", "withdrawn_s")
FILE = "understudy/verdict.json"
POLL_S = 0.005
LIMIT_S = 20.0


def measure(cluster: Cluster, namespace: str, runs: Sequence[int]) -> Iterator[Sample]:
    job = PlainJob(cluster, namespace, "verdicts", spares=0)
    job.delete()
    job.apply()
    node = ""
    try:
        job.wait_until_whole()
        coordinator = job.status()["coordinator"]["podUID"]
        victim = next(pod for pod in job.pods() if pod["metadata"]["uid"] != coordinator)
        node, pid = victim["spec"]["nodeName"], cluster.container_pids(namespace, victim["metadata"]["name"])["trainer"]
        file = Path(f"/proc/{pid}/root") / FILE
        for run in runs:
            try:
                values = {
                    "written_s": _took(cluster, node, XID, file, faulty=True),
                    "withdrawn_s": _took(cluster, node, NO_XID, file, faulty=False),
                }
            except NotInTime as error:
                yield Sample(UNDERSTUDY, Case.VERDICT, NODES, run, {}, str(error), METRICS, LIMIT_S)
                return
            yield Sample(UNDERSTUDY, Case.VERDICT, NODES, run, values)
    finally:
        if node:
            condition(cluster, node, NO_XID)
        job.delete()


def _took(cluster: Cluster, node: str, result: Raw, file: Path, *, faulty: bool) -> float:
    start = time.monotonic()
    condition(cluster, node, result)
    while (waited := time.monotonic() - start) < LIMIT_S:
        if file.exists() and ('"Faulty"' in file.read_text()) == faulty:
            return waited
        time.sleep(POLL_S)
    raise NotInTime(f"{FILE} did not become {'Faulty' if faulty else 'well'} within {LIMIT_S:g} s")
