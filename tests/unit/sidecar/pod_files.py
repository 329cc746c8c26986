"""The files that a kubelet writes for a sidecar: from Secrets, and from fields of its pod."""

import json
from dataclasses import asdict
from pathlib import Path

from understudy_protocol import pod


def write_pod_files(folder: Path, facts: pod.JobFacts | None, uid: str = "u", name: str = "p") -> None:
    """Without the keys. facts: None: the pod has no job yet."""
    if facts is not None:
        (folder / pod.JOB_FILE).write_text(json.dumps(asdict(facts)))
    (folder / pod.POD_UID_FILE).write_text(uid)
    (folder / pod.POD_NAME_FILE).write_text(name)
