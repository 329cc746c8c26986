"""The settings on an injected pod: annotations `understudy.dev/<name>`, in place of a TrainingJob's spec.

Rules: an unknown name or an invalid value is an Objection that names the annotation and the fix. Unset annotations have
the defaults of a TrainingJob.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from understudy_operator.plan.facts.spec import ReplicatedJob, World
from understudy_operator.plan.facts.trainer import AUTO, TORCHRUN, WRAP
from understudy_operator.plan.times.durations import seconds
from understudy_protocol import pod as names

PREFIX = f"{names.GROUP}/"
NONE = "None"  # in place of a mode of the launcher
#: Annotations that the operator and the webhook write, and those of a running pod.
RESERVED = frozenset(
    {
        names.ANNOTATION_TRAINER_CONTAINER,
        names.ANNOTATION_POD_INDEX,
        names.ANNOTATION_NODE_VERDICT,
        names.ANNOTATION_GROUP_RANK,
        names.ANNOTATION_AVOIDED_NODES,
        names.ANNOTATION_SPEC_HASH,
        names.ANNOTATION_DRAIN,
        names.ANNOTATION_DRILL,
    }
)


class Objection(Exception):
    """Why a pod cannot be injected, and how its owner can fix it."""


@dataclass(frozen=True)
class InjectionSettings:
    launcher: str = AUTO
    container: str = ""  # "": the first
    nproc_per_node: int = 0  # 0: the number in the command, else 1
    spares: int = 0
    min_pods: int = 0  # 0: the job does not shrink
    drills_allowed: bool = False  # users may break it on purpose
    world: Mapping[str, Any] = field(default_factory=dict)  # other fields of World that differ from the defaults

    def of_world(self, nproc: int, actives: int, spares: int) -> World:
        group = ReplicatedJob("workers", {"spec": {"parallelism": actives, "template": {"spec": {}}}})
        return World(
            groups=(group,),
            nproc_per_node=nproc,
            container=self.container,
            spares=spares,
            min_actives=self.min_pods,
            **self.world,
        )


def wants_injection(metadata: Mapping[str, Any]) -> bool:
    """Whether the label of a pod, or of its template, asks for injection. Raises Objection."""
    label = (metadata.get("labels") or {}).get(names.LABEL_INJECT)
    if label == _RENAMED_LABEL:
        new = names.INJECTION_ENABLED
        raise Objection(f"label {names.LABEL_INJECT} is {label!r}, a value that is now named {new}: set it to {new}")
    return bool(label == names.INJECTION_ENABLED)


def read_injection_settings(annotations: Mapping[str, str]) -> InjectionSettings:
    """Raises Objection."""
    own: dict[str, Any] = {}
    world: dict[str, Any] = {}
    for key in sorted(annotations):
        if not key.startswith(PREFIX) or key in RESERVED:
            continue
        name = key.removeprefix(PREFIX)
        if name in _RENAMED:
            new = _RENAMED[name]
            raise Objection(f"annotation {key} is now named {PREFIX}{new}: rename it, and set it to {_TABLE[new][2]}")
        if name not in _TABLE:
            known = ", ".join(sorted(_TABLE))
            raise Objection(f"annotation {key} is unknown: correct or remove it; the known ones are {known}")
        target, read, expected = _TABLE[name]
        try:
            value = read(annotations[key].strip())
        except ValueError:
            raise Objection(f"annotation {key} is {annotations[key]!r}: set it to {expected}") from None
        (own if target in _OWN else world)[target] = value
    if "python" in world and own.get("launcher") in (TORCHRUN, NONE):
        raise Objection(
            f"annotation {PREFIX}python has no effect with {PREFIX}launcher: {own['launcher']}, which /bin/sh starts: "
            "remove one of them"
        )
    return InjectionSettings(**own, world=world)


def settings_of(annotations: Mapping[str, str]) -> dict[str, str]:
    """The settings among the annotations, by their names without the prefix, as the InjectedJob stores them."""
    return {
        key.removeprefix(PREFIX): text
        for key, text in annotations.items()
        if key.startswith(PREFIX) and key not in RESERVED
    }


def actives_of(settings: InjectionSettings, pods: int) -> int:
    """Pods with ranks; the others wait as spares. Raises Objection."""
    if settings.spares and settings.spares >= pods:
        raise Objection(
            f"annotation {PREFIX}spares is {settings.spares}, but the job has {pods} pods, and at least one has to "
            "train: lower it, or raise the job's parallelism and completions"
        )
    actives = pods - settings.spares
    if settings.min_pods > actives:
        raise Objection(
            f"annotation {PREFIX}min-pods is {settings.min_pods}, but {actives} pods train: lower it, or raise the "
            "job's parallelism and completions"
        )
    return actives


def _number(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text) if re.fullmatch(r"[0-9]{1,7}", text) else -1
        if number < least:
            raise ValueError(text)
        return number

    return read


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return read


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[_one_of("true", "false")(text)]


def _allowed(text: str) -> bool:
    return _one_of("Allowed", "Forbidden")(text) == "Allowed"


def _worker_grace_period(text: str) -> float:
    if seconds(text) > LONGEST_WORKER_GRACE_PERIOD_S:
        raise ValueError(text)
    return seconds(text)


def _launcher_timeout(text: str) -> float:
    if seconds(text) < SHORTEST_LAUNCHER_TIMEOUT_S:
        raise ValueError(text)
    return seconds(text)


def _history_limit(text: str) -> int:
    number = _number(0)(text)
    if number > MOST_RECOVERIES:
        raise ValueError(text)
    return number


def _slow_rank_percent(text: str) -> int:
    number = _number(0)(text)
    if number and not LEAST_SLOW_RANK_PERCENT <= number <= MOST_SLOW_RANK_PERCENT:
        raise ValueError(text)
    return number


def _fence(text: str) -> float:
    return 0.0 if text == "Off" else seconds(text)


def _text(text: str) -> str:
    if not text:
        raise ValueError(text)
    return text


def _path(text: str) -> str:
    if not re.fullmatch(r"(/[^/\s]+){2,}", text):
        raise ValueError(text)
    return text


def _program(text: str) -> str:
    if not re.fullmatch(r"(/[A-Za-z0-9._+-]+)+", text):  # as in the CRD
        raise ValueError(text)
    return text


def _modules(text: str) -> tuple[str, ...]:
    return tuple(part for part in (part.strip() for part in text.split(",")) if part)


SHORTEST_LAUNCHER_TIMEOUT_S = 5.0  # as in the CRD
LONGEST_WORKER_GRACE_PERIOD_S = 3600.0  # as in the CRD
MOST_RECOVERIES = 1000  # as in the CRD
LEAST_SLOW_RANK_PERCENT, MOST_SLOW_RANK_PERCENT = 110, 1000  # as in the CRD
_DURATIONS = "a duration such as 30s, 10m or 1h"
_OWN = ("launcher", "container", "nproc_per_node", "spares", "min_pods", "drills_allowed")
#: name: (field of InjectionSettings or World, reader, valid values for messages)
_TABLE: Mapping[str, tuple[str, Callable[[str], Any], str]] = {
    "launcher": ("launcher", _one_of(AUTO, WRAP, TORCHRUN, NONE), "Auto, Wrap, Torchrun or None"),
    "container": ("container", _text, "the name of the container that trains"),
    "nproc-per-node": ("nproc_per_node", _number(1), "the number of workers of each pod, 1 or more"),
    "spares": ("spares", _number(0), "the number of pods that wait as spares, 0 or more"),
    "min-pods": ("min_pods", _number(1), "the number of pods to shrink to, 1 or more"),
    "drills": ("drills_allowed", _allowed, "Allowed or Forbidden"),
    "fork-server": ("zygote", _boolean, "true or false"),
    "preload": ("preload", _modules, "names of modules, separated by commas"),
    "python": ("python", _program, "the path of a Python in the image, such as /usr/bin/python3"),
    "log-prefix": ("log_prefix", _boolean, "true or false"),
    "slow-rank-percent": (
        "slow_rank_percent",
        _slow_rank_percent,
        f"a number from {LEAST_SLOW_RANK_PERCENT} to {MOST_SLOW_RANK_PERCENT}, or 0 if no rank counts as slow",
    ),
    "on-sigterm": ("on_sigterm", _one_of("Auto", "Always", "Never"), "Auto, Always or Never"),
    "node-file": ("nologin_path", _path, "a file in a folder of the node, such as /run/nologin"),
    "step-timeout": ("step_timeout_s", seconds, _DURATIONS),
    "start-timeout": ("start_timeout_s", seconds, _DURATIONS),
    "max-restarts": ("in_place_max_restarts", _number(0), "a number, 0 or more"),
    "max-restarts-per-pod": ("in_place_max_per_pod", _number(0), "a number, 0 or more"),
    "restart-window": ("in_place_window_s", seconds, _DURATIONS),
    "spare-timeout": ("spare_timeout_s", seconds, _DURATIONS),
    "coordinator-loss-timeout": ("fence_s", _fence, f"{_DURATIONS}, or Off"),
    "launcher-timeout": (
        "launcher_timeout_s",
        _launcher_timeout,
        f"{_DURATIONS}, at least {SHORTEST_LAUNCHER_TIMEOUT_S:g}s",
    ),
    "worker-grace-period": (
        "worker_grace_period_s",
        _worker_grace_period,
        "a duration of at most 1h, such as 30s or 10m",
    ),
    "backoff-max-delay": ("backoff_max_delay_s", seconds, _DURATIONS),
    "max-identical-failures": ("script_fault_rounds", _number(0), "a number, 0 or more"),
    "history-limit": ("history_limit", _history_limit, f"a number of at most {MOST_RECOVERIES}, 0 or more"),
    "topology-key": ("topology_key", _text, "the name of a node's label"),
}
ANNOTATIONS = tuple(sorted(_TABLE))
#: Old name -> name.
_RENAMED: Mapping[str, str] = {
    "backoff-max": "backoff-max-delay",
    "fence-timeout": "coordinator-loss-timeout",
    "min-world-size": "min-pods",
    "nologin-path": "node-file",
    "worker-grace": "worker-grace-period",
    "world-size": "spares",
    "zygote": "fork-server",
}
#: The previous value of the label.
_RENAMED_LABEL = "true"
