"""Defaults that a trainer container implies: its workers per pod, and the restarts that its torchrun permits.

Rules: workers per pod are the number in torchrun's --nproc-per-node, else the container's limit of devices, else 1.
torchrun's `gpu`, `auto` and variables have a value on the pod's node only, so they count as no number. If the command
is not torchrun, its words count for nothing.
"""

import re
from collections.abc import Mapping
from typing import Any

from understudy_operator.plan.facts.malformed import number_in
from understudy_operator.plan.facts.quantities import bytes_in
from understudy_protocol.command_words import NPROC_VARIABLE, calls_torchrun, max_restarts, nproc_text

Raw = Mapping[str, Any]
#: As in the CRD.
MOST_WORKERS = 128
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


def device_limit(trainer: Raw) -> int:
    """0 if the container has no devices."""
    limits = (trainer.get("resources") or {}).get("limits") or {}
    found = [number_in(str(quantity)) or 0 for name, quantity in limits.items() if _DEVICE.fullmatch(name)]
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
