"""make bench-nodes, with a few jobs, and the changes of nodes that enqueue jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from benchmarks.nodes import CASES, Cluster, Raw, change_nodes, idle_cluster, measure
from benchmarks.records import Sample, sum_up

JOBS, NODES, PODS, LIMIT_S = 3, 40, 10, 20.0


async def test_every_run_of_each_case_is_a_sample() -> None:
    samples: list[Sample] = []
    left = [(case, run) for case in CASES for run in (0, 1)]
    await measure(left, JOBS, NODES, seconds=0.2, keep=samples.append)
    records = [record for record in sum_up(samples) if record.metric == "cpu_percent"]
    assert [(record.case, record.unit, record.runs) for record in records] == [(case, "%", 2) for case in CASES]


@pytest.mark.parametrize("case", ["labels", "heartbeats"])
async def test_a_heartbeat_or_a_label_that_no_job_uses_enqueues_no_job(case: str) -> None:
    # given jobs that run and do not change
    cluster = Cluster(JOBS, NODES, PODS)
    async with idle_cluster(cluster, idle_s=0.5) as counted:
        before = counted.count
        # when every node changes twice
        await change_nodes(cluster, case, NODES, 2 * NODES, per_s=200.0)
        await read_message(cluster)
        # then no job is reconciled
        assert counted.count == before


def _moves_to_another_rack(raw: Raw) -> None:
    raw["metadata"]["labels"]["example.com/rack"] = "rack-99"


def _is_not_ready(raw: Raw) -> None:
    next(x for x in raw["status"]["conditions"] if x["type"] == "Ready")["status"] = "Unknown"


@pytest.mark.parametrize(("change", "jobs"), [(_moves_to_another_rack, JOBS), (_is_not_ready, 1)])
async def test_the_topology_key_of_the_spares_enqueues_all_jobs_and_a_node_that_is_not_ready_those_with_pods_on_it(
    change: Callable[[Raw], None], jobs: int
) -> None:
    cluster = Cluster(JOBS, NODES, PODS)
    async with idle_cluster(cluster, idle_s=0.5) as counted:
        before = counted.count
        cluster.change_node(7, change)
        async with asyncio.timeout(LIMIT_S):
            while counted.count < before + jobs:  # noqa: ASYNC110 (nothing tells of a reconcile)
                await asyncio.sleep(0.01)


async def test_a_node_that_is_not_ready_enqueues_no_running_job_without_a_pod_on_it() -> None:
    cluster = Cluster(JOBS, NODES, PODS)
    async with idle_cluster(cluster, idle_s=0.5) as counted:
        before = counted.count
        for node in range(JOBS * PODS, NODES):
            cluster.change_node(node, _is_not_ready)
        await read_message(cluster)
        assert counted.count == before


async def test_a_cause_that_is_no_node_enqueues_all_jobs() -> None:
    async with idle_cluster(Cluster(JOBS, NODES, PODS), idle_s=0.5) as counted:
        before = counted.count
        assert counted.operator is not None
        counted.operator._enqueue_all()
        async with asyncio.timeout(LIMIT_S):
            while counted.count < before + JOBS:  # noqa: ASYNC110 (nothing tells of a reconcile)
                await asyncio.sleep(0.01)


async def read_message(cluster: Cluster) -> None:
    """The watch has received all lines, and the reconciles that they enqueued have begun."""
    async with asyncio.timeout(LIMIT_S):
        while not cluster.received.empty():  # noqa: ASYNC110 (a queue tells nobody that it is empty)
            await asyncio.sleep(0.01)
    for _ in range(10):
        await asyncio.sleep(0)
