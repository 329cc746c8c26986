"""Reads the Jobs, JobSets and PyTorchJobs whose pods are injected. They have no watch.

The author of a pod also writes its owner references. So after an owner was not found, the next request for it waits
for a pause, which grows up to LONGEST_ABSENCE_S. At most READS owners are requested at a time, and namespaces take
turns.
"""

import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass

from understudy_operator.observe.store import Key, Raw
from understudy_operator.plan.injection.owner import PATHS, Owner
from understudy_operator.runtime.api import Api, ApiError
from understudy_operator.runtime.fair_semaphore import FairSemaphore
from understudy_protocol.pauses import growing_pause_s

FIRST_ABSENCE_S, LONGEST_ABSENCE_S = 5.0, 600.0
READS, READS_OF_A_NAMESPACE = 32, 16


@dataclass(frozen=True)
class _Absence:
    """An owner that was not found."""

    until: float
    in_a_row: int


class Owners:
    def __init__(self, api: Api, steady: Callable[[], float]) -> None:
        self._api, self._steady = api, steady
        self._absent: dict[tuple[Key, str], _Absence] = {}  # by job and uid of the owner
        self._reads = FairSemaphore(READS, READS_OF_A_NAMESPACE, sys.maxsize)

    def may_exist(self, key: Key, owner: Owner) -> bool:
        """False while the pause after the last request lasts."""
        absence = self._absent.get((key, owner.uid))
        return absence is None or self._steady() >= absence.until

    def keep(self, keys: Collection[Key | None]) -> None:
        """Forget owners of all other jobs."""
        self._absent = {of: absence for of, absence in self._absent.items() if of[0] in keys}

    async def get(self, key: Key, owner: Owner) -> Raw | None:
        """None if it is gone."""
        api_version, plural = PATHS[owner.kind]
        async with self._reads.slot(key[0]):
            try:
                raw: Raw = await self._api.get(f"/apis/{api_version}/namespaces/{key[0]}/{plural}/{owner.name}")
            except ApiError as error:
                if error.status != 404:
                    raise
                raw = {}
        if raw.get("metadata", {}).get("uid") == owner.uid:
            return raw
        before = self._absent.get((key, owner.uid))
        in_a_row = 1 if before is None else before.in_a_row + 1
        until = self._steady() + growing_pause_s(FIRST_ABSENCE_S, LONGEST_ABSENCE_S, in_a_row)
        self._absent[key, owner.uid] = _Absence(until, in_a_row)
        return None
