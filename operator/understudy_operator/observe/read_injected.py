"""A raw InjectedJob -> a Job with a world, whose pods another controller creates."""

from dataclasses import replace

from understudy_operator.observe.read import read_job, read_times
from understudy_operator.observe.store import Kind, Raw, Store
from understudy_operator.plan.facts.job import InjectedJob, Job
from understudy_operator.plan.facts.launcher_choice import MOST_MEMBERS
from understudy_operator.plan.facts.malformed import Malformed, PartlyMalformed
from understudy_operator.plan.facts.spec import JobSpec, Network
from understudy_operator.plan.facts.status import JobStatus, read_job_status
from understudy_operator.plan.injection.settings import PREFIX, read_injection_settings
from understudy_protocol.pod import PodGroup


def read_injected(raw: Raw) -> Job:
    metadata, spec = raw["metadata"], raw["spec"]
    target, attempt = spec["target"], int(spec.get("attempt", 0))
    settings = read_injection_settings({f"{PREFIX}{name}": text for name, text in spec.get("annotations", {}).items()})
    members = int(spec["members"])
    if not 0 <= members <= int(spec["pods"]) <= MOST_MEMBERS:
        raise Malformed(
            f"spec.pods: expected {members} (spec.members) to {MOST_MEMBERS}, got {spec['pods']}: delete the "
            f"InjectedJob, and make the {target['kind']} smaller"
        )
    world = settings.of_world(int(spec["nprocPerNode"]), members, int(spec["pods"]) - members)
    world = replace(world, host_network=bool(spec.get("hostNetwork", False)))
    groups = tuple(PodGroup(x["name"], int(x["firstGroupRank"]), int(x["podsPerJob"])) for x in spec["podGroups"])
    status, wrong = read_job_status(raw)
    created_at, completed_at = read_times(raw, status)
    job = Job(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=f"{target['uid']}-{attempt}" if attempt else target["uid"],
        generation=int(metadata.get("generation", 1)),
        resource_version=metadata["resourceVersion"],
        deleting="deletionTimestamp" in metadata,
        orphans="orphan" in metadata.get("finalizers", ()),
        created_at=created_at,
        completed_at=completed_at,
        spec=JobSpec(
            replicated_jobs=world.groups,
            world=world,
            network=Network(hostnames=False),
            drills_allowed=settings.drills_allowed,
        ),
        status=status,
        injected=InjectedJob(
            metadata["uid"], groups, int(spec.get("terminationGracePeriodSeconds", 30)), target["kind"], target["name"]
        ),
    )
    if wrong:
        raise PartlyMalformed(wrong, job)
    return job


def jobs(store: Store) -> list[Job]:
    """All readable jobs: TrainingJobs and InjectedJobs."""
    return [*store.facts(Kind.JOB, read_job), *store.facts(Kind.INJECTED, read_injected)]


def job_statuses(store: Store) -> list[tuple[Raw, JobStatus]]:
    """All jobs, even unreadable ones, with the valid fields of their statuses."""
    found = list[tuple[Raw, JobStatus]]()
    for kind in (Kind.JOB, Kind.INJECTED):
        for raw in store.all(kind):
            with store.contain_errors(kind, raw):
                found.append((raw, read_job_status(raw)[0]))
    return found
