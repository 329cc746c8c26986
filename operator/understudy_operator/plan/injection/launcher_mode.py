"""The trainer container's command: the launcher's mode, and the workers per pod.

Rules: a command that names torchrun, also inside `bash -c`, is torchrun. With Auto the launcher runs its workers. With
Torchrun it has to use Understudy's rendezvous.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from understudy_operator.plan.facts.malformed import number_in
from understudy_operator.plan.facts.trainer import (
    TORCHRUN,
    WRAP,
    device_limit,
    torchruns_nproc,
    words_of,
    workers_per_pod,
)
from understudy_operator.plan.injection.settings import NONE, PREFIX, InjectionSettings, Objection

_BACKEND = re.compile(r"--rdzv[-_]backend(?:=|\s+)(\S+)")
_STANDALONE = re.compile(r"--standalone\b")
BACKEND_VARIABLE = "PET_RDZV_BACKEND"
#: Variables of another rendezvous that a controller may have set, and that our torchrun must not see.
RENDEZVOUS_VARIABLES = (BACKEND_VARIABLE, "PET_RDZV_ENDPOINT", "PET_STANDALONE", "PET_MAX_RESTARTS", "PET_NNODES")


def choose_launcher_mode(trainer: Mapping[str, Any], settings: InjectionSettings) -> str:
    """Auto, Wrap, Torchrun or None. Raises Objection."""
    mode = settings.launcher
    if mode != NONE and not trainer.get("command"):
        raise Objection(
            f"container {trainer['name']} needs a command, because the launcher cannot start an image's ENTRYPOINT: "
            f"set command, or {PREFIX}launcher: None"
        )
    if mode == TORCHRUN:
        _refuse_other_rendezvous(trainer["name"], words_of(trainer))
    return mode


def nproc_of(trainer: Mapping[str, Any], settings: InjectionSettings, mode: str) -> int:
    """Raises Objection."""
    text, key = "" if mode == WRAP else torchruns_nproc(trainer), f"{PREFIX}nproc-per-node"
    nproc = number_in(text)
    if nproc is not None and settings.nproc_per_node not in (0, nproc):
        raise Objection(
            f"annotation {key} is {settings.nproc_per_node}, but torchrun's --nproc-per-node is {text}: remove one of "
            "them"
        )
    if text and nproc is None and not settings.nproc_per_node and not device_limit(trainer):
        raise Objection(
            f"torchrun's --nproc-per-node is {text[:80]}, which is not a number, and container {trainer['name']} has "
            f"no limit of devices such as nvidia.com/gpu: set annotation {key} to the number"
        )
    return settings.nproc_per_node or workers_per_pod(trainer)


def _refuse_other_rendezvous(name: str, words: Sequence[str]) -> None:
    text = " ".join(words)
    other = _BACKEND.search(text)
    option = ""
    if other is not None and other[1] != "understudy":
        option = other[0]
    elif _STANDALONE.search(text):
        option = "--standalone"
    if option:
        raise Objection(
            f"the command of container {name} has {option}, with which torchrun does not use Understudy's rendezvous: "
            f"remove it, or set {PREFIX}launcher: Auto"
        )
