"""What is listed how often."""

from collections import Counter

import pytest

from understudy_operator.apply.api import Api, ApiError, Listed
from understudy_operator.clock import Clock
from understudy_operator.observe.store import Kind, Store
from understudy_operator.resync import PATHS, RESYNC_S, RESYNC_WATCHED_S, Resync

PODS = PATHS[Kind.POD][0]


class Lists(Api):
    def __init__(self, failing: str = "") -> None:
        super().__init__(None)
        self.asked: Counter[str] = Counter()
        self._failing = failing  # the first time

    async def list(self, path: str, selector: str = "") -> Listed:
        self.asked[path] += 1
        if path == self._failing and self.asked[path] == 1:
            raise ApiError(500, "InternalError", "etcdserver: leader changed")
        return Listed([], "7")


async def test_what_has_a_watch_of_our_own_is_listed_once_and_then_seldom() -> None:
    # given an operator that watches pods itself
    now = 1000.0
    api, clock = Lists(), Clock(steady=lambda: now)
    lists = Resync(api, Store(clock.steady), clock, lambda: None, watched=(Kind.POD,))
    # when all is listed at the start, and then every minute
    while now < 1000.0 + RESYNC_WATCHED_S:
        await lists.list_all(lists.due())
        now += RESYNC_S
    # then pods were listed at the start alone, and again once their time has come
    assert (api.asked[PODS], api.asked[PATHS[Kind.NODE][0]]) == (1, RESYNC_WATCHED_S / RESYNC_S)
    await lists.list_all(lists.due())
    assert api.asked[PODS] == 2


async def test_a_watch_that_has_listed_its_kind_anew_is_believed() -> None:
    now = 1000.0
    api, clock = Lists(), Clock(steady=lambda: now)
    lists = Resync(api, Store(clock.steady), clock, lambda: None, watched=(Kind.POD,))
    assert await lists.list_kind(Kind.POD) == await lists.first(Kind.POD) == "7"
    await lists.list_all(lists.due())
    assert api.asked[PODS] == 1


async def test_a_list_that_fails_is_repeated_and_not_those_before_it() -> None:
    # given an API server that fails once, in the middle
    api, clock = Lists(failing=PODS), Clock()
    lists = Resync(api, Store(clock.steady), clock, lambda: None)
    due = lists.due()
    with pytest.raises(ApiError):
        await lists.list_all(due)
    # when it goes on
    await lists.list_all(due)
    # then all is listed, and nothing else twice
    assert api.asked == {path: 2 if path == PODS else 1 for path, _ in PATHS.values()}
