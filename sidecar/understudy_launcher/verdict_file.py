"""The verdict on this node, from the file that the sidecar keeps: read when the pod is asked to end, and then only.

Rules: no network, no lock, nothing imported, and no wait for a FIFO: the folder is open to the workers. A file that is
missing, broken, expired or not a regular file is ignored: a checkpoint is skipped only if a verdict says that the node
is faulty. A node that goes for another reason (maintenance, preemption) works until then: its workers may save, within
the grace that is left.
"""

import os
from typing import NamedTuple, Optional

from understudy_protocol import files, pod, wire
from understudy_protocol.enums import Verdict
from understudy_protocol.membership import NodeVerdict

_KNOWN = {"NodeVerdict": NodeVerdict}
_LIMIT_BYTES = 1 << 16


class NodeFinding(NamedTuple):
    hardware_finding: str = ""  # why no checkpoint is to be tried on this node; "" if one may be
    grace_s: Optional[float] = None  # how long the node stays; None: as long as the pod may take


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
    """Why no checkpoint is to be tried; "" if one may be."""
    return read_node_finding(folder, now).hardware_finding
