"""Whether the script itself is at fault, so that no restart, spare or other node can help. Pure.

Rules: the script is at fault if all workers of a round fail before the first step, with the same exception, in as many
rounds in a row as the job allows. Two exceptions are the same if their exit codes and texts are equal; numbers in the
texts are ignored, because they differ by rank, address or pid. A signal is no exception. A round in which a rank does
not fail, or fails in another way, resets the count, and so does a step (backoff.py). A new coordinator counts from
zero.
"""

import re
from dataclasses import dataclass, field

from understudy_protocol import membership as m
from understudy_protocol.enums import NO_ROUND, RoundToken

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|[0-9]+")
_Exception = tuple[int, str]


@dataclass
class ScriptFault:
    """The newest rounds that failed."""

    rounds: int  # in a row that show that the script is at fault; 0: never
    _token: RoundToken = NO_ROUND
    _workers: set[tuple[str, int]] = field(default_factory=set)  # that failed in that round: pod uid, local rank
    _exceptions: set[_Exception | None] = field(default_factory=set)  # of these
    _last: _Exception | None = None  # of the newest round in which all failed with the same one
    _in_row: int = 0

    def on_worker_failed(self, uid: str, failed: m.WorkerFailed, workers: int, fruitless: int) -> str:
        """Why the job must end; "" if it continues.

        workers: of the round. fruitless: how many rounds in a row have failed before their first step.
        """
        if failed.token != self._token:
            if len(self._workers) < workers or len(self._exceptions) > 1:
                self._in_row = 0
            self._token, self._workers, self._exceptions = failed.token, set(), set()
        if (uid, failed.local_rank) in self._workers:
            return ""
        self._workers.add((uid, failed.local_rank))
        self._exceptions.add(_exception(failed))
        if len(self._workers) < workers or len(self._exceptions) > 1:
            return ""
        (exception,) = self._exceptions
        before = self._in_row if exception == self._last else 0
        self._last, self._in_row = exception, 0 if exception is None else min(before + 1, fruitless)
        if not 0 < self.rounds <= self._in_row:
            return ""
        ranks = f"all {workers} ranks" if workers > 1 else "its only rank"
        row = f"in {self._in_row} rounds in a row" if self._in_row > 1 else "in one round"
        return f"the script failed on {ranks} before its first step, {row}: {failed.message}"


def _exception(failed: m.WorkerFailed) -> _Exception | None:
    return None if failed.exit_code is None else (failed.exit_code, _NUMBER.sub("#", failed.message))
