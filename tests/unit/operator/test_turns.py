"""Places that addresses take in turn."""

import asyncio
from collections.abc import Iterable

import pytest

from understudy_operator.turns import Crowded, Turns


async def asked(turns: Turns, *addresses: str) -> list["asyncio.Task[None]"]:
    """A request of each address, in this order; those that have a place are done."""
    tasks = [asyncio.create_task(turns.take(address), name=address) for address in addresses]
    await settled()
    return tasks


async def settled() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def done(tasks: Iterable["asyncio.Task[None]"]) -> list[str]:
    return [task.get_name() for task in tasks if task.done() and task.exception() is None]


async def test_a_place_goes_to_the_address_with_fewest_and_not_to_the_one_that_asks_most() -> None:
    # given an address with all places and many requests
    turns = Turns(places=4, per_address=4, waiting=100)
    await asked(turns, *["hostile"] * 4)
    waiting = await asked(turns, *["hostile"] * 20, "other")
    assert done(waiting) == []
    # when one place is free
    turns.leave("hostile")
    await settled()
    # then the other address has it, although it was the last one to ask
    assert done(waiting) == ["other"]


THEIRS = [f"fd00:0:0:2::{number:x}" for number in range(40)]
OURS = "fd00:0:0:1::5"


@pytest.mark.attack(
    "D2", "requests from many addresses of one IPv6 network", before="each of them had a turn of its own"
)
async def test_the_addresses_of_one_network_share_its_turn() -> None:
    # given a network with all places, and many addresses of it that wait
    turns = Turns(places=4, per_address=4, waiting=30)
    await asked(turns, *THEIRS[:4])
    waiting = await asked(turns, *THEIRS[4:24], OURS)
    # when a place is free, then an address of another network has it
    turns.leave(THEIRS[0])
    await settled()
    assert done(waiting) == [OURS]
    # and if too many wait, then one of theirs is refused
    more = await asked(turns, *THEIRS[24:34], "fd00:0:0:3::1")
    assert [task.get_name() for task in more if task.done()] == THEIRS[34 - 1 : 34]
    assert isinstance(more[-2].exception(), Crowded)


async def test_a_new_address_of_a_network_with_costly_requests_does_not_come_first() -> None:
    turns = Turns(places=1, per_address=1, waiting=30)
    for address in THEIRS[:5]:
        turns.note_cost(address, 0.3)
    turns.note_cost(OURS, 0.001)
    await turns.take("other")
    waiting = await asked(turns, THEIRS[9], OURS)
    turns.leave("other")
    await settled()
    assert done(waiting) == [OURS]


async def test_addresses_without_a_place_take_turns() -> None:
    turns = Turns(places=1, per_address=1, waiting=100)
    await turns.take("a")
    waiting = await asked(turns, "b", "b", "b", "c", "a")
    order: list[str] = []
    for _ in range(5):
        before = set(done(waiting))
        turns.leave(order[-1] if order else "a")
        await settled()
        (granted,) = [task for task in waiting if task.done() and task.get_name()]
        order.append(granted.get_name())
        waiting.remove(granted)
        assert before == set()
    assert order == ["b", "c", "a", "b", "b"]


async def test_an_address_whose_requests_cost_more_waits_for_the_others() -> None:
    # given two addresses with costly requests, and one with cheap ones
    turns = Turns(places=1, per_address=1, waiting=100)
    for address, cost in (("costly", 0.2), ("costlier", 0.3), ("cheap", 0.001)):
        turns.note_cost(address, cost)
    await turns.take("other")
    # when all of them wait, the cheap one last, then it is the first one
    waiting = await asked(turns, "costlier", "costly", "costly", "cheap")
    turns.leave("other")
    await settled()
    assert done(waiting) == ["cheap"]
    turns.leave("cheap")
    await settled()
    assert done(waiting) == ["costly", "cheap"]


async def test_the_newest_costs_count_most_and_an_addresss_costs_are_forgotten_in_time() -> None:
    turns = Turns(places=1, per_address=1, waiting=100)
    turns.note_cost("once", 1.0)
    for number in range(1024):
        turns.note_cost(f"a{number}", 0.5)
    for _ in range(5):
        turns.note_cost("a1", 0.0)
    await turns.take("other")
    waiting = await asked(turns, "a0", "a1", "once")
    turns.leave("other")
    await settled()
    assert done(waiting) == ["once"]
    turns.leave("once")
    await settled()
    assert done(waiting) == ["a1", "once"]


async def test_an_address_has_at_most_its_share_of_free_places() -> None:
    turns = Turns(places=10, per_address=3, waiting=100)
    assert done(await asked(turns, *["a"] * 5)) == ["a"] * 3
    assert done(await asked(turns, "b")) == ["b"]


async def test_if_too_many_wait_the_newest_of_the_address_with_most_is_refused() -> None:
    turns = Turns(places=1, per_address=1, waiting=3)
    await turns.take("a")
    one, two, three, other = await asked(turns, "a", "a", "a", "b")
    assert isinstance(three.exception(), Crowded)
    assert not any(task.done() for task in (one, two, other))


@pytest.mark.parametrize("at", ["while it waits", "as it is granted"])
async def test_a_request_that_is_cancelled_takes_no_place(at: str) -> None:
    turns = Turns(places=1, per_address=1, waiting=10)
    await turns.take("a")
    (cancelled,) = await asked(turns, "b")
    (next_one,) = await asked(turns, "c")
    if at == "as it is granted":
        turns.leave("a")
        cancelled.cancel()
    else:
        cancelled.cancel()
        turns.leave("a")
    await settled()
    assert cancelled.cancelled()
    assert done([next_one]) == ["c"]
    assert turns.taken == {"c": 1}
    assert turns.waiting == 0


async def test_a_request_for_several_places_waits_for_all_of_them_and_is_not_overtaken() -> None:
    # given four places, of which one is free
    turns = Turns(places=4, per_address=3, waiting=100)
    await turns.take("a", 3)
    # when one address asks for three, and then another one for one
    large = asyncio.create_task(turns.take("b", 3), name="b")
    await settled()
    small = asyncio.create_task(turns.take("c", 1), name="c")
    await settled()
    # then both wait, and the first one is served first
    assert done([large, small]) == []
    turns.leave("a", 3)
    await settled()
    assert done([large, small]) == ["b", "c"]
    assert turns.taken == {"b": 3, "c": 1}


async def test_of_addresses_with_as_many_requests_the_newest_is_refused() -> None:
    """The kubelet has asked before them."""
    turns = Turns(places=1, per_address=1, waiting=3)
    await turns.take("a")
    waiting = await asked(turns, "kubelet", "hostile 1", "hostile 2", "hostile 3")
    assert [task.get_name() for task in waiting if task.done()] == ["hostile 3"]
    assert isinstance(waiting[3].exception(), Crowded)
    turns.leave("a")
    await settled()
    assert done(waiting) == ["kubelet"]
