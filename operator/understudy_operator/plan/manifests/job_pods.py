"""The pod that the Job controller would create for an index of an Indexed Job. Pure.

Source: manageJob in pkg/controller/job/job_controller.go of Kubernetes 1.36. The controller counts a pod by its owner,
its index and the finalizer, and does not know which program has created the pod.
"""

import copy
from typing import Any

from understudy_operator.plan.facts import keys
from understudy_operator.plan.facts.cluster_objects import ChildJob
from understudy_operator.plan.manifests.object_names import name_suffix

FINALIZER = "batch.kubernetes.io/job-tracking"
INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
#: Kubernetes cuts the prefix of a generated name to this length.
LONGEST_PREFIX = 58


def job_pod(job: ChildJob, index: int, serial: str) -> dict[str, Any]:
    """serial: makes the name unique."""
    template = copy.deepcopy(dict(job.template))
    metadata: dict[str, Any] = template.get("metadata") or {}
    spec: dict[str, Any] = template["spec"]
    spec["hostname"] = f"{job.name}-{index}"
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        _add_index(container)
    number = {keys.COMPLETION_INDEX: str(index)}
    finalizers = [name for name in metadata.get("finalizers") or () if name != FINALIZER]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": _name(job.name, index, serial),
            "labels": {**(metadata.get("labels") or {}), **number},
            "annotations": {**(metadata.get("annotations") or {}), **number},
            "finalizers": [*finalizers, FINALIZER],
            # Without blockOwnerDeletion, which would need the right to change the finalizers of Jobs.
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": job.name, "uid": job.uid, "controller": True}
            ],
        },
        "spec": spec,
    }


def _add_index(container: dict[str, Any]) -> None:
    variables = container.get("env") or []
    if all(variable.get("name") != INDEX_VARIABLE for variable in variables):
        source = {"fieldRef": {"fieldPath": f"metadata.annotations['{keys.COMPLETION_INDEX}']"}}
        container["env"] = [*variables, {"name": INDEX_VARIABLE, "valueFrom": source}]


def _name(job: str, index: int, serial: str) -> str:
    ending = f"-{index}-"
    return f"{job[: LONGEST_PREFIX - len(ending)]}{ending}{name_suffix(f'{job}/{index}/{serial}')}"
