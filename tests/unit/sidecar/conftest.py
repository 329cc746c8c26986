"""Tests of the sidecar run on its event loop."""

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
    """A real server, and a handler that records its callers."""
    async with serving() as it:
        yield it


@pytest.fixture
async def healthy(served: ServedSidecar) -> AsyncIterator[HealthyMember]:
    """A member that is connected to the server, and that the server must answer before the test and after it."""
    async with served.member() as link:
        member = HealthyMember(served, link)
        await member.assert_served()
        yield member
        await member.assert_served()
