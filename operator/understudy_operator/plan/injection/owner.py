"""Whose pod it is: the Job, JobSet or PyTorchJob that it trains in, by the labels that their controllers write.

Rules: a JobSet goes before the Job that it has made. A JobSet that restarts has all its pods made anew: they are a job
of their own, whose name and uid end in the attempt, so that nothing of the former one can join them.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from understudy_operator.plan.injection.settings import Objection
from understudy_operator.plan.jobset import keys
from understudy_protocol import pod as names
from understudy_protocol.pod import Place

LONGEST = 63  # of a label's value, and of a Service's name
_HASH = 8
PYTORCH_JOB_NAME = "training.kubeflow.org/job-name"
PYTORCH_OPERATOR = "training.kubeflow.org/operator-name"
PYTORCH_REPLICA = "training.kubeflow.org/replica-type"
PYTORCH_INDEX = "training.kubeflow.org/replica-index"
_PYTORCH_KIND = "PyTorchJob"
#: Where each kind is served.
PATHS = {
    "Job": ("batch/v1", "jobs"),
    "JobSet": ("jobset.x-k8s.io/v1alpha2", "jobsets"),
    _PYTORCH_KIND: ("kubeflow.org/v1", "pytorchjobs"),
}


_AS_IT_IS = f"put {names.LABEL_INJECT} into the pod template of a Job, a JobSet or a PyTorchJob, not into a pod"


@dataclass(frozen=True)
class Owner:
    kind: str
    name: str
    uid: str
    place: Place
    attempt: int = 0  # of a JobSet

    @property
    def group(self) -> str:
        """Of the InjectedJob. Its dot is what no TrainingJob's name has."""
        attempt = f".{self.attempt}" if self.attempt else ""
        return shortened(f"{self.kind.lower()}.{self.name}{attempt}", LONGEST)

    @property
    def membership(self) -> str:
        """What its members prove to belong to."""
        return f"{self.uid}-{self.attempt}" if self.attempt else self.uid


def is_injected(name: str) -> bool:
    """Whether a job's name is an InjectedJob's."""
    return "." in name


def read_owner(pod: Mapping[str, Any]) -> Owner:
    """Raises Objection."""
    metadata = pod.get("metadata", {})
    labels: Mapping[str, str] = metadata.get("labels", {})
    if names.LABEL_JOB in labels and not is_injected(labels[names.LABEL_JOB]):
        raise Objection(
            f"the pod is of TrainingJob {labels[names.LABEL_JOB]}: remove the label {names.LABEL_INJECT}, and "
            "say in spec.launcher.targetReplicatedJobs whose pods train"
        )
    if keys.NAME in labels:
        return _of_jobset(labels, metadata.get("annotations", {}))
    if keys.JOB_NAME in labels:
        index = _completion_index(labels, metadata.get("annotations", {}))
        return Owner("Job", labels[keys.JOB_NAME], _label(labels, keys.CONTROLLER_UID), Place("pods", 0, index))
    if PYTORCH_JOB_NAME in labels:
        return _of_pytorch_job(labels, metadata.get("ownerReferences", ()))
    raise Objection(
        f"the label {names.LABEL_INJECT} is for pods of a Job, a JobSet or a PyTorchJob, and this one has none of "
        "their labels: put it into the pod template of one of these, or remove it"
    )


def _of_jobset(labels: Mapping[str, str], annotations: Mapping[str, str]) -> Owner:
    if keys.UID not in labels:
        raise Objection(f"the pod has no label {keys.UID}: JobSet 0.6 or newer is needed")
    place = Place(
        _label(labels, keys.REPLICATED_JOB), _number(labels, keys.JOB_INDEX), _completion_index(labels, annotations)
    )
    attempt = labels.get(keys.RESTART_ATTEMPT, "0")
    return Owner("JobSet", labels[keys.NAME], labels[keys.UID], place, int(attempt) if attempt.isdecimal() else 0)


def _completion_index(labels: Mapping[str, str], annotations: Mapping[str, str]) -> int:
    told = annotations.get(keys.COMPLETION_INDEX, labels.get(keys.COMPLETION_INDEX, ""))
    if not told.isdecimal():
        raise Objection(
            "the Job's completionMode has to be Indexed, because each pod of a training has its own ranks: set "
            "completionMode: Indexed, and completions to parallelism"
        )
    return int(told)


def _of_pytorch_job(labels: Mapping[str, str], references: Any) -> Owner:
    owner = next((x for x in references if x.get("kind") == _PYTORCH_KIND), None)
    if owner is None:
        raise Objection(
            f"the label {names.LABEL_INJECT} is for pods of a Job, a JobSet or a PyTorchJob: of Kubeflow's other jobs "
            "none can be injected; remove it"
        )
    kind = labels.get(PYTORCH_REPLICA, "").lower()
    return Owner(_PYTORCH_KIND, labels[PYTORCH_JOB_NAME], owner["uid"], Place(kind, 0, _number(labels, PYTORCH_INDEX)))


def _label(labels: Mapping[str, str], key: str) -> str:
    if not labels.get(key):
        raise Objection(f"the pod has no label {key}, which its controller writes: {_AS_IT_IS}")
    return labels[key]


def _number(labels: Mapping[str, str], key: str) -> int:
    told = labels.get(key, "0")
    if not told.isdecimal():
        raise Objection(f"the pod's label {key} is {told!r}, and its controller writes a number: {_AS_IT_IS}")
    return int(told)


def shortened(name: str, longest: int) -> str:
    """The name itself where it is short enough; else its beginning, and what makes it its own."""
    if len(name) <= longest:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH]
    return f"{name[: longest - _HASH - 1].rstrip('.-')}-{digest}"


def service_name(group: str) -> str:
    """A Service's name has no dots."""
    suffix = "-understudy"
    return shortened(re.sub(r"[^a-z0-9-]", "-", group), LONGEST - len(suffix)) + suffix
