"""Finds errors in a job before any of its objects are created: errors that CRD rules cannot express. Pure.

For a Job, JobSet or PyTorchJob, only templates with the label are checked, by the code that injects their pods: it
injects an example of each pod, and the result is dropped. A JobSet's own Job is allowed: it has only some of the pods
that train as one, and the JobSet itself was checked. For a TrainingJob: circular dependencies, and invalid patterns.
Without this webhook the operator and the injection report the same errors, later.
"""

import copy
from collections.abc import Mapping
from typing import Any

from understudy_operator.observe.read_spec import read_spec
from understudy_operator.plan.facts import keys
from understudy_operator.plan.injection.injected_pods import inject
from understudy_operator.plan.injection.owner import PYTORCH_INDEX, PYTORCH_JOB_NAME, PYTORCH_REPLICA, read_owner
from understudy_operator.plan.injection.settings import Objection
from understudy_operator.plan.injection.targets import Template, check_labels, read_nproc, read_target, spec_of
from understudy_operator.plan.jobset.validation import find_spec_errors

Raw = Mapping[str, Any]
#: The image for example pods, which never run.
_IMAGE = "none"


def find_objections(kind: str, raw: Raw) -> list[str]:
    """Each message names the field and the fix. Empty if the object is valid."""
    if kind == "TrainingJob":
        metadata = raw["metadata"]
        name = metadata.get("name", metadata.get("generateName", ""))
        return [complaint.message for complaint in find_spec_errors(name, read_spec(raw))]
    if kind == "Job" and _is_of_jobset(raw["metadata"]):
        return []
    try:
        check_labels(kind, raw)
        target = read_target(kind, raw)
        for example in example_pods(kind, raw):
            pod = inject(example, _IMAGE).pod
            if read_nproc(pod):
                spec_of(target, read_owner(pod), pod)
    except Objection as objection:
        return [f"understudy cannot inject the pods of this {kind}: {objection}"]
    return []


def example_pods(kind: str, raw: Raw) -> list[dict[str, Any]]:
    """The first pod of each template to inject, as its controller would create it. Raises Objection."""
    return [_example(kind, raw["metadata"], template) for template in read_target(kind, raw).templates]


def _is_of_jobset(metadata: Raw) -> bool:
    """Decided by its controller and not by labels, which any Job may have."""
    owners = metadata.get("ownerReferences") or ()
    return any(x.get("kind") == "JobSet" and x.get("controller") for x in owners)


def _example(kind: str, metadata: Raw, template: Template) -> dict[str, Any]:
    pod = copy.deepcopy(dict(template.template))
    metadata_of_pod = pod["metadata"]
    name, uid = metadata.get("name", metadata.get("generateName", "")), metadata.get("uid", "unknown")
    labels, annotations = dict(metadata_of_pod.get("labels") or {}), dict(metadata_of_pod.get("annotations") or {})
    if kind == "PyTorchJob":
        labels |= {PYTORCH_JOB_NAME: name, PYTORCH_REPLICA: template.name, PYTORCH_INDEX: "0"}
        controller = {"kind": kind, "name": name}
    else:
        labels |= {keys.JOB_NAME: name, keys.CONTROLLER_UID: uid}
        annotations[keys.COMPLETION_INDEX] = "0"
        controller = {"kind": "Job", "name": name}
    if kind == "JobSet":
        labels |= {keys.NAME: name, keys.UID: uid, keys.REPLICATED_JOB: template.name, keys.JOB_INDEX: "0"}
        controller["name"] = f"{name}-{template.name}-0"
    metadata_of_pod["ownerReferences"] = [{**controller, "uid": uid, "controller": True}]
    pod["metadata"] = {**metadata_of_pod, "labels": labels, "annotations": annotations}
    return pod
