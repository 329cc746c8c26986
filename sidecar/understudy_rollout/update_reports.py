"""Inside a TrainingJob: reports each weight update to the sidecar when it begins and when it has ended.

The operator sets UNDERSTUDY_ROLLOUTS_SOCKET in the trainers of a job with `rollouts`; elsewhere nothing is reported. A
report has the number of the process's replicas in each state, and the failure of the last update, if it failed.
status.rollouts shows it, and a failure that must not be retried restarts the job. The fields are those of Replicas in
understudy_protocol, which trainers do not have.

Rules: a report never fails an update, and delays it by at most REPORT_LIMIT_S. A failed report is logged, and added as
a note to the update's error.
"""

import asyncio
import functools
import json
import logging
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any, Optional

from understudy_rollout.engine import Replica
from understudy_rollout.failures import UpdateFailed, describe, note
from understudy_rollout.weights import NO_FENCE, Fence, Weights, WeightsState

ENV_SOCKET = "UNDERSTUDY_ROLLOUTS_SOCKET"  # also in understudy_protocol.pod
ENV_ROUND = "UNDERSTUDY_ROUND"
REPORT_LIMIT_S = 5.0
MAX_MESSAGE_CHARACTERS = 500
MAX_BLOCKED_NAMED = 64
_WIRE_VERSION = 2
_ACCEPTED = "taken"
log = logging.getLogger(__name__)


class ReportFailed(UpdateFailed):
    """The sidecar did not accept the report."""


class JobLink:
    """One worker's reports to its sidecar, for as long as the worker lives."""

    def __init__(self, socket: str, fence: Fence, rank: int) -> None:
        self.fence = fence
        self._socket, self._rank = socket, rank
        self._replicas: dict[str, Weights] = {}  # of all updates so far
        self._version = ""
        self._failed_in_a_row = 0
        self._failed_update = ""  # the last update that was counted

    async def begun(self, replicas: Iterable[Replica]) -> None:
        self._replicas.update((replica.name, replica.weights) for replica in replicas)
        await self._report_or_log(None)

    async def completed(self, version: str) -> None:
        self._version, self._failed_in_a_row = version, 0
        await self._report_or_log(None)

    async def called_off(self) -> None:
        """The update was canceled, and every replica has its previous weights."""
        await self._report_or_log(None)

    async def failed(self, update: str, version: str, error: BaseException, blocked: Iterable[str]) -> None:
        """A second call for the same update does not count again."""
        self._failed_in_a_row += update != self._failed_update
        self._failed_update = update
        failure = {
            "update": update,
            "version": version,
            "message": describe(error)[:MAX_MESSAGE_CHARACTERS],
            "in_a_row": self._failed_in_a_row,
            "at": time.time(),
            "blocked": list(blocked)[:MAX_BLOCKED_NAMED],
        }
        unsent = await self._report_or_log(failure)
        if unsent is not None:
            note(error, f"and the report to the job's sidecar failed: {describe(unsent)}")

    async def _report_or_log(self, failure: Optional[Mapping[str, Any]]) -> Optional[Exception]:
        try:
            await asyncio.wait_for(self._send_report(failure), REPORT_LIMIT_S)
        except (OSError, EOFError, UpdateFailed, asyncio.TimeoutError) as error:
            log.warning("cannot report the weight update to the job's sidecar: %s", describe(error))
            return error
        return None

    async def _send_report(self, failure: Optional[Mapping[str, Any]]) -> None:
        reader, writer = await asyncio.open_unix_connection(self._socket)
        try:
            writer.write(json.dumps(self._report_fields(failure)).encode() + b"\n")
            answer = (await reader.readline()).decode(errors="replace").strip()
        finally:
            writer.close()
        if answer != _ACCEPTED:
            raise ReportFailed(f"{self._socket}: expected {_ACCEPTED!r}, the sidecar answered {answer!r}")

    def _report_fields(self, failure: Optional[Mapping[str, Any]]) -> dict[str, Any]:
        epoch, term, number = self.fence
        states = [weights.state for weights in self._replicas.values()]
        return {
            "v": _WIRE_VERSION,
            "type": "Replicas",
            "token": {"epoch": epoch, "term": term, "round": number},
            "rank": self._rank,
            "fresh": states.count(WeightsState.FRESH),
            "updating": states.count(WeightsState.UPDATING),
            "uncertain": states.count(WeightsState.UNCERTAIN),
            "version": self._version,
            "failure": failure,
        }


def fence_of(environment: Mapping[str, str]) -> Fence:
    """The round of this worker; NO_FENCE outside a job. Raises ValueError."""
    written = environment.get(ENV_ROUND, "")
    if not written:
        return NO_FENCE
    parts = written.split(".")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        raise ValueError(f"{ENV_ROUND}: expected epoch.term.round, three numbers; got {written!r}")
    return int(parts[0]), int(parts[1]), int(parts[2])


def link_from(environment: Mapping[str, str]) -> Optional[JobLink]:
    """None outside a job with rollouts."""
    socket = environment.get(ENV_SOCKET, "")
    if not socket:
        return None
    return JobLink(socket, fence_of(environment), int(environment.get("RANK", "0")))


@functools.cache
def link_of_this_process() -> Optional[JobLink]:
    """A worker is a fork of a process that has no round, so the environment is read at the first use."""
    return link_from(os.environ)


os.register_at_fork(after_in_child=link_of_this_process.cache_clear)
