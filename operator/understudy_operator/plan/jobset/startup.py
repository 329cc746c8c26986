"""Which replicatedJobs may have their Jobs by now: dependsOn, and startupPolicy InOrder.

Rules: a replicatedJob waits until its dependencies are Ready (each Job is ready, or has ended) or Complete (each has
succeeded). With InOrder, each waits until all Jobs of the previous one have started. The pods of the world start
together, in the place of its first replicatedJob, once the dependencies of all its replicatedJobs are met. The order
does not apply while the job is suspended: all Jobs are suspended.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from understudy_operator.plan.facts.spec import DependencyStatus, JobSpec, ReplicatedJob
from understudy_operator.plan.jobset.views import ReplicatedJobCounts

NO_COUNTS = ReplicatedJobCounts()


@dataclass(frozen=True)
class Startup:
    started: frozenset[str]  # replicatedJobs that may have Jobs
    waits_for: str  # a message about the first dependency that is not met; "" if none

    @property
    def is_complete(self) -> bool:
        return not self.waits_for


def startup(spec: JobSpec, counts: Mapping[str, ReplicatedJobCounts]) -> Startup:
    started: set[str] = set()
    waits_for = ""
    for entry in _entries(spec):
        missing = _missing(spec, entry, counts)
        if missing:
            waits_for = waits_for or missing
            continue
        started |= {group.name for group in entry}
        if spec.in_order and not spec.suspend and not _all_started(entry, counts):
            return Startup(frozenset(started), f"{_named(entry)} to be ready")
    return Startup(frozenset(started), waits_for)


def dependency_cycle(spec: JobSpec) -> str:
    """A message about replicatedJobs that wait for each other; "" if none do."""
    entries = list(_entries(spec))
    remaining = {_named(entry): entry for entry in entries}
    named = {group.name: _named(entry) for entry in entries for group in entry}
    while remaining:
        free = [
            name for name, entry in remaining.items() if not any(named[x] in remaining for x in _dependencies(entry))
        ]
        if not free:
            return (
                f"replicatedJobs[].dependsOn: {', '.join(remaining)} wait for each other, directly or through others: "
                "remove one of the dependencies"
            )
        for name in free:
            del remaining[name]
    return ""


def _dependencies(entry: tuple[ReplicatedJob, ...]) -> list[str]:
    return [dependency.name for group in entry for dependency in group.depends_on]


def _entries(spec: JobSpec) -> Iterator[tuple[ReplicatedJob, ...]]:
    """The groups that start together, in the order of replicatedJobs."""
    world = () if spec.world is None else spec.world.groups
    world_names = {group.name for group in world}
    for group in spec.replicated_jobs:
        if group.name not in world_names:
            yield (group,)
        elif group == world[0]:
            yield world


def _missing(spec: JobSpec, entry: tuple[ReplicatedJob, ...], counts: Mapping[str, ReplicatedJobCounts]) -> str:
    replicas = {group.name: group.replicas for group in spec.replicated_jobs}
    for dependency in (dependency for group in entry for dependency in group.depends_on):
        counted = counts.get(dependency.name, NO_COUNTS)
        complete = dependency.status is DependencyStatus.COMPLETE
        if replicas[dependency.name] != (counted.succeeded if complete else counted.started):
            return f"{dependency.name} to be {dependency.status.value}, which {_named(entry)} depends on"
    return ""


def _all_started(entry: tuple[ReplicatedJob, ...], counts: Mapping[str, ReplicatedJobCounts]) -> bool:
    return all(counts.get(group.name, NO_COUNTS).started == group.replicas for group in entry)


def _named(entry: tuple[ReplicatedJob, ...]) -> str:
    return ", ".join(group.name for group in entry)
