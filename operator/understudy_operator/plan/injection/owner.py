"""The owner of a pod: the Job, JobSet or PyTorchJob that it trains in, from the labels that their controllers write.

Rules: the labels have to name the pod's controller. A copy of a pod has the labels, but another controller or none. A
JobSet has precedence over the Job that it created. A JobSet that restarts recreates all its pods: they form a new job,
whose name and uid end in the attempt, so that no pod of the previous attempt can join it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from understudy_operator.plan.facts import keys
from understudy_operator.plan.facts.malformed import number_in
from understudy_operator.plan.facts.ownership import controller_of
from understudy_operator.plan.injection.settings import Objection
from understudy_operator.plan.manifests.object_names import LONGEST, is_injected, shortened
from understudy_protocol import pod as names
from understudy_protocol.pod import Place

PYTORCH_JOB_NAME = "training.kubeflow.org/job-name"
PYTORCH_OPERATOR = "training.kubeflow.org/operator-name"
PYTORCH_REPLICA = "training.kubeflow.org/replica-type"
PYTORCH_INDEX = "training.kubeflow.org/replica-index"
_PYTORCH_KIND = "PyTorchJob"
#: API version and plural of each kind.
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
        """The name of the InjectedJob. It has a dot, which no TrainingJob's name has."""
        attempt = f".{self.attempt}" if self.attempt else ""
        return shortened(f"{self.kind.lower()}.{self.name}{attempt}", LONGEST)

    @property
    def membership(self) -> str:
        """The job uid under which its members authenticate."""
        return f"{self.uid}-{self.attempt}" if self.attempt else self.uid


def is_of_target(raw: Mapping[str, Any], uid: str) -> bool:
    """Whether a pod or a Job belongs to the target of an injected job. uid: Owner.membership of the job's members."""
    owner = controller_of(raw)
    if raw["metadata"].get("uid") == uid or (
        owner.get("kind") == "JobSet" and _is_attempt_of(uid, owner.get("uid", ""))
    ):
        return True  # the target itself, or a JobSet's Job
    try:
        return read_owner(raw).membership == uid
    except Objection:
        return False


def _is_attempt_of(membership: str, uid: str) -> bool:
    return membership == uid or membership.rpartition("-")[0] == uid


def read_owner(pod: Mapping[str, Any]) -> Owner:
    """Raises Objection."""
    metadata = pod.get("metadata", {})
    labels: Mapping[str, str] = metadata.get("labels", {})
    if names.LABEL_JOB in labels and not is_injected(labels[names.LABEL_JOB]):
        raise Objection(
            f"the pod belongs to TrainingJob {labels[names.LABEL_JOB]}, which needs no injection: remove the label "
            f"{names.LABEL_INJECT}, and list the replicatedJobs that train in spec.launcher.targetReplicatedJobs"
        )
    controller = controller_of(pod)
    if keys.NAME in labels:
        owner = _of_jobset(labels, metadata.get("annotations", {}))
        job = f"{owner.name}-{owner.place.group}-{owner.place.job_index}"
        _check_controller("JobSet", owner.name, (controller.get("kind"), controller.get("name")) == ("Job", job))
        return owner
    if keys.JOB_NAME in labels:
        name, uid = labels[keys.JOB_NAME], _label(labels, keys.CONTROLLER_UID)
        _check_controller("Job", name, controller.get("uid") == uid)
        return Owner("Job", name, uid, Place("pods", 0, _completion_index(labels, metadata.get("annotations", {}))))
    if PYTORCH_JOB_NAME in labels:
        return _of_pytorch_job(labels, controller)
    raise Objection(
        f"the label {names.LABEL_INJECT} is for pods of a Job, a JobSet or a PyTorchJob, but this pod has none of "
        "their labels: put it into the pod template of one of these, or remove it"
    )


def _of_jobset(labels: Mapping[str, str], annotations: Mapping[str, str]) -> Owner:
    if keys.UID not in labels:
        raise Objection(f"the pod has no label {keys.UID}: install JobSet 0.6 or newer")
    place = Place(
        _label(labels, keys.REPLICATED_JOB), _number(labels, keys.JOB_INDEX), _completion_index(labels, annotations)
    )
    return Owner("JobSet", labels[keys.NAME], labels[keys.UID], place, number_in(labels.get(keys.RESTART_ATTEMPT)) or 0)


def _completion_index(labels: Mapping[str, str], annotations: Mapping[str, str]) -> int:
    index = number_in(annotations.get(keys.COMPLETION_INDEX, labels.get(keys.COMPLETION_INDEX, "")))
    if index is None:
        raise Objection(
            "the Job's completionMode has to be Indexed, because each pod of a training has its own ranks: set "
            "completionMode: Indexed, and set completions to parallelism"
        )
    return index


def _check_controller(kind: str, name: str, matches: bool) -> None:
    if not matches:
        raise Objection(
            f"the pod has the labels of {kind} {name}, which is not its controller (ownerReferences). The pod may be "
            f"a copy: remove the label {names.LABEL_INJECT}"
        )


def _of_pytorch_job(labels: Mapping[str, str], owner: Mapping[str, Any]) -> Owner:
    if owner.get("kind") != _PYTORCH_KIND:
        raise Objection(
            f"the label {names.LABEL_INJECT} is for pods of a Job, a JobSet or a PyTorchJob. Kubeflow's other jobs "
            "cannot be injected: remove the label"
        )
    kind = labels.get(PYTORCH_REPLICA, "").lower()
    return Owner(
        _PYTORCH_KIND, labels[PYTORCH_JOB_NAME], owner.get("uid", ""), Place(kind, 0, _number(labels, PYTORCH_INDEX))
    )


def _label(labels: Mapping[str, str], key: str) -> str:
    if not labels.get(key):
        raise Objection(f"the pod has no label {key}, which its controller writes: {_AS_IT_IS}")
    return labels[key]


def _number(labels: Mapping[str, str], key: str) -> int:
    text = labels.get(key, "0")
    number = number_in(text)
    if number is None:
        raise Objection(f"the pod's label {key} is {text!r}, but its controller writes a number: {_AS_IT_IS}")
    return number
