"""Compares status with the fault that the test caused: collects the inputs of tests/e2e/truth.py."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

from tests.cluster import ClusterDown
from tests.e2e.training import GROUP_RANK
from tests.e2e.truth import Fault, Observed, Pause, Raw, Sample, Steps, differences, is_open, new_entries, pauses
from tests.e2e.waiting import wait_for_status

REPORTED_S = 60.0
SAMPLE_EVERY_S = 0.2


class Job(Protocol):
    def status(self) -> Raw: ...

    def reported_steps(self) -> Steps:
        """The steps that pods have reported to this machine, by pod."""


NO_PAUSE = Pause(0.0, 0.0)


@dataclass
class Comparison:
    """A job before a fault. The fault's entry and the pause of the training are set once both are known.

    paused_s: of the pod that steps first after the fault. 0.0 if the times of no pause are known, as when the whole job
    restarts.
    """

    job: Job
    before: Raw = field(init=False)
    known: frozenset[str] = field(init=False)
    at: float = field(init=False)
    samples: Sequence[Sample] = ()
    recovery: Raw = field(default_factory=dict)
    paused_s: float = 0.0

    def __post_init__(self) -> None:
        self.before = self.job.status()
        self.known = frozenset(entry["detectedAt"] for entry in self.before.get("recoveries", ()))
        self.at = time.time()

    def check(self, fault: Fault | None, limit_s: float = REPORTED_S) -> None:
        """Wait until the recovery from the fault has ended, and raise AssertionError if status is not true."""
        status = self._ended(limit_s) if fault else self.job.status()
        steps = self.job.reported_steps()
        found = differences(fault, Observed(self.at, self.known, steps, self.samples, self.before), status)
        assert not found, "\n".join([*found, json.dumps(status, indent=1)])
        if fault:
            self.recovery = new_entries(status, self.known)[-1]
            self.paused_s = min(pauses(steps, self.at), key=lambda pause: pause.first, default=NO_PAUSE).seconds

    def _ended(self, limit_s: float) -> Raw:
        def ended(status: Raw) -> bool:
            entries = new_entries(status, self.known)
            return bool(entries) and not any(map(is_open, entries))

        return wait_for_status("the recovery has ended", self.job.status, ended, limit_s, seen=self.job.status)


@contextmanager
def compared(job: Job, fault: Fault | None, limit_s: float = REPORTED_S) -> Iterator[Comparison]:
    """Compare status with the fault that the body causes, or None if the body stops no training."""
    comparison = Comparison(job)
    with sampled(job.status) as comparison.samples:
        yield comparison
        comparison.check(fault, limit_s)


@contextmanager
def sampled(status: Callable[[], Raw]) -> Iterator[Sequence[Sample]]:
    """The statuses that a thread reads while the body runs."""
    samples: list[Sample] = []
    is_done = threading.Event()

    def sample() -> None:
        while not is_done.wait(SAMPLE_EVERY_S):
            requested_at = time.time()
            with suppress(ClusterDown):
                read = status()
                samples.append(Sample(requested_at, time.time(), read))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        is_done.set()
        thread.join()


def fault_of(pod: Raw, kind: str, *strategies: str) -> Fault:
    """A fault that stops this pod, or its only worker."""
    metadata = pod["metadata"]
    rank = int(metadata["annotations"][GROUP_RANK])
    return Fault(kind, strategies, metadata["name"], pod["spec"]["nodeName"], rank)
