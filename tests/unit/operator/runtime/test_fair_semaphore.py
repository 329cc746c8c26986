"""Places that addresses get in turn."""

import asyncio
from collections.abc import Iterable

import pytest

from tests.unit.idle import run_until_idle
from understudy_operator.runtime.fair_semaphore import Crowded, FairSemaphore


async def request_place(visits: FairSemaphore, *addresses: str) -> list["asyncio.Task[None]"]:
    """One request for each address, in this order; the tasks of requests with a place are done."""
    tasks = [asyncio.create_task(visits.acquire(address), name=address) for address in addresses]
    await run_until_idle()
    return tasks


def done(tasks: Iterable["asyncio.Task[None]"]) -> list[str]:
    return [task.get_name() for task in tasks if task.done() and task.exception() is None]


async def test_a_place_goes_to_the_address_with_the_fewest_places_and_not_with_the_most_requests() -> None:
    # given an address with all places and many requests
    visits = FairSemaphore(places=4, per_address=4, waiting=100)
    await request_place(visits, *["hostile"] * 4)
    waiting = await request_place(visits, *["hostile"] * 20, "other")
    assert done(waiting) == []
    # when one place becomes free
    visits.release("hostile")
    await run_until_idle()
    # then the other address gets it, although its request was the last
    assert done(waiting) == ["other"]


OTHER_NETWORK = [f"fd00:0:0:2::{number:x}" for number in range(40)]
OWN_NETWORK = "fd00:0:0:1::5"


@pytest.mark.attack(
    "D2", "requests from many addresses of one IPv6 network", before="each of them had a turn of its own"
)
async def test_the_addresses_of_one_network_share_its_turn() -> None:
    # given a network with all places, and many of its addresses that wait
    visits = FairSemaphore(places=4, per_address=4, waiting=30)
    await request_place(visits, *OTHER_NETWORK[:4])
    waiting = await request_place(visits, *OTHER_NETWORK[4:24], OWN_NETWORK)
    # when a place becomes free, then an address of another network gets it
    visits.release(OTHER_NETWORK[0])
    await run_until_idle()
    assert done(waiting) == [OWN_NETWORK]
    # and if too many requests wait, then one of this network is rejected
    more = await request_place(visits, *OTHER_NETWORK[24:34], "fd00:0:0:3::1")
    assert [task.get_name() for task in more if task.done()] == OTHER_NETWORK[34 - 1 : 34]
    assert isinstance(more[-2].exception(), Crowded)


async def test_a_new_address_of_a_network_with_costly_requests_does_not_come_first() -> None:
    visits = FairSemaphore(places=1, per_address=1, waiting=30)
    for address in OTHER_NETWORK[:5]:
        visits.note_cost(address, 0.3)
    visits.note_cost(OWN_NETWORK, 0.001)
    await visits.acquire("other")
    waiting = await request_place(visits, OTHER_NETWORK[9], OWN_NETWORK)
    visits.release("other")
    await run_until_idle()
    assert done(waiting) == [OWN_NETWORK]


async def test_addresses_without_a_place_take_turns() -> None:
    visits = FairSemaphore(places=1, per_address=1, waiting=100)
    await visits.acquire("a")
    waiting = await request_place(visits, "b", "b", "b", "c", "a")
    order: list[str] = []
    for _ in range(5):
        before = set(done(waiting))
        visits.release(order[-1] if order else "a")
        await run_until_idle()
        (granted,) = [task for task in waiting if task.done() and task.get_name()]
        order.append(granted.get_name())
        waiting.remove(granted)
        assert before == set()
    assert order == ["b", "c", "a", "b", "b"]


async def test_an_address_whose_requests_cost_more_waits_for_the_others() -> None:
    # given two addresses with costly requests, and one with cheap requests
    visits = FairSemaphore(places=1, per_address=1, waiting=100)
    for address, cost in (("costly", 0.2), ("costlier", 0.3), ("cheap", 0.001)):
        visits.note_cost(address, cost)
    await visits.acquire("other")
    # when all of them wait, the cheap one last, then the cheap one is the first to get a place
    waiting = await request_place(visits, "costlier", "costly", "costly", "cheap")
    visits.release("other")
    await run_until_idle()
    assert done(waiting) == ["cheap"]
    visits.release("cheap")
    await run_until_idle()
    assert done(waiting) == ["costly", "cheap"]


async def test_the_newest_costs_count_most_and_old_costs_are_forgotten() -> None:
    visits = FairSemaphore(places=1, per_address=1, waiting=100)
    visits.note_cost("once", 1.0)
    for number in range(1024):
        visits.note_cost(f"a{number}", 0.5)
    for _ in range(5):
        visits.note_cost("a1", 0.0)
    await visits.acquire("other")
    waiting = await request_place(visits, "a0", "a1", "once")
    visits.release("other")
    await run_until_idle()
    assert done(waiting) == ["once"]
    visits.release("once")
    await run_until_idle()
    assert done(waiting) == ["a1", "once"]


async def test_an_address_has_at_most_its_share_of_free_places() -> None:
    visits = FairSemaphore(places=10, per_address=3, waiting=100)
    assert done(await request_place(visits, *["a"] * 5)) == ["a"] * 3
    assert done(await request_place(visits, "b")) == ["b"]


async def test_if_too_many_requests_wait_the_newest_of_the_address_with_most_is_rejected() -> None:
    visits = FairSemaphore(places=1, per_address=1, waiting=3)
    await visits.acquire("a")
    one, two, three, other = await request_place(visits, "a", "a", "a", "b")
    assert isinstance(three.exception(), Crowded)
    assert not any(task.done() for task in (one, two, other))


@pytest.mark.parametrize("at", ["while it waits", "as it is granted"])
async def test_a_request_that_is_cancelled_takes_no_place(at: str) -> None:
    visits = FairSemaphore(places=1, per_address=1, waiting=10)
    await visits.acquire("a")
    (cancelled,) = await request_place(visits, "b")
    (next_one,) = await request_place(visits, "c")
    if at == "as it is granted":
        visits.release("a")
        cancelled.cancel()
    else:
        cancelled.cancel()
        visits.release("a")
    await run_until_idle()
    assert cancelled.cancelled()
    assert done([next_one]) == ["c"]
    assert visits.taken == {"c": 1}
    assert visits.waiting == 0


async def test_a_request_for_several_places_waits_for_all_of_them_and_is_not_overtaken() -> None:
    # given four places, one of which is free
    visits = FairSemaphore(places=4, per_address=3, waiting=100)
    await visits.acquire("a", 3)
    # when one address requests three places, and then another one requests one
    large = asyncio.create_task(visits.acquire("b", 3), name="b")
    await run_until_idle()
    small = asyncio.create_task(visits.acquire("c", 1), name="c")
    await run_until_idle()
    # then both wait, and the first one is served first
    assert done([large, small]) == []
    visits.release("a", 3)
    await run_until_idle()
    assert done([large, small]) == ["b", "c"]
    assert visits.taken == {"b": 3, "c": 1}


async def test_if_addresses_have_equally_many_requests_the_newest_is_rejected() -> None:
    """The kubelet's requests are older."""
    visits = FairSemaphore(places=1, per_address=1, waiting=3)
    await visits.acquire("a")
    waiting = await request_place(visits, "kubelet", "hostile 1", "hostile 2", "hostile 3")
    assert [task.get_name() for task in waiting if task.done()] == ["hostile 3"]
    assert isinstance(waiting[3].exception(), Crowded)
    visits.release("a")
    await run_until_idle()
    assert done(waiting) == ["kubelet"]
