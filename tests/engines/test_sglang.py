"""The adapter for SGLang against a real SGLang: the behavior of its double, and updates that fail.

The trainer is that of docs/how-to/rl.md, with gloo instead of NCCL.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.engines import tiny_llama
from tests.engines.alike import Asked, answers_alike
from tests.engines.conftest import STAND_INS
from tests.unit.docs.rl_page import block, executed
from tests.unit.rollout.model import Cluster
from tests.unit.rollout.sglang_server import SglangServer
from understudy_rollout import Group, Replica, Tensor, Timeouts, Trainer, WeightsState, WeightUpdate
from understudy_rollout.engines import SglangEngine
from understudy_rollout.failures import EngineRefused, StepTimedOut

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def trainer_of() -> Callable[[int], Trainer]:
    """The page's trainer, with this version's weights."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_USE_CPU_ENGINE", "1")
        patch.setattr(sys, "path", [str(STAND_INS), *sys.path])
        page = asyncio.run(executed(block("python", "class SglangTrainer:")))["SglangTrainer"]

    class GlooTrainer(page):  # type: ignore[valid-type, misc]
        async def open_group(self, world_size: int) -> Group:
            group: Group = await super().open_group(world_size)
            return replace(group, backend="gloo")

    def made(version: int) -> Trainer:
        trainer: Trainer = GlooTrainer("127.0.0.1", Weights(version))
        return trainer

    return made


class Weights(dict[str, Any]):
    """Also tensors of no model."""

    def __init__(self, version: int) -> None:
        super().__init__(tiny_llama.weights(version))

    def __missing__(self, name: str) -> Any:
        return self["lm_head.weight"]


Story = Callable[..., Coroutine[Any, Any, None]]


def as_test(story: Story) -> Callable[..., None]:
    """Run like a test: pytest's own loop would be another one for each fixture."""

    @wraps(story)
    def run(**given: Any) -> None:
        asyncio.run(story(**given))

    return run


@asynccontextmanager
async def replica(url: str) -> AsyncIterator[Replica]:
    yield Replica("rollout-0", SglangEngine(url))


async def send(one: Replica, trainer: Trainer, version: int, tensors: Sequence[Tensor] = (), buckets: int = 1) -> None:
    sent = list(tensors or tiny_llama.tensors(version))
    size = -(-len(sent) // buckets)
    async with WeightUpdate([one], trainer, version=f"v{version}") as update:
        for first in range(0, len(sent), size):
            await update.transfer(sent[first : first + size])


async def load(one: Replica, folder: Path, version: int) -> None:
    async with WeightUpdate([one], version=f"v{version}") as update:
        await update.load(str(folder / str(version)))


async def generated(url: str) -> tuple[set[int], str]:
    """The tokens of an answer, and the version in it."""
    sampling = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": [5, 6, 7], "sampling_params": sampling}
    async with aiohttp.ClientSession() as session, session.post(url + "/generate", json=body) as response:
        assert response.status == 200, await response.text()
        answer = await response.json()
        return set(answer["output_ids"]), answer["meta_info"]["weight_version"]


async def until_it_waits(url: str) -> None:
    """Wait until its scheduler is in a collective: it answers no request then."""
    patience = aiohttp.ClientTimeout(total=1)
    async with aiohttp.ClientSession(timeout=patience) as session:
        while True:
            try:
                async with session.get(url + "/server_info") as response:
                    await response.read()
            except TimeoutError:
                return


@as_test
async def test_sent_weights_answer_and_so_do_those_of_a_folder(
    sglang: str, models: Path, trainer_of: Callable[[int], Trainer]
) -> None:
    async with replica(sglang) as one:
        for buckets, version in ((1, 4), (0, 5), (3, 6), (0, 7), (1, 8)):
            if buckets:
                await send(one, trainer_of(version), version, buckets=buckets)
            else:
                await load(one, models, version)
            assert await generated(sglang) == ({version}, f"v{version}")
            assert (one.weights.state, one.weights.version) == (WeightsState.FRESH, f"v{version}")


@contextmanager
def busy_machine() -> Iterator[None]:
    """Keeps all cores busy, so that a process that has called another one continues later than that one."""
    idlers = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for idler in idlers:
            idler.kill()
            idler.wait()


@as_test
async def test_memory_may_be_released_right_after_an_answer(sglang: str, models: Path) -> None:
    async with replica(sglang) as one, aiohttp.ClientSession() as session:
        with busy_machine():
            for turn in range(20):
                # given an answer, whose request is still in the scheduler
                sampling = {"max_new_tokens": 1 + turn % 8, "temperature": 0, "ignore_eos": True}
                body = {"input_ids": [5, 6, 7], "sampling_params": sampling}
                async with session.post(sglang + "/generate", json=body) as response:
                    await response.read()
                # when memory is released at once, then the server survives
                await one.engine.stop_generation()
                await one.engine.release_kv()
                await one.engine.resume_kv()
                await one.engine.resume_generation()
        assert (await generated(sglang))[0]


@as_test
async def test_an_update_aborts_running_requests(sglang: str, models: Path) -> None:
    async with replica(sglang) as one, aiohttp.ClientSession() as session:
        await load(one, models, 4)
        # given requests that run
        body = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 50, "temperature": 0, "ignore_eos": True}}

        async def ask() -> tuple[str, set[int]]:
            async with session.post(sglang + "/generate", json=body) as response:
                answer = await response.json()
                return answer["meta_info"]["finish_reason"]["type"], set(answer["output_ids"])

        for version in (5, 6, 7):
            asked = [asyncio.ensure_future(ask()) for _ in range(3)]
            # when an update begins
            await load(one, models, version)
            # then each has the tokens until then, of one version
            for ended, tokens in await asyncio.gather(*asked):
                assert ended in ("abort", "length")
                assert len(tokens) <= 1
        assert await generated(sglang) == ({7}, "v7")


@as_test
async def test_a_tensor_of_another_shape_spoils_neither_the_server_nor_the_next_update(
    sglang: str, models: Path, trainer_of: Callable[[int], Trainer]
) -> None:
    async with replica(sglang) as one:
        await load(one, models, 4)
        # given an update that fails after some tensors
        tensors = tiny_llama.tensors(5)[:4]
        with pytest.raises(EngineRefused):
            await send(one, trainer_of(5), 5, [*tensors, replace(tensors[0], name="model.norm.weight")])
        assert one.weights.state is WeightsState.UNCERTAIN
        # then the server can still generate
        await generated(sglang)
    # and the next update, of another trainer, succeeds
    async with replica(sglang) as one:
        await send(one, trainer_of(6), 6)
        assert await generated(sglang) == ({6}, "v6")


@as_test
async def test_a_missing_folder_spoils_neither_the_server_nor_the_next_update(
    sglang: str, models: Path, trainer_of: Callable[[int], Trainer]
) -> None:
    async with replica(sglang) as one:
        with pytest.raises(EngineRefused):
            await load(one, models, 99)
        assert one.weights.state is WeightsState.UNCERTAIN
        await generated(sglang)
        await load(one, models, 8)
        assert await generated(sglang) == ({8}, "v8")
        await send(one, trainer_of(5), 5)
        assert await generated(sglang) == ({5}, "v5")


@pytest.mark.parametrize("fails_in", ["join_group", "send"])
def test_a_trainer_that_fails_releases_the_server(
    sglang: str, models: Path, trainer_of: Callable[[int], Trainer], fails_in: str
) -> None:
    async def story() -> None:
        async with replica(sglang) as one:
            await load(one, models, 4)
            # given a trainer that fails while the server waits for it
            trainer = trainer_of(5)

            async def fail(*_: Any) -> None:
                await until_it_waits(sglang)
                raise ZeroDivisionError

            setattr(trainer, fails_in, fail)
            # when it updates, then that error is raised
            with pytest.raises(ZeroDivisionError):
                await send(one, trainer, 5)
            assert one.group is None
            assert one.weights.state is (WeightsState.FRESH if fails_in == "join_group" else WeightsState.UNCERTAIN)
            # and the next update succeeds
            await send(one, trainer_of(6), 6)
            assert await generated(sglang) == ({6}, "v6")

    asyncio.run(story())


@as_test
async def test_a_session_of_an_earlier_trainer_blocks_no_other(
    sglang: str, models: Path, trainer_of: Callable[[int], Trainer]
) -> None:
    async with aiohttp.ClientSession() as session:
        for version in (6, 7):
            async with session.post(sglang + "/begin_weight_update", json={}) as response:
                assert response.status == 200
            async with replica(sglang) as one:
                await (send(one, trainer_of(6), 6) if version == 6 else load(one, models, 7))
                assert await generated(sglang) == ({version}, f"v{version}")


@as_test
async def test_undoing_an_update_that_never_began_is_no_error(sglang: str, models: Path) -> None:
    async with replica(sglang) as one:
        for _ in range(2):
            await one.engine.leave_group(Group("127.0.0.1", 1, 2, "never", "gloo"))
            await one.engine.resume_kv()
            await one.engine.flush_cache()
            await one.engine.resume_generation()
        assert await generated(sglang)


#: The requests to the real server and to the double, in order.
TENSOR = {"names": ["x"], "dtypes": ["float32"], "shapes": [[1]], "group_name": "never", "flush_cache": False}
KV = {"tags": ["kv_cache"]}
ASKED: tuple[Asked, ...] = (
    ("GET", "/health", None),
    ("POST", "/pause_generation", {"mode": "abort"}),
    ("POST", "/pause_generation", {"mode": "abort"}),
    ("POST", "/flush_cache?timeout=30", None),
    ("POST", "/release_memory_occupation", KV),
    ("POST", "/update_weights_from_distributed", TENSOR),
    ("POST", "/begin_weight_update", {}),
    ("POST", "/begin_weight_update", {}),
    ("POST", "/update_weights_from_distributed", TENSOR),
    ("POST", "/end_weight_update", {}),
    ("POST", "/end_weight_update", {}),
    ("POST", "/destroy_weights_update_group", {"group_name": "never"}),
    ("POST", "/update_weight_version", {"new_version": "v9", "abort_all_requests": False}),
    ("POST", "/resume_memory_occupation", KV),
    ("POST", "/flush_cache", None),
    ("POST", "/continue_generation", {}),
    ("GET", "/health_generate", None),
    ("POST", "/no_such_thing", None),
)


@as_test
async def test_the_double_answers_as_the_real_server_does(sglang: str, models: Path) -> None:
    await answers_alike(ASKED, sglang, SglangServer(Cluster(1).engines["rollout-0"]))


@as_test
async def test_a_trainer_that_sends_nothing_times_out(
    sglang: str, models: Path, trainer_of: Callable[[int], Trainer]
) -> None:
    async with replica(sglang) as one:
        await load(one, models, 4)
        trainer = trainer_of(5)

        async def wait(*_: Any) -> None:
            await asyncio.Event().wait()

        trainer.send = wait  # type: ignore[method-assign, assignment]
        # when the trainer never sends, then the transfer ends when its time is over, and the server is released
        with pytest.raises(StepTimedOut, match="transfer the weights"):
            async with WeightUpdate([one], trainer, version="v5", timeouts=Timeouts(transfer=2)) as update:
                await update.transfer(tiny_llama.tensors(5))
        assert (one.weights.state, one.group) == (WeightsState.UNCERTAIN, None)
        await send(one, trainer_of(6), 6)
        assert await generated(sglang) == ({6}, "v6")
