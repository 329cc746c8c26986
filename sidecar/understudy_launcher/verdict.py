"""What is held about this node, from the file that the sidecar keeps: read when the pod is asked to end, and then only.

Rules: no network, no lock, nothing imported. A file that is missing, broken or expired says nothing: a checkpoint is
skipped only where somebody has said that the node is faulty. A node that goes for another reason (maintenance,
preemption) works until then: its workers may save, within the grace that is left.
"""

import os
from typing import NamedTuple, Optional

from understudy_protocol import pod, wire
from understudy_protocol.membership import NodeVerdict
from understudy_protocol.words import Verdict

_KNOWN = {"NodeVerdict": NodeVerdict}


class Held(NamedTuple):
    faulty: str = ""  # why no checkpoint is to be tried on this node; "" if one may be
    grace_s: Optional[float] = None  # how long the node stays; None: as long as the pod may take


def what_is_held(folder: str, now: float) -> Held:
    """now: Unix seconds."""
    try:
        with open(os.path.join(folder, pod.VERDICT_FILE), encoding="utf-8") as file:
            told = wire.decode(file.read(), _KNOWN)
    except (OSError, ValueError):
        return Held()
    if not isinstance(told, NodeVerdict) or (told.until is not None and now >= told.until):
        return Held()
    if told.verdict is Verdict.FAULTY:
        return Held(told.reason or "no reason told")
    return Held("", told.grace_s)


def what_is_faulty(folder: str, now: float) -> str:
    """Why no checkpoint is to be tried; "" if one may be."""
    return what_is_held(folder, now).faulty
