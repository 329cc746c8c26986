"""The kind of a trainer container's command: torchrun, or a script that a launcher starts; and its workers per pod.

Rules: a command that names torchrun, also inside `bash -c`, is torchrun. Its own option gives the number of workers,
which has to be a number here: `gpu`, `auto` and variables have a value on the pod's node only.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from understudy_operator.plan.facts.malformed import number_in
from understudy_operator.plan.injection.settings import (
    AUTO,
    NONE,
    PREFIX,
    TORCHRUN,
    WRAP,
    InjectionSettings,
    Objection,
)

_TORCHRUN = re.compile(r"(?:^|[\s/;&|(])torchrun(?:$|[\s;&|)])|torch\.distributed\.(?:run|launch)\b")
_NPROC = re.compile(r"--nproc[-_]per[-_]node(?:=|\s+)(\S+)")
_BACKEND = re.compile(r"--rdzv[-_]backend(?:=|\s+)(\S+)")
_STANDALONE = re.compile(r"--standalone\b")
NPROC_VARIABLE, BACKEND_VARIABLE = "PET_NPROC_PER_NODE", "PET_RDZV_BACKEND"
#: Variables of another rendezvous that a controller may have set, and that our torchrun must not see.
RENDEZVOUS_VARIABLES = (BACKEND_VARIABLE, "PET_RDZV_ENDPOINT", "PET_STANDALONE", "PET_MAX_RESTARTS", "PET_NNODES")


def choose_launcher_mode(trainer: Mapping[str, Any], settings: InjectionSettings) -> str:
    """Wrap, Torchrun or None. Raises Objection."""
    words = _words(trainer)
    mode = settings.launcher
    if mode == AUTO:
        mode = TORCHRUN if any(_TORCHRUN.search(word) for word in words) else WRAP
    if mode != NONE and not trainer.get("command"):
        raise Objection(
            f"container {trainer['name']} needs a command, because the launcher cannot start an image's ENTRYPOINT: "
            f"set command, or {PREFIX}launcher: None"
        )
    if mode == TORCHRUN:
        _refuse_other_rendezvous(trainer["name"], words)
    return mode


def nproc_of(trainer: Mapping[str, Any], settings: InjectionSettings, mode: str) -> int:
    """Raises Objection."""
    text = _find_nproc(trainer) if mode == TORCHRUN else ""
    if not text:
        return settings.nproc_per_node or 1
    key = f"{PREFIX}nproc-per-node"
    nproc = number_in(text)
    if nproc is None:
        if settings.nproc_per_node:
            return settings.nproc_per_node
        raise Objection(
            f"torchrun's --nproc-per-node is {text[:80]}, which is not a number: set annotation {key} to the number"
        )
    if settings.nproc_per_node not in (0, nproc):
        raise Objection(
            f"annotation {key} is {settings.nproc_per_node}, but torchrun's --nproc-per-node is {text}: remove one of "
            "them"
        )
    return nproc


def _find_nproc(trainer: Mapping[str, Any]) -> str:
    found = _NPROC.search(" ".join(_words(trainer)))
    if found is not None:
        return found[1].strip("\"'\\;")
    return next((x.get("value", "") for x in trainer.get("env", ()) if x["name"] == NPROC_VARIABLE), "")


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
            "remove it"
        )


def _words(trainer: Mapping[str, Any]) -> list[str]:
    return [str(word) for word in (*trainer.get("command", ()), *trainer.get("args", ()))]
