"""Kueue's labels and annotations on pods and Jobs, and the queue in a TrainingJob's own labels.

Kueue admits plain pods in groups (its docs: "Run Plain Pods"); the rules here come from its source,
pkg/controller/jobs/pod. Its webhook gives each pod that names a queue a scheduling gate and a finalizer; once there is
quota for the whole group, Kueue removes the gates of all its pods.
"""

from collections.abc import Mapping
from dataclasses import dataclass

API_GROUP = "kueue.x-k8s.io"
QUEUE = "kueue.x-k8s.io/queue-name"  # label
PRIORITY_CLASS = "kueue.x-k8s.io/priority-class"  # label; has precedence over the priority class of the pods
MANAGED = "kueue.x-k8s.io/managed"  # label "true", and the finalizer
GATE = "kueue.x-k8s.io/admission"
GROUP_NAME = "kueue.x-k8s.io/pod-group-name"  # label
GROUP_SIZE = "kueue.x-k8s.io/pod-group-total-count"  # annotation, as are the next two
ROLE = "kueue.x-k8s.io/role-hash"
RETRIABLE = "kueue.x-k8s.io/retriable-in-group"


@dataclass(frozen=True)
class Queue:
    """The local queue that an object's labels name."""

    name: str
    priority_class: str = ""  # of Kueue's WorkloadPriorityClass; "": the pods' priority counts

    @property
    def labels(self) -> dict[str, str]:
        return {QUEUE: self.name} | ({PRIORITY_CLASS: self.priority_class} if self.priority_class else {})


def read_queue(labels: Mapping[str, str]) -> Queue | None:
    return Queue(labels[QUEUE], labels.get(PRIORITY_CLASS, "")) if labels.get(QUEUE) else None
