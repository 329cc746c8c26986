"""A TrainingJob, or an InjectedJob, with the facts that its status records."""

from collections.abc import Sequence
from dataclasses import dataclass

from understudy_operator.plan.facts.queue import Queue
from understudy_operator.plan.facts.sidecar_settings import DEFAULT_SIDECAR_SETTINGS, SidecarSettings
from understudy_operator.plan.facts.spec import JobSpec, World
from understudy_operator.plan.facts.status import JobStatus
from understudy_protocol.pod import PodGroup


@dataclass(frozen=True)
class InjectedJob:
    """The facts of an InjectedJob beyond those of a job with a world."""

    uid: str  # of the InjectedJob itself
    groups: tuple[PodGroup, ...]
    grace_s: int
    target_kind: str
    target_name: str


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
    status: JobStatus
    orphans: bool = False  # it is deleted without its pods
    queue: Queue | None = None  # of Kueue
    sidecar_settings: SidecarSettings = DEFAULT_SIDECAR_SETTINGS  # of its pods
    drill_request: str = ""  # the annotation understudy.dev/drill
    injected: InjectedJob | None = None  # a Job controller creates its pods; uid is then Owner.membership

    @property
    def world(self) -> World:
        """The world. Fails for a job without a launcher."""
        assert self.spec.world is not None
        return self.spec.world

    @property
    def needs_service(self) -> bool:
        """Whether members find their coordinator by a Service. A single member is its own coordinator. An injected job
        gets more pods from its controller without a change that the operator sees first.
        """
        world = self.spec.world
        return world is not None and (self.injected is not None or world.has_several_members)

    @property
    def terminal(self) -> bool:
        """Whether it has ended, according to status."""
        return bool(self.status.terminal_state)

    @property
    def previous_epoch(self) -> int:
        """The name of the attempt of the world: the newest epoch before it; 0 in the first one."""
        return self.status.coordinator.former_epoch

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
        return self.status.coordinator.previous_attempt

    @property
    def membership(self) -> str:
        """The job uid under which members authenticate: pods of one attempt cannot join another one."""
        return f"{self.uid}-{self.attempt}" if self.attempt else self.uid

    @property
    def restarts(self) -> int:
        """Restarts of the whole job."""
        return self.status.restarts

    @property
    def job_restarts_counted(self) -> int:
        """Restarts of the whole job that count towards maxRestarts."""
        return self.status.restarts_count_towards_max

    @property
    def restarts_counted(self) -> int:
        """All restarts that count towards maxRestarts, also those of single Jobs."""
        entries = self.status.replicated_jobs_status
        return self.job_restarts_counted + sum(sum(entry.job_restarts_count_towards_max) for entry in entries)

    def restarts_of(self, group: str, index: int) -> int:
        """Restarts of a single Job."""
        entry = self.status.replicated_job(group)
        return 0 if entry is None else _at(entry.job_restarts, index)

    def counted_restarts_of(self, group: str, index: int) -> int:
        entry = self.status.replicated_job(group)
        return 0 if entry is None else _at(entry.job_restarts_count_towards_max, index)

    @property
    def round(self) -> int:
        """The newest round in status; -1 before the first."""
        return self.status.round


def _at(counts: Sequence[int], index: int) -> int:
    return counts[index] if index < len(counts) else 0
