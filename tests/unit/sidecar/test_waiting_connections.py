"""Who has to leave the lobby, and when; over real connections: test_strangers.py."""

from __future__ import annotations

import pytest

from understudy_sidecar import lobby as lobby_module
from understudy_sidecar.lobby import Lobby

LIMIT_S = 5.0


class Guest:
    def __init__(self) -> None:
        self.has_unread = False
        self.reasons: list[str] = []

    def unread(self) -> bool:
        return self.has_unread

    def turn_out(self, reason: str) -> None:
        self.reasons.append(reason)


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(lobby_module, "now", made)
    return made


@pytest.fixture
async def lobby() -> Lobby:
    return Lobby(3, LIMIT_S)


async def test_each_has_its_time_and_no_more(lobby: Lobby, time: Time) -> None:
    early, late = Guest(), Guest()
    lobby.enter(early)
    time.now += 1.0
    lobby.enter(late)
    time.now += LIMIT_S - 1.0
    lobby._on_time()
    assert early.reasons == ["no proof of the job's key within 5 s"]
    assert late.reasons == []
    time.now += 1.0
    lobby._on_time()
    assert (len(late.reasons), len(lobby)) == (1, 0)


async def test_who_left_is_not_turned_out(lobby: Lobby, time: Time) -> None:
    proven = Guest()
    lobby.enter(proven)
    lobby.leave(proven)
    lobby.leave(proven)
    time.now += LIMIT_S
    lobby._on_time()
    assert proven.reasons == []


async def test_one_that_waits_for_us_has_as_long_again_and_keeps_nobody_else_in(lobby: Lobby, time: Time) -> None:
    waits, idle = Guest(), Guest()
    waits.has_unread = True
    lobby.enter(waits)
    time.now += 1.0
    lobby.enter(idle)
    time.now += LIMIT_S - 1.0
    lobby._on_time()
    time.now += 1.0
    lobby._on_time()
    assert (len(waits.reasons), len(idle.reasons)) == (0, 1)
    waits.has_unread = False
    time.now += LIMIT_S - 1.0
    lobby._on_time()
    assert len(waits.reasons) == 1


async def test_when_it_is_full_the_one_that_came_first_goes(lobby: Lobby) -> None:
    guests = [Guest() for _ in range(5)]
    for guest in guests:
        lobby.enter(guest)
    assert [bool(guest.reasons) for guest in guests] == [True, True, False, False, False]
    assert guests[0].reasons == ["3 callers that proved nothing came after it"]


async def test_there_is_nobody_to_make_room_in_an_empty_one(lobby: Lobby) -> None:
    lobby.make_room("it is full")
    assert len(lobby) == 0
