"""Writes why the launcher has ended by itself to the kubelet's termination message file.

An unusable spare of a pool ends, and so does a pod that is to be replaced. Its log is deleted with the pod, but the
operator copies the container's termination message to the status of the pool or the job. A message that a worker has
written is not overwritten.
"""

import os

TERMINATION_LOG = "/dev/termination-log"
_LONGEST = 1000


def write_termination_message(reason: str, path: str = TERMINATION_LOG) -> None:
    """Write only if the file exists: the kubelet creates it, and reads it once the container has ended."""
    try:
        with open(os.open(path, os.O_WRONLY), "w", errors="replace") as file:
            if os.fstat(file.fileno()).st_size == 0:
                file.write(reason[:_LONGEST])
    except OSError:
        pass  # no kubelet, or another path set by the user: the log has the reason too
