"""The edge of the leader election: it renews a Lease, survives an API server that does not answer, and releases the
Lease.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.unit.operator.fake_api import FakeApi, Raw
from tests.unit.virtual_time import in_virtual_time
from understudy_operator.apply.election import Election
from understudy_operator.plan.leadership.lease_election import LeaseTimes
from understudy_operator.plan.leadership.shard import SINGLE_SHARD, Shard
from understudy_operator.runtime.api import ApiError, Keep, ObjectList
from understudy_operator.runtime.clock import Clock

LEASES = "/apis/coordination.k8s.io/v1/namespaces/system/leases"
LEASE = f"{LEASES}/operator"
LIMIT_S = 60.0  # virtual time


class Server(FakeApi):
    """Can stop answering, or reject requests."""

    def __init__(self) -> None:
        super().__init__()
        self.silent = asyncio.Event()  # if set, the server does not answer
        self.failure: Exception | None = None
        self.takes_s = 0.0

    async def get(self, path: str) -> Raw:
        await self._wait()
        return await super().get(path)

    async def create(self, path: str, body: Mapping[str, Any]) -> Raw:
        await self._wait()
        return await super().create(path, body)

    async def list(self, path: str, selector: str = "", keep: Keep = lambda raw: raw) -> ObjectList:
        await self._wait()
        return await super().list(path, selector, keep)

    async def replace(self, path: str, body: Mapping[str, Any]) -> Raw:
        await self._wait()
        return await super().replace(path, body)

    async def _wait(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self.silent.is_set():
            await asyncio.sleep(3600.0)
        await asyncio.sleep(self.takes_s)

    @property
    def holder(self) -> str:
        return str(self.objects[LEASE]["spec"]["holderIdentity"]) if LEASE in self.objects else ""


def clock() -> Clock:
    return Clock(steady=asyncio.get_running_loop().time)


class Replica:
    def __init__(self, server: Server, name: str, shard: Shard = SINGLE_SHARD) -> None:
        self.acts = False
        self.election = Election(
            server, ("system", "operator"), name, clock(), self._lead, self._stand_by, LeaseTimes(), shard
        )
        self.task = asyncio.create_task(self.election.run())

    def _lead(self) -> None:
        assert not self.acts
        self.acts = True

    async def _stand_by(self) -> None:
        assert self.acts
        self.acts = False

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@asynccontextmanager
async def running(server: Server, *names: str, shard: Shard = SINGLE_SHARD) -> AsyncIterator[list[Replica]]:
    replicas = [Replica(server, name, shard) for name in names]
    try:
        yield replicas
    finally:
        await asyncio.gather(*(replica.stop() for replica in replicas))


async def until(holds: Any) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not holds():  # noqa: ASYNC110 (the fake API server has no notification)
            await asyncio.sleep(0.005)


@in_virtual_time
async def test_one_of_two_replicas_leads_and_the_other_one_takes_over_after_a_clean_stop():
    server = Server()
    async with running(server, "a", "b") as replicas:
        await until(lambda: any(replica.acts for replica in replicas))
        assert sum(replica.election.leads() for replica in replicas) == 1
        (first,) = [replica for replica in replicas if replica.acts]
        (second,) = [replica for replica in replicas if replica is not first]
        await first.stop()
        await first.election.release()
        assert (server.holder, first.election.leads()) == ("", False)
        await until(lambda: second.acts)
    assert server.objects[LEASE]["spec"]["leaseTransitions"] == 1


@pytest.mark.parametrize("trouble", [None, OSError("no route"), ApiError(503, "", "down"), ApiError(403, "", "no")])
@in_virtual_time
async def test_a_leader_whose_api_server_fails_stands_by_in_time_and_leads_again_when_the_server_is_back(
    trouble: Exception | None,
):
    server = Server()
    async with running(server, "a") as (replica,):
        await until(lambda: replica.acts)
        server.failure = trouble
        server.silent.set()
        await until(lambda: not replica.acts)
        assert not replica.election.leads()
        server.failure = None
        server.silent.clear()
        await until(lambda: replica.acts)


@in_virtual_time
async def test_a_leader_whose_lease_was_taken_stands_by():
    server = Server()
    async with running(server, "a") as (replica,):
        await until(lambda: replica.acts)
        taken = server.objects[LEASE]
        server.put(LEASE, {**taken, "spec": {**taken["spec"], "holderIdentity": "b"}})
        await until(lambda: not replica.acts)
        assert server.holder == "b"


@in_virtual_time
async def test_the_lease_records_when_it_was_taken_and_renewed():
    server = Server()
    async with running(server, "a") as (replica,):
        await until(lambda: replica.acts)
        first = server.objects[LEASE]["spec"]
        await until(lambda: server.objects[LEASE]["spec"]["renewTime"] != first["renewTime"])
    spec = server.objects[LEASE]["spec"]
    assert (spec["acquireTime"], spec["renewTime"] > spec["acquireTime"]) == (first["acquireTime"], True)


@in_virtual_time
async def test_an_api_server_that_answers_in_two_seconds_keeps_its_leader():
    # given a server that needs 2 s for each call
    server = Server()
    server.takes_s = 2.0
    async with running(server, "a", "b") as replicas:
        await until(lambda: any(replica.acts for replica in replicas))
        (first,) = [replica for replica in replicas if replica.acts]
        # when five minutes pass
        for _ in range(3000):
            await asyncio.sleep(0.1)
            # then the replica leads without a break
            assert first.acts
            assert first.election.leads()
    assert server.objects[LEASE]["spec"]["leaseTransitions"] == 0


@in_virtual_time
async def test_each_shard_of_a_layout_has_a_leader_of_its_own():
    server = Server()
    async with running(server, "a", shard=Shard(0, 2)) as (a,), running(server, "b", shard=Shard(1, 2)) as (b,):
        await until(lambda: a.acts and b.acts)
        # then each one has renewed its own Lease
        holders = {path: raw["spec"]["holderIdentity"] for path, raw in server.objects.items()}
    assert holders == {f"{LEASE}-0-of-2": "a", f"{LEASE}-1-of-2": "b"}


@in_virtual_time
async def test_a_shard_waits_until_the_leader_of_another_layout_has_stopped(caplog: pytest.LogCaptureFixture):
    server = Server()
    async with running(server, "old") as (old,):
        await until(lambda: old.acts)
        async with running(server, "new", shard=Shard(1, 2)) as (new,):
            # given a replica of the next layout, which runs for a minute beside a leader
            await asyncio.sleep(60.0)
            assert (old.acts, new.acts) == (True, False)
            # then its log names the Lease once, and the fix
            (line,) = [entry for entry in caplog.messages if "another number of shards" in entry]
            assert line.startswith("the lease system/operator is held, and its operator has another number of shards")
            assert line.endswith("If it does not stop, delete the Deployment operator")
            # when the leader stops cleanly, then the replica leads after its next read
            await old.stop()
            await old.election.release()
            stopped_at = asyncio.get_running_loop().time()
            await until(lambda: new.acts)
            assert asyncio.get_running_loop().time() - stopped_at <= 0.6


@in_virtual_time
async def test_a_shard_leads_once_the_lease_of_a_lost_leader_of_another_layout_has_expired():
    server = Server()
    async with running(server, "new", shard=Shard(1, 2)) as (new,):
        # given the Lease of a leader that is gone
        spec = {"holderIdentity": "old", "leaseDurationSeconds": 15, "leaseTransitions": 0}
        server.put(LEASE, {"metadata": {"name": "operator"}, "spec": spec})
        began_at = asyncio.get_running_loop().time()
        await until(lambda: new.acts)
        assert 15.0 <= asyncio.get_running_loop().time() - began_at <= 16.0


@in_virtual_time
async def test_a_lease_of_another_layout_that_has_expired_delays_only_the_first_leader():
    server = Server()
    # given the Lease of a leader that is gone
    spec = {"holderIdentity": "old", "leaseDurationSeconds": 15, "leaseTransitions": 3}
    server.put(f"{LEASE}-1-of-2", {"metadata": {"name": "operator-1-of-2"}, "spec": spec})
    # when a replica of the next layout leads after its duration
    async with running(server, "new") as (new,):
        await until(lambda: new.acts)
        await asyncio.sleep(0.1)
        # then it has released that Lease
        released = server.objects[f"{LEASE}-1-of-2"]["spec"]
        assert (released["holderIdentity"], released["leaseTransitions"]) == ("", 3)
        await new.stop()
        await new.election.release()
    # and the next replica does not wait for it
    began_at = asyncio.get_running_loop().time()
    async with running(server, "next") as (following,):
        await until(lambda: following.acts)
        assert asyncio.get_running_loop().time() - began_at <= 0.6


@in_virtual_time
async def test_a_leader_leads_even_if_it_may_not_release_an_expired_lease(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    server = Server()
    spec = {"holderIdentity": "old", "leaseDurationSeconds": 15, "leaseTransitions": 3}
    server.put(f"{LEASE}-1-of-2", {"metadata": {"name": "operator-1-of-2"}, "spec": spec})
    server.deny = lambda method, path: (
        ApiError(403, "Forbidden", "no") if method == "PUT" and path.endswith("-1-of-2") else None
    )
    async with running(server, "new") as (new,):
        await until(lambda: new.acts)
        await asyncio.sleep(60.0)
        assert new.acts
    assert "could not release the lease system/operator-1-of-2, which has expired: no" in caplog.messages


@in_virtual_time
async def test_a_shard_with_another_list_of_namespaces_waits_until_all_shards_of_the_old_list_have_stopped(
    caplog: pytest.LogCaptureFixture,
):
    server = Server()
    old_shard, new_shard = Shard(0, 2, "team-a=1"), Shard(1, 2, "team-a=0")
    async with running(server, "old", shard=old_shard) as (old,), running(server, "new", shard=new_shard) as (new,):
        await until(lambda: old.acts or new.acts)
        (first, second) = (old, new) if old.acts else (new, old)
        await asyncio.sleep(60.0)
        assert (first.acts, second.acts) == (True, False)
        # then the log does not recommend to delete a Deployment, because that of the new list has the same name
        name = "operator-0-of-2" if first is old else "operator-1-of-2"
        lines = [entry for entry in caplog.messages if entry.startswith(f"the lease system/{name} is held")]
        assert lines
        for line in lines:
            assert "by a pod with another list of namespaces" in line
            assert line.endswith(f"kubectl -n system rollout status deployment/{name}")
        await first.stop()
        await first.election.release()
        await until(lambda: second.acts)
