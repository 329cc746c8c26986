"""A TrainingJob, or an InjectedJob, with what its status records."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from understudy_operator.plan.facts.injected_job import InjectedJob
from understudy_operator.plan.facts.queue import Queue
from understudy_operator.plan.facts.spec import JobSpec, World
from understudy_protocol.logs import TEXT


@dataclass(frozen=True)
class Job:
    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    deleting: bool
    created_at: float
    completed_at: float | None  # from status
    spec: JobSpec
    status: Mapping[str, Any]
    orphans: bool = False  # it is deleted without its pods
    queue: Queue | None = None  # of Kueue
    log_format: str = TEXT  # of the sidecars of its pods
    injected: InjectedJob | None = None  # a Job controller creates its pods; uid is then Owner.membership

    @property
    def world(self) -> World:
        """The world. Fails for a job without a launcher."""
        assert self.spec.world is not None
        return self.spec.world

    @property
    def terminal(self) -> bool:
        """Whether it has ended, according to status."""
        return bool(self.status.get("terminalState"))

    @property
    def previous_epoch(self) -> int:
        """The name of the attempt of the world: the newest epoch before it; 0 in the first one."""
        return int(self.status.get("coordinator", {}).get("formerEpoch", 0))

    @property
    def attempt(self) -> int:
        """The number of the world's attempt, whose pods share a key; 0 in the first one. It grows with each attempt.

        Always 0 if the job is injected: its pods are created with their Secret's name, so a suspension does not change
        it. They follow the newest epoch. Each attempt of a JobSet has its own InjectedJob and uid.
        """
        return self.previous_epoch if self.injected is None else 0

    @property
    def previous_attempt(self) -> int | None:
        """The attempt before this one; None in the first one."""
        previous = self.status.get("coordinator", {}).get("previousAttempt")
        return None if previous is None else int(previous)

    @property
    def membership(self) -> str:
        """The job uid under which members authenticate: pods of one attempt cannot join another one."""
        return f"{self.uid}-{self.attempt}" if self.attempt else self.uid

    @property
    def restarts(self) -> int:
        """Restarts of the whole job."""
        return int(self.status.get("restarts", 0))

    @property
    def job_restarts_counted(self) -> int:
        """Restarts of the whole job that count towards maxRestarts."""
        return int(self.status.get("restartsCountTowardsMax", 0))

    @property
    def restarts_counted(self) -> int:
        """All restarts that count towards maxRestarts, also those of single Jobs."""
        entries = self.status.get("replicatedJobsStatus", ())
        return self.job_restarts_counted + sum(sum(x.get("jobRestartsCountTowardsMax", ())) for x in entries)

    def restarts_of(self, group: str, index: int) -> int:
        """Restarts of a single Job."""
        return self._of_job(group, index, "jobRestarts")

    def counted_restarts_of(self, group: str, index: int) -> int:
        return self._of_job(group, index, "jobRestartsCountTowardsMax")

    def _of_job(self, group: str, index: int, field: str) -> int:
        entries = self.status.get("replicatedJobsStatus", ())
        counts = next((entry.get(field, ()) for entry in entries if entry["name"] == group), ())
        return int(counts[index]) if index < len(counts) else 0

    @property
    def round(self) -> int:
        """The newest round in status; -1 before the first."""
        return int(self.status.get("round", -1))
