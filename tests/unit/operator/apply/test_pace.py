"""The order and the rate at which the writes of all jobs are sent."""

import asyncio

import pytest

from tests.unit.virtual_time import in_virtual_time
from understudy_operator.apply.pace import Pace


class Given:
    """A bucket with 10 tokens a second and a capacity of 5. It records each write's time and job."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.began = self.loop.time()
        self.pace = Pace(self.loop.time, per_s=10.0, burst=5.0)
        self.sent: list[tuple[float, str]] = []

    def ask(self, writes: int, job: str, namespace: str = "research") -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._write(namespace, job)) for _ in range(writes)]

    def sent_of(self, job: str) -> list[float]:
        return [at for at, owner in self.sent if owner == job]

    async def _write(self, namespace: str, job: str) -> None:
        await self.pace.acquire(namespace, job)
        self.sent.append((round(self.loop.time() - self.began, 3), job))


async def cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@in_virtual_time
async def test_the_rate_of_writes_is_limited_over_all_jobs() -> None:
    given = Given()
    await asyncio.gather(*given.ask(8, "llm"))
    assert given.sent_of("llm") == pytest.approx([0.0] * 5 + [0.1, 0.2, 0.3])

    # after a pause the bucket is full, and not more than full
    await asyncio.sleep(10.0)
    await asyncio.gather(*given.ask(6, "vlm"))
    assert given.sent_of("vlm") == pytest.approx([10.3] * 5 + [10.4])


@pytest.mark.attack(
    "A5",
    "one job writes 5,000 times at once",
    before="each write of another job waited for all that were asked for: 0.8 s behind a creation of 5,000 pods",
)
@in_virtual_time
async def test_a_job_that_writes_thousands_of_times_delays_another_job_by_one_write() -> None:
    # given 5,000 writes of one job
    given = Given()
    many = given.ask(5000, "huge")
    await asyncio.sleep(0)

    # when another job recovers with four consecutive writes
    for _ in range(4):
        await asyncio.gather(*given.ask(1, "small"))

    # then each of them is sent after at most one more write of the huge job
    assert given.sent_of("small") == pytest.approx([0.2, 0.4, 0.6, 0.8])
    await cancel(many)


@pytest.mark.attack(
    "A5",
    "a namespace creates 50 jobs, and each of them writes 100 times at once",
    before="the writes of other namespaces waited behind all of them",
)
@in_virtual_time
async def test_fifty_jobs_of_one_namespace_delay_a_job_of_another_namespace_by_one_write() -> None:
    given = Given()
    many = [task for job in range(50) for task in given.ask(100, f"job-{job}", "crowded")]
    await asyncio.sleep(0)
    await asyncio.gather(*given.ask(1, "small", "another"))
    assert given.sent_of("small") == pytest.approx([0.2])
    await cancel(many)


@pytest.mark.attack(
    "A5",
    "the editor of three namespaces has 100 writes waiting in each",
    before="the writes of other namespaces waited behind all of them",
)
@in_virtual_time
async def test_each_namespace_that_waits_delays_a_write_of_another_one_by_one_write() -> None:
    given = Given()
    many = [task for name in ("a", "b", "c") for task in given.ask(100, f"job-{name}", f"namespace-{name}")]
    await asyncio.sleep(0)
    await asyncio.gather(*given.ask(1, "small", "another"))
    # three writes at most are sent before it
    assert given.sent_of("small") == pytest.approx([0.4])
    await cancel(many)


@in_virtual_time
async def test_the_jobs_of_a_namespace_take_turns_and_the_writes_of_a_job_keep_their_order() -> None:
    given = Given()
    tasks = [*given.ask(8, "a"), *given.ask(3, "b"), *given.ask(1, "c")]
    await asyncio.gather(*tasks)
    assert [job for _, job in given.sent] == ["a"] * 5 + ["a", "b", "c", "a", "b", "a", "b"]


@in_virtual_time
async def test_a_write_that_is_cancelled_while_it_waits_takes_no_turn() -> None:
    given = Given()
    first, second, third = given.ask(8, "a")[5:]
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(second, third, return_exceptions=True)
    assert given.sent_of("a")[5:] == pytest.approx([0.1, 0.2])
