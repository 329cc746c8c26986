"""Tests of the sidecar run on the loop that it runs on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from tests.unit.sidecar.recording_handler import HealthyMember, ServedSidecar, serving


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def served() -> AsyncIterator[ServedSidecar]:
    """A real server, and the hall that its callers come to."""
    async with serving() as it:
        yield it


@pytest.fixture
async def healthy(served: ServedSidecar) -> AsyncIterator[HealthyMember]:
    """A member of it, which is served before the test and after it."""
    async with served.member() as link:
        member = HealthyMember(served, link)
        await member.assert_served()
        yield member
        await member.assert_served()
