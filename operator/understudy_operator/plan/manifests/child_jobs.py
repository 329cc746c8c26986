"""The manifests of child Jobs and of volume claims: the user's templates, with JobSet's additions.

The fingerprint covers all fields of a Job that are immutable while it is suspended, and the labels and annotations that
users choose for the Job itself, with its queue: a Job with another fingerprint has to be recreated. An annotation
records the mutable fields of its pods as this operator has written them. So a resumption can remove a field that the
spec no longer has, and keep the fields that others have added.
"""

import copy
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from understudy_operator.plan.facts import keys
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.ownership import owner_reference
from understudy_operator.plan.facts.spec import ReplicatedJob, VolumeClaim
from understudy_operator.plan.manifests import metadata, podspec
from understudy_operator.plan.manifests.gateways import add_gateway
from understudy_protocol import pod as names

FINGERPRINT = f"{names.GROUP}/template-hash"
#: Fields of a pod template that are mutable while the Job is suspended.
MUTABLE_METADATA = ("labels", "annotations")
MUTABLE_SPEC = ("nodeSelector", "tolerations", "schedulingGates")
#: The keys of mappings and the entries of lists among them that this operator has written, by field.
Written = Mapping[str, list[Any]]


def job_manifest(job: Job, group: ReplicatedJob, index: int, sidecar_image: str = "") -> dict[str, Any]:
    """sidecar_image: of the gateways, in a job that has rollouts."""
    spec = copy.deepcopy(dict(group.job_spec))
    spec["suspend"] = job.spec.suspend
    if spec.get("completionMode", "Indexed") == "Indexed":
        spec["completionMode"] = "Indexed"
        spec.setdefault("completions", group.parallelism)  # required for an indexed Job
    template = spec["template"]
    template["metadata"] = {
        **template.get("metadata", {}),
        **_metadata(job, group, index, template.get("metadata", {})),
    }
    template["spec"].setdefault("restartPolicy", "OnFailure")
    podspec.complete_spec(template["spec"], job, group, index)
    add_gateway(template["spec"], job, group, sidecar_image)
    job_metadata = _metadata(job, group, index, group.job_metadata)
    job_metadata["labels"][names.LABEL_JOB_UID] = job.uid
    job_metadata["labels"] |= {} if job.queue is None else job.queue.labels
    job_metadata["annotations"] |= {
        FINGERPRINT: job_fingerprint(spec, _chosen_metadata(job, group)),
        names.ANNOTATION_SPEC_HASH: group.template_hash,
        names.ANNOTATION_WRITTEN_FIELDS: _encode_written(template),
    }
    spec.pop("ttlSecondsAfterFinished", None)  # a deleted Job would be recreated, and run again
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": metadata.job_name(job, group, index),
            "namespace": job.namespace,
            **job_metadata,
            "ownerReferences": [owner_reference(job)],
        },
        "spec": spec,
    }


def claim_manifest(job: Job, claim: VolumeClaim) -> dict[str, Any]:
    """A claim that is retained has no owner."""
    given = claim.template.get("metadata", {})
    own_labels = {names.LABEL_JOB: job.name, names.LABEL_JOB_UID: job.uid, keys.NAME: job.name}
    owner = {} if claim.retained else {"ownerReferences": [owner_reference(job)]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": podspec.claim_name(job, claim.name),
            "namespace": job.namespace,
            "labels": {**given.get("labels", {}), **own_labels},
            "annotations": dict(given.get("annotations", {})),
            **owner,
        },
        "spec": dict(claim.template.get("spec", {})),
    }


def job_fingerprint(spec: Mapping[str, Any], chosen_metadata: Mapping[str, Any]) -> str:
    """The fingerprint of a Job. chosen_metadata: its labels and annotations that users choose."""
    template = spec["template"]
    fixed = {
        **({"job": dict(chosen_metadata)} if chosen_metadata else {}),
        **{name: value for name, value in spec.items() if name not in ("suspend", "template")},
        "metadata": {x: y for x, y in template.get("metadata", {}).items() if x not in MUTABLE_METADATA},
        "pod": {name: value for name, value in template["spec"].items() if name not in MUTABLE_SPEC},
    }
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16]


def _chosen_metadata(job: Job, group: ReplicatedJob) -> dict[str, Any]:
    """The labels and annotations of its Jobs that users choose, without empty ones."""
    labels = {**group.job_metadata.get("labels", {}), **({} if job.queue is None else job.queue.labels)}
    chosen = {"labels": labels, "annotations": group.job_metadata.get("annotations", {})}
    return {field: values for field, values in chosen.items() if values}


def _encode_written(template: Mapping[str, Any]) -> str:
    """The value of the Job's annotation."""
    parts = {field: template["metadata"].get(field) for field in MUTABLE_METADATA}
    parts |= {field: template["spec"].get(field) for field in MUTABLE_SPEC}
    return json.dumps({field: list(value) for field, value in parts.items() if value}, separators=(",", ":"))


def read_written(annotation: str) -> Written:
    """Empty if the annotation is unreadable."""
    try:
        written = json.loads(annotation)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(written, dict):
        return {}
    fields = (*MUTABLE_METADATA, *MUTABLE_SPEC)
    return {field: written[field] for field in fields if isinstance(written.get(field), list)}


def _metadata(job: Job, group: ReplicatedJob, index: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """Pods of Jobs are no members, so they do not get the label with the job's uid."""
    own_labels = {names.LABEL_JOB: job.name, names.LABEL_REPLICATED_JOB: group.name}
    return {
        "labels": {**given.get("labels", {}), **metadata.jobset_labels(job, group, index), **own_labels},
        "annotations": {**given.get("annotations", {}), **metadata.jobset_annotations(job, group, index)},
    }
