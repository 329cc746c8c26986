"""The order and the rate at which the writes of all jobs are sent."""

import asyncio

import pytest

from tests.unit.idle import run_until_idle
from tests.unit.virtual_time import in_virtual_time
from understudy_operator.apply.pace import Pace


class Given:
    """A bucket with 10 tokens a second and a capacity of 5. It records each write's time and job."""

    def __init__(self, per_s: float = 10.0, burst: float = 5.0) -> None:
        self.loop = asyncio.get_running_loop()
        self.began = self.loop.time()
        self.pace = Pace(self.loop.time, per_s, burst)
        self.sent: list[tuple[float, str]] = []
        self.answers = asyncio.Event()  # each write is on its way until then
        self.answers.set()

    def ask(self, writes: int, job: str, namespace: str = "research") -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._write(namespace, job)) for _ in range(writes)]

    def sent_of(self, job: str) -> list[float]:
        return [at for at, owner in self.sent if owner == job]

    async def _write(self, namespace: str, job: str) -> None:
        async with self.pace.turn(namespace, job):
            self.sent.append((round(self.loop.time() - self.began, 3), job))
            await self.answers.wait()


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


@pytest.mark.attack(
    "A5",
    "2,000 jobs are created in a namespace, and the API server is slow",
    before="all of their writes were on their way, and the API server finished almost none of them within its timeout",
)
@in_virtual_time
async def test_a_namespace_has_at_most_128_writes_on_their_way_and_delays_no_other_namespace() -> None:
    # given 200 writes of many jobs in one namespace that get no answer
    given = Given(per_s=1000.0, burst=1000.0)
    given.answers.clear()
    crowded = [task for job in range(200) for task in given.ask(1, f"job-{job}", "crowded")]
    await asyncio.sleep(10.0)
    assert len(given.sent) == 128
    # when a job of another namespace writes, then its write is sent at once
    other = given.ask(1, "small", "another")
    await run_until_idle()
    assert given.sent_of("small") == pytest.approx([10.0])
    # and with answers, all are sent
    given.answers.set()
    await asyncio.gather(*crowded, *other)
    assert len(given.sent) == 201


@in_virtual_time
async def test_the_places_of_a_namespace_go_to_its_jobs_in_turn() -> None:
    # given a job with all places, and more writes that wait for a place
    given = Given(per_s=1000.0, burst=1000.0)
    given.answers.clear()
    large = given.ask(128 + 50, "large")
    await run_until_idle()
    # when another job of the namespace writes, then it gets the second free place at the latest
    small = given.ask(1, "small")
    await run_until_idle()
    assert given.sent_of("small") == []
    large[0].cancel()
    large[1].cancel()
    await run_until_idle()
    assert given.sent_of("small") == [0.0]
    await cancel([*large, *small])


@in_virtual_time
async def test_a_cancelled_write_leaves_its_place() -> None:
    # given a namespace whose places are taken, and a write that is canceled in the moment in which it gets a place
    given = Given(per_s=1000.0, burst=1000.0)
    given.answers.clear()
    tasks = given.ask(128 + 2, "llm")
    await run_until_idle()
    tasks[0].cancel()
    await asyncio.sleep(0)  # its place is given to the next write, which has not run yet
    tasks[128].cancel()
    await run_until_idle()
    # then the write after it is sent
    assert len(given.sent) == 129
    assert not tasks[129].done()
    await cancel(tasks)
