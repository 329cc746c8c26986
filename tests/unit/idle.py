"""Lets all tasks of the event loop go on as far as they can, without a sleep."""

import asyncio


async def run_until_idle() -> None:
    """Until each task waits for something that only the test can cause."""
    for _ in range(10):
        await asyncio.sleep(0)
