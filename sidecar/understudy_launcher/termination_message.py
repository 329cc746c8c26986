"""Why a launcher has ended by itself, where the kubelet looks for it.

A pool's spare that is of no use ends, and so does a pod that is to be replaced; its log goes with its pod. The status
of its container stays, and the operator repeats it in the status of the pool or the job. If a worker has written a
message there, that message stays.
"""

import os

TERMINATION_LOG = "/dev/termination-log"
_LONGEST = 1000


def write_termination_message(reason: str, path: str = TERMINATION_LOG) -> None:
    """Where there is such a file: the kubelet has made it, and reads it once the container has ended."""
    try:
        with open(os.open(path, os.O_WRONLY), "w", errors="replace") as file:
            if os.fstat(file.fileno()).st_size == 0:
                file.write(reason[:_LONGEST])
    except OSError:
        pass  # no kubelet, or a path of the user's own: the log says it, too
