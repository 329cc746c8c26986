"""The adapter for vLLM against a real vLLM: the behavior of its double, and updates that fail."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.engines import tiny_llama
from tests.engines.alike import answers_alike
from tests.engines.gloo_plugin import Group as GlooGroup
from tests.unit.rollout.model import Cluster
from tests.unit.rollout.vllm_server import VllmServer
from understudy_rollout import Group, Replica, Tensor, WeightsState, WeightUpdate, in_thread
from understudy_rollout.engines import VllmEngine
from understudy_rollout.failures import EngineRefused

pytestmark = pytest.mark.timeout(600)


class GlooTrainer:
    def __init__(self, version: int) -> None:
        self._weights = tiny_llama.weights(version)
        self._group: GlooGroup | None = None

    async def open_group(self, world_size: int) -> Group:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        return Group("127.0.0.1", port, world_size, "weights", "gloo")

    async def join_group(self, group: Group) -> None:
        def join() -> None:
            self._group = GlooGroup(group.address, group.port, 0, group.world_size)

        await in_thread(join)

    async def send(self, group: Group, tensors: Sequence[Tensor]) -> None:
        assert self._group is not None
        for tensor in tensors:
            await in_thread(self._group.broadcast, self._weights.get(tensor.name, self._weights["lm_head.weight"]))

    async def leave_group(self, group: Group | None) -> None:
        self._group = None


def on_vllm(work: Callable[[str, Path], Coroutine[Any, Any, None]]) -> Callable[[str, Path], None]:
    def run(vllm: str, models: Path) -> None:
        asyncio.run(work(vllm, models))

    run.__doc__, run.__name__ = work.__doc__, work.__name__
    return run


@asynccontextmanager
async def replica(url: str) -> AsyncIterator[Replica]:
    yield Replica("rollout-0", VllmEngine(url))


async def send(one: Replica, version: int, tensors: Sequence[Tensor] = ()) -> None:
    update = WeightUpdate([one], GlooTrainer(version), version=f"v{version}", release_kv=False)
    async with update:
        await update.transfer(tensors or tiny_llama.tensors(version))


async def load(one: Replica, folder: Path, version: int) -> None:
    async with WeightUpdate([one], version=f"v{version}", release_kv=False) as update:
        await update.load(str(folder / str(version)))


async def generated(url: str) -> set[int]:
    """The tokens of an answer."""
    body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    body["return_token_ids"] = True
    async with aiohttp.ClientSession() as session, session.post(url + "/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        content = await response.json()
        return set(content["choices"][0]["token_ids"])


async def version_of(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url + "/weight_info") as response:
        content = await response.json()
        return str(content["weight_version"])


@on_vllm
async def test_sent_weights_answer_and_so_do_those_of_a_folder(vllm: str, models: Path) -> None:
    async with replica(vllm) as one:
        for way, version in ((send, 4), (load, 5), (send, 6), (load, 7)):
            await (way(one, version) if way is send else load(one, models, version))
            assert await generated(vllm) == {version}
            assert await version_of(vllm) == f"v{version}"
            assert (one.weights.state, one.weights.version) == (WeightsState.FRESH, f"v{version}")


@pytest.mark.parametrize("broken_at", [1, 4, 8])
def test_an_update_that_fails_in_a_layer_spoils_neither_the_server_nor_the_next_one(
    vllm: str, models: Path, broken_at: int
) -> None:
    async def story() -> None:
        async with replica(vllm) as one:
            await load(one, models, 4)
            # given an update that fails after some tensors: the next one belongs to no existing layer
            tensors = tiny_llama.tensors(5)[:broken_at]
            unknown = Tensor("model.layers.9.mlp.down_proj.weight", "float32", tensors[0].shape)
            with pytest.raises(EngineRefused):
                await send(one, 5, [*tensors, unknown])
            assert one.weights.state is WeightsState.UNCERTAIN
            # then the server can still generate
            await generated(vllm)
        # and the next update, of another trainer, succeeds
        async with replica(vllm) as one:
            await send(one, 6)
            assert await generated(vllm) == {6}

    asyncio.run(story())


@on_vllm
async def test_a_load_that_fails_does_not_spoil_the_next_one(vllm: str, models: Path) -> None:
    async with replica(vllm) as one:
        with pytest.raises(EngineRefused):
            await load(one, models, 99)
        assert one.weights.state is WeightsState.UNCERTAIN
        await generated(vllm)
    async with replica(vllm) as one:
        await load(one, models, 8)
        assert await generated(vllm) == {8}


@on_vllm
async def test_a_failed_release_leaves_a_server_that_generates(vllm: str, models: Path) -> None:
    async with replica(vllm) as one:
        await load(one, models, 4)
        # given a CPU, on which no memory can be released
        with pytest.raises(EngineRefused, match="release_kv_cache_memory"):
            async with WeightUpdate([one], version="v5") as update:
                await update.load(str(models / "5"))
        # then all of it is undone, and the weights are unchanged
        assert (one.weights.state, one.weights.version) == (WeightsState.FRESH, "v4")
        assert await generated(vllm) == {4}


@on_vllm
async def test_undoing_an_update_that_never_began_is_no_error(vllm: str, models: Path) -> None:
    async with replica(vllm) as one:
        for _ in range(2):
            await one.engine.leave_group(Group("127.0.0.1", 1, 2, "never"))
            await one.engine.resume_kv()
            await one.engine.flush_cache()
            await one.engine.resume_generation()
        assert await generated(vllm)


#: The requests to the real server and to the double, in order.
ASKED: tuple[tuple[str, str, Any], ...] = (
    ("GET", "/health", None),
    ("POST", "/pause?mode=abort", None),
    ("POST", "/pause?mode=abort", None),
    ("POST", "/start_weight_update", None),
    ("POST", "/start_weight_update", None),
    ("POST", "/shutdown_weight_transfer_engine", None),
    ("POST", "/update_weights", {"update_info": {"names": ["x"], "dtype_names": ["float32"], "shapes": [[1]]}}),
    ("POST", "/finish_weight_update", None),
    ("POST", "/start_weight_update", None),
    ("POST", "/finish_weight_update", {"weight_version": "v0"}),
    ("POST", "/finish_weight_update", None),
    ("POST", "/shutdown_weight_transfer_engine", None),
    ("POST", "/reset_prefix_cache?reset_external=true", None),
    ("POST", "/reset_encoder_cache", None),
    ("POST", "/update_weight_version", {"new_version": "v0"}),
    ("POST", "/wake_up", None),
    ("POST", "/release_kv_cache_memory", None),
    ("POST", "/resume", None),
    ("POST", "/no_such_thing", None),
)


@on_vllm
async def test_the_double_answers_as_the_real_server_does(vllm: str, models: Path) -> None:
    await answers_alike(ASKED, vllm, VllmServer(Cluster(1).engines["rollout-0"]))
