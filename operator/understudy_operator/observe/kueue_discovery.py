"""Detects whether the cluster has Kueue: whether the API server serves the API group of Kueue's CRDs.

Rules: the operator asks at the start and every EVERY_S, because Kueue may be installed or removed at any time. Nothing
waits for the answer. An answer other than "yes" or "not found" changes nothing.
"""

import asyncio
import logging
from collections.abc import Callable

from understudy_operator.plan.facts.queue import API_GROUP
from understudy_operator.runtime.api import API_FAILURES, Api, ApiError
from understudy_operator.runtime.clock import jittered

EVERY_S = 30.0
log = logging.getLogger(__name__)


class KueueDiscovery:
    """on_change: called when the answer has changed."""

    def __init__(self, api: Api, on_change: Callable[[], None]) -> None:
        self._api, self._on_change = api, on_change
        self.present: bool | None = None  # None: not known yet

    async def run(self) -> None:
        while True:
            await self.run_once()
            await asyncio.sleep(jittered(EVERY_S))

    async def run_once(self) -> None:
        """Ask the API server. Errors are logged."""
        try:
            await self._api.get(f"/apis/{API_GROUP}")
            present = True
        except API_FAILURES as error:
            if not isinstance(error, ApiError) or error.status != 404:
                log.warning("could not find out whether the cluster has Kueue; retrying: %r", error)
                return
            present = False
        if present != self.present:
            log.info("the cluster has %s (API group %s)", "Kueue" if present else "no Kueue", API_GROUP)
            self.present = present
            self._on_change()
