"""The memory of nodes in its ConfigMap, which the leader maintains."""

from typing import Any

import pytest

from tests.unit.operator.fake_api import FakeApi
from understudy_operator.controllers.node_memory import NodeMemory
from understudy_operator.observe.read_node import read_node
from understudy_operator.observe.store import Kind, Store
from understudy_operator.plan.faults.node_history import decode_memory
from understudy_operator.plan.times.rfc3339 import micro_time
from understudy_operator.runtime.clock import Clock

PLACE = ("system", "node-faults")
PATH = "/api/v1/namespaces/system/configmaps/node-faults"


class Replica:
    """An operator, over an API server and a store that it may share."""

    def __init__(self, api: FakeApi, place: tuple[str, str] | None = PLACE, *, is_shared: bool = False) -> None:
        self.store, self.enqueued = Store(), 0
        self.memory = NodeMemory(api, place, self.store, read_node, Clock(), self.enqueue, is_shared=is_shared)
        self.store.put(Kind.NODE, {"metadata": {"name": "n1", "uid": "n", "resourceVersion": "1"}})

    def enqueue(self) -> None:
        self.enqueued += 1

    def on_watch_event(self, name: str, faults: int = 1, version: int = 1, reason: str = "silent") -> "Replica":
        """A job whose status reports so many faults of node n1."""
        now = Clock().wall()
        recoveries = [
            {"fault": "Node", "cause": {"node": "n1", "message": reason}, "detectedAt": micro_time(now - number)}
            for number in range(faults)
        ]
        metadata = {"uid": name, "namespace": "ns", "name": name, "resourceVersion": str(version)}
        self.store.put(Kind.JOB, {"metadata": metadata, "status": {"recoveries": recoveries}})
        return self


def jobs_in(api: FakeApi) -> list[str]:
    data: dict[str, Any] = api.objects[PATH]["data"]
    return sorted(offence.job for offence in decode_memory(data).by_node.get("n1", ()))


async def test_the_faults_in_statuses_are_written_and_read_by_the_next_leader() -> None:
    api = FakeApi()
    first = Replica(api).on_watch_event("a").on_watch_event("b").on_watch_event("c")
    await first.memory.run_once()
    assert jobs_in(api) == ["ns/a", "ns/b", "ns/c"]
    assert set(first.memory.offenders.nodes) == {"n1"}
    assert first.enqueued == 1
    second = Replica(api)  # the jobs are gone
    await second.memory.run_once()
    assert set(second.memory.offenders.nodes) == {"n1"}


async def test_each_shard_learns_the_faults_that_the_jobs_of_the_others_have_had() -> None:
    # given two shards, each with the fault of one job on the same node: too little for a repeat offender
    api = FakeApi()
    first, second = (Replica(api, is_shared=True).on_watch_event(name) for name in ("a", "b"))
    await first.memory.run_once()
    assert set(first.memory.offenders.nodes) == set()
    # when both have written theirs
    await second.memory.run_once()
    await first.memory.run_once()
    # then both avoid the node
    assert set(first.memory.offenders.nodes) == set(second.memory.offenders.nodes) == {"n1"}
    assert jobs_in(api) == ["ns/a", "ns/b"]


async def test_a_fault_that_one_shard_has_corrected_is_not_written_back_by_another() -> None:
    # given a fault that both shards know
    api = FakeApi()
    first, second = Replica(api, is_shared=True).on_watch_event("a"), Replica(api, is_shared=True)
    await first.memory.run_once()
    await second.memory.run_once()
    # when the coordinator reports another cause
    now = micro_time(Clock().wall())
    recoveries = [{"fault": "Node", "cause": {"node": "n2", "message": ""}, "detectedAt": now}]
    (raw,) = first.store.all(Kind.JOB)
    recoveries[0]["detectedAt"] = raw["status"]["recoveries"][0]["detectedAt"]
    metadata = {**raw["metadata"], "resourceVersion": "2"}
    first.store.put(Kind.JOB, {"metadata": metadata, "status": {"recoveries": recoveries}})
    await first.memory.run_once()
    assert jobs_in(api) == []
    # then the other shard does not restore the first one
    await second.memory.run_once()
    assert jobs_in(api) == []


async def test_a_memory_without_changes_is_not_written() -> None:
    api = FakeApi()
    replica = Replica(api).on_watch_event("a")
    await replica.memory.run_once()
    api.calls.clear()
    await replica.memory.run_once()
    assert (api.calls, replica.enqueued) == ([], 0)


async def test_an_offender_that_fails_in_another_way_is_reported_with_its_newest_reason() -> None:
    # given a repeat offender that all jobs know
    replica = Replica(FakeApi()).on_watch_event("a").on_watch_event("c").on_watch_event("d")
    await replica.memory.run_once()
    assert replica.memory.offenders.of("ns")["n1"].endswith("last time by Node: silent")
    assert replica.enqueued == 1
    # when another job fails on this node for another reason
    replica.on_watch_event("b", reason="Xid 79")
    await replica.memory.run_once()
    # then this is the reason that jobs report, and the operator enqueues them for it once
    assert replica.memory.offenders.of("ns")["n1"].endswith("last time by Node: Xid 79")
    assert replica.enqueued == 2
    await replica.memory.run_once()
    assert replica.enqueued == 2


async def test_two_replicas_that_write_at_once_lose_no_entry() -> None:
    # given two replicas that both believe that they lead, and have both read the memory
    api = FakeApi()
    first, second = Replica(api), Replica(api)
    await first.memory.run_once()
    await second.memory.run_once()
    first.on_watch_event("a")
    second.on_watch_event("b")
    # when both write, the second one over a state that it has not read
    await first.memory.run_once()
    await second.memory.run_once()
    assert jobs_in(api) == ["ns/a"]
    await second.memory.run_once()
    assert jobs_in(api) == ["ns/a", "ns/b"]


async def test_a_deleted_configmap_is_recreated() -> None:
    api = FakeApi()
    replica = Replica(api).on_watch_event("a")
    await replica.memory.run_once()
    del api.objects[PATH]
    replica.on_watch_event("b")
    await replica.memory.run_once()
    await replica.memory.run_once()
    assert jobs_in(api) == ["ns/a", "ns/b"]


async def test_without_a_configmap_the_memory_lasts_as_long_as_the_process() -> None:
    api = FakeApi()
    replica = Replica(api, None).on_watch_event("a").on_watch_event("b").on_watch_event("c")
    await replica.memory.run_once()
    assert set(replica.memory.offenders.nodes) == {"n1"}
    assert api.calls == []


@pytest.mark.attack(
    "A3",
    "writes a recovery three years ahead into a status, or has a coordinator whose clock is wrong",
    before="OverflowError ended the memory of nodes for all jobs, in each successor too",
)
@pytest.mark.parametrize("ahead_s", [3600.0, 3 * 365 * 86400.0, 5000 * 365 * 86400.0])
async def test_a_fault_in_the_future_is_ignored_and_all_others_count(ahead_s: float) -> None:
    # given a job with a recovery in the future, and three others with current faults
    api = FakeApi()
    replica = Replica(api).on_watch_event("a").on_watch_event("b").on_watch_event("c")
    recovery = {"fault": "Node", "cause": {"node": "n1"}, "detectedAt": micro_time(Clock().wall() + ahead_s)}
    metadata = {"uid": "x", "namespace": "ns", "name": "x", "resourceVersion": "1"}
    replica.store.put(Kind.JOB, {"metadata": metadata, "status": {"recoveries": [recovery]}})
    # when the leader runs, and then its successor
    await replica.memory.run_once()
    second = Replica(api)
    await second.memory.run_once()
    # then both remember only the three others
    assert jobs_in(api) == ["ns/a", "ns/b", "ns/c"]
    assert set(replica.memory.offenders.nodes) == set(second.memory.offenders.nodes) == {"n1"}


@pytest.mark.attack(
    "A3", "breaks the ConfigMap of the memory", before="OverflowError or RecursionError ended the memory of nodes"
)
@pytest.mark.parametrize(
    "text",
    [
        '[[1e400, "u", "ns/x", "Node", ""]]',
        '[[-1e300, "u", "ns/x", "Node", ""]]',
        f'[[{"9" * 400}, "u", "ns/x", "Node", ""]]',
        '[[NaN, "u", "ns/x", "Node", ""]]',
        "[" * 5000 + "]" * 5000,
    ],
    ids=["infinite", "long ago", "huge", "no number", "deep"],
)
async def test_a_stored_entry_that_is_invalid_is_forgotten(text: str) -> None:
    api = FakeApi()
    api.put(PATH, {"kind": "ConfigMap", "metadata": {"name": "node-faults"}, "data": {"n1": text}})
    replica = Replica(api).on_watch_event("a")
    await replica.memory.run_once()
    assert jobs_in(api) == ["ns/a"]


@pytest.mark.attack(
    "A3", "names a node that cannot be a key of a ConfigMap", before="the API server refused the whole memory for ever"
)
@pytest.mark.parametrize("node", ["a/b", "..", "x" * 300, "ä", "n1 "])
async def test_a_name_that_no_node_can_have_is_not_remembered(node: str) -> None:
    api = FakeApi()
    replica = Replica(api).on_watch_event("a")
    recovery = {"fault": "Node", "cause": {"node": node}, "detectedAt": micro_time(Clock().wall())}
    metadata = {"uid": "x", "namespace": "ns", "name": "x", "resourceVersion": "1"}
    replica.store.put(Kind.JOB, {"metadata": metadata, "status": {"recoveries": [recovery]}})
    await replica.memory.run_once()
    assert list(api.objects[PATH]["data"]) == ["n1"]
