"""Whose an object is: the garbage collector follows it."""

from typing import Any

from understudy_operator.plan.observed import Job
from understudy_protocol import pod as names

API_VERSION = f"{names.GROUP}/v1alpha1"
KIND = "TrainingJob"
POOL_KIND = "HotSparePool"


def owner_reference(job: Job) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
