"""Which connection without a proof is closed, and when. test_strangers.py tests it over real connections."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.virtual_time import in_virtual_time
from understudy_sidecar.waiting_connections import WaitingConnections

A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"


class Waiting:
    def __init__(self, peer: str = A) -> None:
        self.peer = peer
        self.reasons: list[str] = []

    def evict(self, reason: str) -> None:
        self.reasons.append(reason)


@pytest.fixture
async def waiting() -> WaitingConnections:
    """At most 5 connections in all and 3 of an address, for 5 s each."""
    return WaitingConnections(5, 3, 5.0)


def add(waiting: WaitingConnections, *peers: str) -> list[Waiting]:
    made = [Waiting(peer) for peer in peers]
    for connection in made:
        waiting.add(connection)
    return made


def periods(waiting: WaitingConnections, count: int) -> None:
    """Let the timer fire so many times: it fires once a second."""
    for _ in range(count):
        waiting._on_time()


def evicted(connections: list[Waiting]) -> list[int]:
    return [number for number, connection in enumerate(connections) if connection.reasons]


async def test_each_connection_has_its_time_and_no_more(waiting: WaitingConnections) -> None:
    (early,) = add(waiting, A)
    periods(waiting, 1)
    (late,) = add(waiting, A)
    periods(waiting, 3)
    assert early.reasons == []
    periods(waiting, 1)
    assert early.reasons == ["it did not prove the job's key within 5 s"]
    assert (late.reasons, len(waiting)) == ([], 1)
    periods(waiting, 1)
    assert (len(late.reasons), len(waiting)) == (1, 0)


@pytest.mark.attack("D1", "a connection that sends nothing", before="it stayed for 6 s")
@in_virtual_time
async def test_a_connection_waits_for_five_seconds_at_most() -> None:
    # given a timer that fires once a second, and a connection that comes just after it has fired
    waiting, loop = WaitingConnections(5, 3, 5.0), asyncio.get_running_loop()
    (first,) = add(waiting, A)
    await asyncio.sleep(1.001)
    (second,) = add(waiting, A)
    # then each is evicted before 5 s have passed
    await asyncio.sleep(5.001 - loop.time())
    assert (len(first.reasons), len(second.reasons)) == (1, 0)
    await asyncio.sleep(6.001 - loop.time())
    assert len(second.reasons) == 1


async def test_a_connection_that_was_removed_is_not_evicted(waiting: WaitingConnections) -> None:
    (proven,) = add(waiting, A)
    waiting.remove(proven)
    waiting.remove(proven)
    periods(waiting, 5)
    assert proven.reasons == []


async def test_an_address_with_too_many_loses_its_oldest(waiting: WaitingConnections) -> None:
    (other,) = add(waiting, B)
    made = add(waiting, A, A, A, A)
    assert evicted(made) == [0]
    assert made[0].reasons == ["its address has opened 3 newer connections"]
    assert (other.reasons, len(waiting)) == ([], 4)


@pytest.mark.attack("D1", "connections from many addresses of one IPv6 network", before="each of them evicted a member")
async def test_a_network_whose_addresses_have_one_connection_each_evicts_its_own(waiting: WaitingConnections) -> None:
    (member,) = add(waiting, "fd00:0:0:1::5")
    flood = add(waiting, *(f"fd00:0:0:2::{number:x}" for number in range(20)))
    assert member.reasons == []
    assert evicted(flood) == list(range(16))


async def test_a_flood_from_the_network_of_a_member_evicts_its_own_connections(waiting: WaitingConnections) -> None:
    (member,) = add(waiting, "fd00:0:0:1::5")
    flood = add(waiting, *["fd00:0:0:1::6"] * 3, *["fd00:0:0:1::7"] * 3)
    assert member.reasons == []
    assert evicted(flood) == [0, 3]
    for connection in flood:
        waiting.remove(connection)
    assert len(waiting) == 1


async def test_when_too_many_wait_the_address_with_the_most_loses_its_oldest(waiting: WaitingConnections) -> None:
    """A flood from a few addresses evicts its own connections, though a member's is older than all of them."""
    (member,) = add(waiting, B)
    flood = add(waiting, A, A, A, C, C, C, C)
    assert member.reasons == []
    assert evicted(flood) == [0, 3, 4]
    assert flood[0].reasons == ["5 connections are waiting for a handshake, most of them from its address"]
    assert len(waiting) == 5


async def test_the_address_with_the_most_connections_is_known_after_some_have_ended(
    waiting: WaitingConnections,
) -> None:
    first, second, *_ = made = add(waiting, A, A, A, B, B)
    waiting.remove(first)
    waiting.remove(second)
    waiting.evict_one("no more files")
    assert evicted(made) == [3]
    waiting.evict_one("no more files")
    waiting.evict_one("no more files")
    assert evicted(made) == [2, 3, 4]
    waiting.evict_one("none is left")
    assert len(waiting) == 0
