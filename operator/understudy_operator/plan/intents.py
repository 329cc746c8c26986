"""What the operator means to do: values, so that a plan can be read, compared and tested. apply/ executes them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Manifest = Mapping[str, Any]


@dataclass(frozen=True)
class Create:
    """Create an object; that it already exists is fine."""

    manifest: Manifest


@dataclass(frozen=True)
class CreatePod:
    manifest: Manifest
    reason: str


@dataclass(frozen=True)
class DeletePod:
    name: str
    uid: str
    grace_s: int | None  # None: the pod's own; 0: remove the object at once
    reason: str


@dataclass(frozen=True)
class PatchPod:
    """Labels and annotations to set; None removes one."""

    name: str
    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Follow:
    """Keep a link to this coordinator, which is appointed (again) at its start."""

    pod_uid: str
    ip: str
    epoch: int
    at_least_round: int
    recoveries_by_strategy: Mapping[str, int]


@dataclass(frozen=True)
class Unfollow:
    """The job needs no coordinator any more."""


@dataclass(frozen=True)
class Event:
    """A Kubernetes Event on the TrainingJob. `reason` is CamelCase."""

    type: str  # Normal | Warning
    reason: str
    message: str


@dataclass(frozen=True)
class Plan:
    """Executed in this order: status before the appointment that it records, everything before its events."""

    objects: tuple[Create, ...] = ()
    status: Manifest | None = None  # the whole status, if it changes
    pods: tuple[CreatePod | DeletePod | PatchPod, ...] = ()
    link: Follow | Unfollow | None = None
    events: tuple[Event, ...] = ()
    again_in_s: float | None = None  # look again, although nothing may have changed
