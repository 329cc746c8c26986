"""How often each kind is listed."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.unit.operator.given_operator import ClusterApi, running
from tests.unit.virtual_time import in_virtual_time
from understudy_operator.observe.resync import PATHS, Resync
from understudy_operator.observe.store import Kind, Store
from understudy_operator.plan.leadership.shard import Shard
from understudy_operator.runtime.api import Api, ApiError, Keep, ObjectList
from understudy_operator.runtime.clock import Clock

RESYNC_S = 60.0
RESYNC_WATCHED_S = 600.0

Raw = dict[str, Any]
PODS = PATHS[Kind.POD][0]


class Lists(Api):
    def __init__(self, failing: str = "") -> None:
        super().__init__(None)
        self.requests: Counter[str] = Counter()
        self._failing = failing  # the first time
        self.forbidden = ""  # a namespace
        self.items: dict[str, list[Raw]] = {}  # by path

    async def list(self, path: str, selector: str = "", keep: Keep = lambda raw: raw) -> ObjectList:
        self.requests[path] += 1
        if self.forbidden and f"/namespaces/{self.forbidden}/" in path:
            raise ApiError(403, "Forbidden", f"cannot list {path}")
        if path in self.items:
            kept = map(keep, self.items[path])
            return ObjectList([raw for raw in kept if raw is not None], "7")
        if path == self._failing and self.requests[path] == 1:
            raise ApiError(500, "InternalError", "etcdserver: leader changed")
        return ObjectList([], "7")


async def test_a_kind_with_our_own_watch_is_listed_once_and_then_seldom() -> None:
    # given an operator with its own watch of pods
    now = 1000.0
    api, clock = Lists(), Clock(steady=lambda: now)
    lists = Resync(api, Store(clock.steady), clock, lambda: None, watched=(Kind.POD,))
    # when all kinds are listed at the start, and then every minute
    while now < 1000.0 + RESYNC_WATCHED_S:
        await lists.list_all(lists.due())
        now += RESYNC_S
    # then pods are listed only at the start, and again after their own interval
    assert (api.requests[PODS], api.requests[PATHS[Kind.NODE][0]]) == (1, RESYNC_WATCHED_S / RESYNC_S)
    await lists.list_all(lists.due())
    assert api.requests[PODS] == 2


async def test_a_watch_that_has_listed_its_kind_again_delays_the_next_list() -> None:
    now = 1000.0
    api, clock = Lists(), Clock(steady=lambda: now)
    lists = Resync(api, Store(clock.steady), clock, lambda: None, watched=(Kind.POD,))
    await lists.list_kind(Kind.POD)
    assert await lists.first(PODS) == "7"
    await lists.list_all(lists.due())
    assert api.requests[PODS] == 1


async def test_only_the_list_that_failed_is_repeated() -> None:
    # given an API server that fails once, in the middle
    api, clock = Lists(failing=PODS), Clock()
    lists = Resync(api, Store(clock.steady), clock, lambda: None)
    due = lists.due()
    with pytest.raises(ApiError):
        await lists.list_all(due)
    # when the lists continue
    await lists.list_all(due)
    # then all kinds have been listed, and only the failed list twice
    assert api.requests == {path: 2 if path == PODS else 1 for path, _ in PATHS.values()}


# Named namespaces ----------------------------------------------------------------------------------------------------

NAMESPACES = ("red", "blue")


def a_pod(namespace: str) -> Raw:
    return {"metadata": {"namespace": namespace, "name": "p", "uid": f"uid-{namespace}", "resourceVersion": "1"}}


async def test_each_watched_namespace_is_listed_and_nodes_are_listed_once() -> None:
    # given an operator that watches two namespaces
    api, clock = Lists(), Clock()
    lists = Resync(api, Store(), clock, lambda: None, namespaces=NAMESPACES)
    # when all kinds are listed
    await lists.list_all(lists.due())
    # then every list is of one of these namespaces, except that of nodes
    outside = {path for path in api.requests if not path.split("/namespaces/")[-1].startswith(("red/", "blue/"))}
    assert outside == {"/api/v1/nodes"}
    assert api.requests["/api/v1/namespaces/red/pods"] == 1
    assert api.requests["/apis/understudy.dev/v1alpha1/namespaces/blue/trainingjobs"] == 1
    assert lists.is_readable("red")


async def test_a_forbidden_namespace_keeps_its_known_objects_and_delays_no_other() -> None:
    # given pods in two namespaces
    red, blue = (f"/api/v1/namespaces/{name}/pods" for name in NAMESPACES)
    api, store = Lists(), Store()
    lists = Resync(api, store, Clock(), lambda: None, watched=(Kind.POD,), namespaces=NAMESPACES)
    api.items = {red: [a_pod("red")], blue: [a_pod("blue")]}
    await lists.list_all(lists.due())
    # when the RoleBinding of one is deleted, and the pod of the other is replaced
    api.forbidden, api.items[blue] = "red", []
    await lists.list_kind(Kind.POD)
    # then the other namespace has its new objects, and the forbidden one keeps all known objects
    assert [raw["metadata"]["namespace"] for raw in store.all(Kind.POD)] == ["red"]
    # and the operator decides nothing about the forbidden one until it can list it again
    assert (lists.is_readable("red"), lists.is_readable("blue")) == (False, True)
    assert Kind.POD in lists.due()
    api.forbidden = ""
    await lists.list_all(lists.due())
    assert lists.is_readable("red")
    assert Kind.POD not in lists.due()


async def test_a_shard_keeps_the_objects_of_its_own_namespaces_and_all_nodes() -> None:
    # given pods in two namespaces: team-a is of shard 0 of 2, team-c of shard 1
    api = Lists()
    api.items = {PODS: [a_pod("team-a"), a_pod("team-c")], PATHS[Kind.NODE][0]: [a_pod("")]}
    for index, namespace in enumerate(("team-a", "team-c")):
        # when a shard lists all kinds
        store = Store()
        lists = Resync(api, store, Clock(), lambda: None, shard=Shard(index, 2))
        await lists.list_all(lists.due())
        # then its store has nothing of the other namespace
        assert [raw["metadata"]["namespace"] for raw in store.all(Kind.POD)] == [namespace]
        assert len(store.all(Kind.NODE)) == 1


async def test_a_watch_of_a_forbidden_namespace_waits_for_its_list() -> None:
    api = Lists()
    api.forbidden = "red"
    lists = Resync(api, Store(), Clock(), lambda: None, namespaces=NAMESPACES)
    await lists.list_kind(Kind.POD)
    waiting = asyncio.create_task(lists.first("/api/v1/namespaces/red/pods"))
    assert await lists.first("/api/v1/namespaces/blue/pods") == "7"
    assert not waiting.done()
    api.forbidden = ""
    await lists.list_kind(Kind.POD)
    assert await waiting == "7"


async def test_a_kind_that_is_forbidden_in_all_namespaces_is_an_error() -> None:
    class Forbidden(Lists):
        async def list(self, path: str, selector: str = "", keep: Keep = lambda raw: raw) -> ObjectList:
            raise ApiError(403, "Forbidden", "nodes is forbidden")

    lists = Resync(Forbidden(), Store(), Clock(), lambda: None, namespaces=NAMESPACES)
    with pytest.raises(ApiError):
        await lists.list_kind(Kind.NODE)


class CountedLists(ClusterApi):
    def __init__(self) -> None:
        super().__init__()
        self.lists: Counter[str] = Counter()

    async def list(self, path: str, selector: str = "", keep: Keep = lambda raw: raw) -> ObjectList:
        self.lists[path] += 1
        return await super().list(path, selector, keep)


@in_virtual_time
async def test_the_running_operator_lists_no_kind_each_minute() -> None:
    """It watches all of them."""
    api = CountedLists()
    async with running(api) as cluster:
        await cluster.until(lambda: cluster.operator.synced)
        # given an operator that leads, and has listed some kinds for that once more
        await asyncio.sleep(RESYNC_S / 2)
        kinds = [path for path, _ in PATHS.values()]
        before = [api.lists[path] for path in kinds]
        # when five minutes pass, then nothing is listed again
        await asyncio.sleep(5 * RESYNC_S)
        assert [api.lists[path] for path in kinds] == before
