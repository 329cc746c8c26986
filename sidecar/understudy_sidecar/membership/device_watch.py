"""Checks the devices of a pod of a job: a GPU that fails while a spare waits would fail its first round, and one that
fails while workers use it would fail the next round, too.

Rules: its launcher reports whether it was given devices, and looks for them when the sidecar asks. While the pod waits
for ranks, the sidecar asks every CHECK_S. The pod is unable to take ranks if not all of its devices have answered for
UNABLE_S. If they have never answered, the limit is FIRST_ANSWER_S, as in a pool: a driver may take long to initialize.

A pod with ranks is checked when a worker fails, and when a round starts its workers: beside the start, which does not
wait. If the devices have answered before, and this check finds that some are missing, the pod is unable at once: the
failure of the worker and the check agree. A check that does not finish is no evidence: without persistence mode, a
driver whose last user has ended takes seconds to initialize. All times are seconds of the monotonic clock. Pure.
"""

from understudy_protocol.launcher import CheckReadiness, Readiness

CHECK_S, CHECK_MISSING_S = 10.0, 1.0
#: A launcher that answers later hangs, or has begun to start workers.
ANSWER_S = 8.0
UNABLE_S, FIRST_ANSWER_S = 60.0, 600.0


class DeviceWatch:
    def __init__(self) -> None:
        self._check_at: float | None = None  # None: no launcher with devices is connected
        self._answer_by: float | None = None
        self._number = 0
        self._have_answered = False
        self._missing_since: float | None = None
        self._is_for_workers = False  # the next answer is to a check for workers
        self._lost_reason = ""  # why they are missing, by a check for workers; "" once they answer again
        self.reason = ""  # why they are missing now

    def on_hello(self, now: float, *, has_devices: bool) -> None:
        """The launcher has connected, or its workers have been stopped."""
        if not has_devices:
            self.on_disconnected()
        elif self._check_at is None:
            self._check_at = now

    def on_disconnected(self) -> None:
        self._check_at = self._answer_by = self._missing_since = None
        self._have_answered = self._is_for_workers = False
        self._lost_reason = self.reason = ""

    def on_workers(self, now: float) -> None:
        """A worker has failed, or a round starts the workers: a check is due."""
        if self._check_at is None or not self._have_answered:
            return
        self._is_for_workers, self._check_at = True, now

    def on_readiness(self, readiness: Readiness, now: float) -> None:
        if self._check_at is None or readiness.number != self._number or self._answer_by is None:
            return
        is_for_workers, self._is_for_workers, self._answer_by = self._is_for_workers, False, None
        if readiness.is_ready:
            self._have_answered, self._missing_since = True, None
            self._lost_reason = self.reason = ""
            self._check_at = now + CHECK_S
        else:
            if is_for_workers and readiness.lacks_devices:
                self._lost_reason = readiness.reason
            self._on_missing(readiness.reason, now)

    def due_check(self, now: float, *, is_waiting: bool) -> CheckReadiness | None:
        """A check that must be sent by now. is_waiting: the pod has no ranks, and no worker runs."""
        if not is_waiting and not self._is_for_workers:
            self._answer_by = None
        if self._answer_by is not None and now >= self._answer_by:
            self._answer_by, self._is_for_workers = None, False
            self._on_missing(f"the launcher did not answer within {ANSWER_S:g} s", now)
        if not is_waiting:
            self._missing_since, self.reason = None, ""
        if self._check_at is None or now < self._check_at or self._answer_by is not None:
            return None
        self._check_at = now + CHECK_S
        if not is_waiting and not self._is_for_workers:
            return None
        self._number, self._answer_by = self._number + 1, now + ANSWER_S
        return CheckReadiness(self._number, devices_only=True)

    def missing_reason(self, now: float) -> str:
        """Why the pod is unable to take ranks; "" if it is able."""
        if self._lost_reason or self._missing_since is None:
            return self._lost_reason
        limit_s = UNABLE_S if self._have_answered else FIRST_ANSWER_S
        return f"{self.reason}, for {limit_s:g} s" if now >= self._missing_since + limit_s else ""

    def deadline(self) -> float | None:
        if self._check_at is None:
            return None
        return self._check_at if self._answer_by is None else self._answer_by

    def _on_missing(self, reason: str, now: float) -> None:
        self.reason, self._check_at = reason, now + CHECK_MISSING_S
        if self._missing_since is None:
            self._missing_since = now
