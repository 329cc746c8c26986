"""The trainer container: the workers per pod and the restarts that its command implies, and the fields that rule out a
launcher.

Rules: workers per pod are the number in torchrun's --nproc-per-node, else the container's limit of devices, else 1.
torchrun's `gpu`, `auto` and variables have a value on the pod's node only, so they count as no number. If the command
is not torchrun, its words count for nothing.
"""

import re
from collections.abc import Mapping
from typing import Any

from understudy_operator.plan.facts.malformed import number_in
from understudy_operator.plan.facts.quantities import bytes_in
from understudy_protocol.command_words import (
    NPROC_VARIABLE,
    calls_torchrun,
    max_restarts,
    nproc_text,
    program_of_ranks,
)
from understudy_protocol.pod import ENV_ROUND

Raw = Mapping[str, Any]
#: Modes of the launcher.
AUTO, WRAP, TORCHRUN = "Auto", "Wrap", "Torchrun"
#: As in the CRD.
MOST_WORKERS = 128
#: The action of a container's restartPolicyRules that restarts all containers of the pod.
RESTART_ALL = "RestartAllContainers"
#: Extended resources of which each worker takes one.
_DEVICE = re.compile(r"[a-z0-9.-]+/(gpu|gpu\.shared|gaudi|i915|xe|Ascend[0-9A-Za-z]+)")


def words_of(trainer: Raw) -> list[str]:
    return [str(word) for word in (*(trainer.get("command") or ()), *(trainer.get("args") or ()))]


def torchruns_nproc(trainer: Raw) -> str:
    """The value for torchrun's workers per pod in the command or the variable, perhaps not a number; "" if none."""
    words = words_of(trainer)
    if not calls_torchrun(words):
        return ""
    variables = (x.get("value", "") for x in trainer.get("env") or () if x["name"] == NPROC_VARIABLE)
    return nproc_text(words) or str(next(variables, ""))


def describe_own_ranks(trainer: Raw, mode: str, ranks: int) -> str:
    """Why the launcher cannot run a command that starts several ranks itself, and the fix; "" if it can.

    ranks: of the job. A job of one rank may start any processes: they are its only worker.
    """
    words = words_of(trainer)
    if ranks > 1 and (program := program_of_ranks(words)):
        return (
            f"{program} starts the processes of a pod itself, so each worker of the job would start a training of its "
            "own: make the script the command, such as [python3, train.py], and set launcher.nprocPerNode to the "
            "processes of each pod"
        )
    if mode == WRAP and calls_torchrun(words) and not any(ENV_ROUND in word for word in words):
        return (
            "launcher.mode Wrap runs the command once for each worker, but torchrun starts workers itself: set "
            "launcher.mode to Auto"
        )
    return ""


def is_device(resource: str) -> bool:
    return _DEVICE.fullmatch(resource) is not None


def device_limit(trainer: Raw) -> int:
    """0 if the container has no devices."""
    limits = (trainer.get("resources") or {}).get("limits") or {}
    found = [number_in(str(quantity)) or 0 for name, quantity in limits.items() if is_device(name)]
    return min(max(found, default=0), MOST_WORKERS)


def memory_limit(trainer: Raw) -> int | None:
    """In bytes; None if the container has no limit."""
    return bytes_in(((trainer.get("resources") or {}).get("limits") or {}).get("memory"))


def workers_per_pod(trainer: Raw) -> int:
    """If the job does not set it."""
    return min(number_in(torchruns_nproc(trainer)) or device_limit(trainer) or 1, MOST_WORKERS)


def restarts_of_torchrun(trainer: Raw) -> int | None:
    """The number in torchrun's --max-restarts, if the command has one."""
    return max_restarts(words_of(trainer))


def kubelet_restarts(spec: Mapping[str, Any], name: str) -> str:
    """The field with which the kubelet would restart the launcher; "" if none. name: of the trainer container."""
    containers = spec.get("containers") or ()
    for container in containers[:1] if not name else (x for x in containers if x["name"] == name):
        policy = container.get("restartPolicy", "Never")
        if policy != "Never":
            return f"restartPolicy {policy} of container {container['name']}"
        if container.get("restartPolicyRules"):
            return f"restartPolicyRules of container {container['name']}"
    for container in (*(spec.get("initContainers") or ()), *containers):
        if any(rule.get("action") == RESTART_ALL for rule in container.get("restartPolicyRules") or ()):
            return f"restartPolicyRules with action {RESTART_ALL} of container {container['name']}"
    return ""
