"""What is held about this node, from the file that the sidecar keeps: read when the pod is asked to end, and then only.

Rules: no network, no lock, nothing imported. A file that is missing, broken or expired says nothing: a checkpoint is
skipped only where somebody has said that the node is faulty.
"""

import os

from understudy_protocol import pod, wire
from understudy_protocol.membership import NodeVerdict
from understudy_protocol.words import Verdict

_KNOWN = {"NodeVerdict": NodeVerdict}


def what_is_faulty(folder: str, now: float) -> str:
    """Why no checkpoint is to be tried on this node; "" if one may be. now: Unix seconds."""
    try:
        with open(os.path.join(folder, pod.VERDICT_FILE), encoding="utf-8") as file:
            told = wire.decode(file.read(), _KNOWN)
    except (OSError, ValueError):
        return ""
    if not isinstance(told, NodeVerdict) or told.verdict is not Verdict.FAULTY:
        return ""
    if told.until is not None and now >= told.until:
        return ""
    return told.reason or "no reason told"
