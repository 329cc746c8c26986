"""A raw InjectedJob -> a Job with a world, whose pods somebody else makes."""

import base64
import json

from understudy_operator.observe.read import read_times
from understudy_operator.observe.store import Raw
from understudy_operator.plan.injection.facts import InjectedJob
from understudy_operator.plan.injection.settings import PREFIX, read_settings
from understudy_operator.plan.observed import Job
from understudy_operator.plan.spec import JobSpec, Network
from understudy_protocol import pod as names
from understudy_protocol.pod import PodGroup


def read_injected(raw: Raw) -> Job:
    metadata, spec = raw["metadata"], raw["spec"]
    target, attempt = spec["target"], int(spec.get("attempt", 0))
    settings = read_settings({f"{PREFIX}{name}": text for name, text in spec.get("settings", {}).items()})
    members = int(spec["members"])
    world = settings.of_world(int(spec["nprocPerNode"]), members, int(spec["pods"]) - members)
    groups = tuple(PodGroup(x["name"], int(x["first"]), int(x["podsPerJob"])) for x in spec["podGroups"])
    created_at, completed_at = read_times(raw)
    return Job(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=f"{target['uid']}-{attempt}" if attempt else target["uid"],
        generation=int(metadata.get("generation", 1)),
        resource_version=metadata["resourceVersion"],
        deleting="deletionTimestamp" in metadata,
        orphans="orphan" in metadata.get("finalizers", ()),
        created_at=created_at,
        completed_at=completed_at,
        spec=JobSpec(replicated_jobs=world.groups, world=world, network=Network(hostnames=False)),
        status=raw.get("status", {}),
        injected=InjectedJob(
            metadata["uid"], groups, int(spec.get("graceSeconds", 30)), target["kind"], target["name"]
        ),
    )


def told_in_secret(secret: Raw) -> str:
    """The address of the coordinator's Service that the job's pods are told."""
    told = secret.get("data", {}).get(names.INJECTED_FILE, "")
    return str(json.loads(base64.b64decode(told))["coordinator"]) if told else ""
