"""The settings on an injected pod: annotations `understudy.dev/<name>`, in place of a TrainingJob's spec.

Rules: an unknown name or an invalid value is an Objection that names the annotation and the fix. Unset annotations have
the defaults of a TrainingJob. Sizes are numbers of ranks, as in torch.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from understudy_operator.plan.facts.spec import ReplicatedJob, World
from understudy_operator.plan.times.durations import seconds
from understudy_protocol import pod as names

PREFIX = f"{names.GROUP}/"
AUTO, WRAP, TORCHRUN, NONE = "Auto", "Wrap", "Torchrun", "None"
#: Annotations that the operator and the webhook write.
RESERVED = frozenset(
    {
        names.ANNOTATION_INJECTED,
        names.ANNOTATION_PLACE,
        names.ANNOTATION_VERDICT,
        names.ANNOTATION_GROUP_RANK,
        names.ANNOTATION_AVOIDS,
        names.ANNOTATION_TEMPLATE_HASH,
    }
)


class Objection(Exception):
    """Why a pod cannot be injected, and how its owner can fix it."""


@dataclass(frozen=True)
class InjectionSettings:
    launcher: str = AUTO
    container: str = ""  # "": the first
    nproc_per_node: int = 0  # 0: the number in the command, else 1
    world_size: int = 0  # ranks; 0: those of all pods
    min_world_size: int = 0
    world: Mapping[str, Any] = field(default_factory=dict)  # other fields of World that differ from the defaults

    def of_world(self, nproc: int, actives: int, spares: int) -> World:
        group = ReplicatedJob("workers", {"spec": {"parallelism": actives, "template": {"spec": {}}}})
        return World(
            groups=(group,),
            nproc_per_node=nproc,
            container=self.container,
            spares=spares,
            min_actives=self.min_world_size // nproc,
            **self.world,
        )


def read_injection_settings(annotations: Mapping[str, str]) -> InjectionSettings:
    """Raises Objection."""
    own: dict[str, Any] = {}
    world: dict[str, Any] = {}
    for key in sorted(annotations):
        if not key.startswith(PREFIX) or key in RESERVED:
            continue
        name = key.removeprefix(PREFIX)
        if name in _RENAMED:
            raise Objection(f"annotation {key} is now named {PREFIX}{_RENAMED[name]}: rename it")
        if name not in _TABLE:
            known = ", ".join(sorted(_TABLE))
            raise Objection(f"annotation {key} is unknown: correct or remove it; the known ones are {known}")
        target, read, expected = _TABLE[name]
        try:
            value = read(annotations[key].strip())
        except ValueError:
            raise Objection(f"annotation {key} is {annotations[key]!r}: set it to {expected}") from None
        (own if target in _OWN else world)[target] = value
    return InjectionSettings(**own, world=world)


def settings_of(annotations: Mapping[str, str]) -> dict[str, str]:
    """The settings among the annotations, by their names without the prefix, as the InjectedJob stores them."""
    return {
        key.removeprefix(PREFIX): text
        for key, text in annotations.items()
        if key.startswith(PREFIX) and key not in RESERVED
    }


def actives_of(settings: InjectionSettings, nproc: int, pods: int) -> int:
    """Pods with ranks; the others wait as spares. Raises Objection."""
    if not settings.world_size:
        return pods
    key = f"{PREFIX}world-size"
    actives, rest = divmod(settings.world_size, nproc)
    if rest:
        raise Objection(
            f"annotation {key} is {settings.world_size}: set it to a number of ranks that is a multiple of the {nproc} "
            f"workers of each pod ({PREFIX}nproc-per-node)"
        )
    if actives > pods:
        raise Objection(
            f"annotation {key} is {settings.world_size}, which takes {actives} pods of {nproc} workers, but the job "
            f"has {pods}: lower it, or raise the job's parallelism and completions"
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


def _worker_grace_period(text: str) -> float:
    if seconds(text) > LONGEST_WORKER_GRACE_PERIOD_S:
        raise ValueError(text)
    return seconds(text)


def _launcher_timeout(text: str) -> float:
    if seconds(text) < SHORTEST_LAUNCHER_TIMEOUT_S:
        raise ValueError(text)
    return seconds(text)


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


def _modules(text: str) -> tuple[str, ...]:
    return tuple(part for part in (part.strip() for part in text.split(",")) if part)


SHORTEST_LAUNCHER_TIMEOUT_S = 5.0  # as in the CRD
LONGEST_WORKER_GRACE_PERIOD_S = 3600.0  # as in the CRD
_DURATIONS = "a duration such as 30s, 10m or 1h"
_OWN = ("launcher", "container", "nproc_per_node", "world_size", "min_world_size")
#: name: (field of InjectionSettings or World, reader, valid values for messages)
_TABLE: Mapping[str, tuple[str, Callable[[str], Any], str]] = {
    "launcher": ("launcher", _one_of(AUTO, WRAP, TORCHRUN, NONE), "Auto, Wrap, Torchrun or None"),
    "container": ("container", _text, "the name of the container that trains"),
    "nproc-per-node": ("nproc_per_node", _number(1), "the number of workers of each pod, 1 or more"),
    "world-size": ("world_size", _number(1), "the number of ranks, 1 or more"),
    "min-world-size": ("min_world_size", _number(1), "the number of ranks to shrink to, 1 or more"),
    "fork-server": ("zygote", _boolean, "true or false"),
    "preload": ("preload", _modules, "names of modules, separated by commas"),
    "log-prefix": ("log_prefix", _boolean, "true or false"),
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
    "worker-grace-period": ("worker_grace_period_s", _worker_grace_period, f"{_DURATIONS} at most"),
    "backoff-max-delay": ("backoff_max_delay_s", seconds, _DURATIONS),
    "max-identical-failures": ("script_fault_rounds", _number(0), "a number, 0 or more"),
    "topology-key": ("topology_key", _text, "the name of a node's label"),
}
ANNOTATIONS = tuple(sorted(_TABLE))
#: Old name -> name.
_RENAMED: Mapping[str, str] = {
    "fence-timeout": "coordinator-loss-timeout",
    "nologin-path": "node-file",
    "zygote": "fork-server",
}
