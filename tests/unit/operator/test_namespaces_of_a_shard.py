"""The requests of a shard of an operator that watches named namespaces: those of its own namespaces only."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from tests.unit.operator.given_operator import ClusterApi, running
from tests.unit.virtual_time import in_virtual_time
from understudy_operator.plan.leadership.shard import Shard
from understudy_operator.runtime.api import Keep, ObjectList, namespace_in
from understudy_operator.runtime.decoding import WatchEvent


class RecordingApi(ClusterApi):
    def __init__(self) -> None:
        super().__init__()
        self.asked = set[str]()  # namespaces; "": lists and watches of all of them, or of nodes

    async def list(self, path: str, selector: str = "", keep: Keep = lambda raw: raw) -> ObjectList:
        self.asked.add(namespace_in(path))
        return await super().list(path, selector, keep)

    async def watch(self, path: str, selector: str, version: str) -> AsyncGenerator[WatchEvent]:
        self.asked.add(namespace_in(path))
        async for event in super().watch(path, selector, version):
            yield event


@in_virtual_time
async def test_a_shard_asks_only_for_its_own_namespaces() -> None:
    api = RecordingApi()
    async with running(api, namespaces=("team-a", "team-b", "default"), shard=Shard(1, 2)) as operator:
        await operator.until(lambda: operator.operator.synced)
    assert api.asked == {"", "default"}
