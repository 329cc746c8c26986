"""The verdict on this node, from the sidecar's file. Read only when the pod is asked to end.

Rules: no network, no lock, no import, and no wait for a FIFO, because workers can write to the folder. A file that is
missing, broken, expired or not a regular file is ignored: a checkpoint is skipped only if a verdict reports the node as
faulty. A node that leaves for another reason (maintenance, preemption) works until then, so its workers may save within
the remaining grace.
"""

import os
from typing import NamedTuple, Optional

from understudy_protocol import files, pod, wire
from understudy_protocol.enums import Verdict
from understudy_protocol.membership import NodeVerdict

_KNOWN = {"NodeVerdict": NodeVerdict}
_LIMIT_BYTES = 1 << 16


class NodeFinding(NamedTuple):
    hardware_finding: str = ""  # why no checkpoint is tried on this node; "" if one may be
    grace_s: Optional[float] = None  # how long the node remains; None: at least the pod's grace period


def read_node_finding(folder: str, now: float) -> NodeFinding:
    """now: Unix seconds."""
    try:
        verdict = wire.decode(files.read_file(os.path.join(folder, pod.VERDICT_FILE), _LIMIT_BYTES), _KNOWN)
    except (OSError, ValueError):
        return NodeFinding()
    if not isinstance(verdict, NodeVerdict) or (verdict.until is not None and now >= verdict.until):
        return NodeFinding()
    if verdict.verdict is Verdict.FAULTY:
        return NodeFinding(verdict.reason or "the node health verdict has no reason")
    return NodeFinding("", verdict.grace_s)


def read_hardware_finding(folder: str, now: float) -> str:
    """Why no checkpoint is tried; "" if one may be."""
    return read_node_finding(folder, now).hardware_finding
