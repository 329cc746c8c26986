"""The owner of an object, for the garbage collector. A job is a TrainingJob, or an InjectedJob.

Labels do not prove ownership, because a copy of an object has them, too. Its ownerReferences do.
"""

from collections.abc import Mapping
from typing import Any

from understudy_operator.plan.facts.job import Job
from understudy_protocol import pod as names

API_VERSION = f"{names.GROUP}/v1alpha1"
KIND = "TrainingJob"
INJECTED_KIND = "InjectedJob"
POOL_KIND = "HotSparePool"


def kind_of(job: Job) -> str:
    return KIND if job.injected is None else INJECTED_KIND


def object_path_of(job: Job) -> str:
    """The path of its object in the API."""
    return f"/apis/{API_VERSION}/namespaces/{job.namespace}/{kind_of(job).lower()}s/{job.name}"


def object_uid(job: Job) -> str:
    """The uid of the object itself; Job.uid of an injected job is another one."""
    return job.uid if job.injected is None else job.injected.uid


def owner_reference(job: Job) -> dict[str, Any]:
    return reference(kind_of(job), job.name, object_uid(job))


def controller_of(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The ownerReference of the object's controller; empty if it has none."""
    references = raw["metadata"].get("ownerReferences") or ()
    return next((entry for entry in references if entry.get("controller")), {})


def controller_uid(raw: Mapping[str, Any]) -> str:
    return str(controller_of(raw).get("uid", ""))


def reference(kind: str, name: str, uid: str) -> dict[str, Any]:
    """A reference to the only owner, whose foreground deletion waits for the object."""
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
