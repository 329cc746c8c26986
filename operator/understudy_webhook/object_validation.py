"""What is wrong with a job, before anything of it is made: what the rules of a CRD cannot say. Pure.

Of a Job, JobSet or PyTorchJob only templates with the label are looked at, by the same code that injects their pods: a
pod as its controller would make it is injected, and the result thrown away. A JobSet's own Job is let through:
its pods are some of those that train as one, and the JobSet itself was looked at. Of a TrainingJob: dependencies in a
circle, and patterns that are none. Without this webhook the operator and the injection say the same, later.
"""

import copy
from collections.abc import Mapping
from typing import Any

from understudy_operator.observe.read_spec import read_spec
from understudy_operator.plan.injection.owner import PYTORCH_INDEX, PYTORCH_JOB_NAME, PYTORCH_REPLICA, read_owner
from understudy_operator.plan.injection.pods import inject
from understudy_operator.plan.injection.settings import Objection
from understudy_operator.plan.injection.targets import Template, read_nproc, read_target, spec_of
from understudy_operator.plan.jobset import keys
from understudy_operator.plan.jobset.validation import find_spec_errors

Raw = Mapping[str, Any]
#: What a pod is injected with when nobody will ever run it.
_IMAGE = "none"


def find_objections(kind: str, raw: Raw) -> list[str]:
    """Each names the field and the mend; empty where nothing is wrong."""
    if kind == "TrainingJob":
        metadata = raw["metadata"]
        name = metadata.get("name", metadata.get("generateName", ""))
        return [complaint.message for complaint in find_spec_errors(name, read_spec(raw))]
    if kind == "Job" and _is_of_jobset(raw["metadata"]):
        return []
    try:
        target = read_target(kind, raw)
        for example in example_pods(kind, raw):
            pod = inject(example, _IMAGE).pod
            if read_nproc(pod):
                spec_of(target, read_owner(pod), pod)
    except Objection as objection:
        return [f"understudy cannot inject the pods of this {kind}: {objection}"]
    return []


def example_pods(kind: str, raw: Raw) -> list[dict[str, Any]]:
    """The first pod of each template that is to be injected, as its controller would make it. Raises Objection."""
    return [_example(kind, raw["metadata"], template) for template in read_target(kind, raw).templates]


def _is_of_jobset(metadata: Raw) -> bool:
    """By its controller, and not by labels: these any Job may have."""
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
