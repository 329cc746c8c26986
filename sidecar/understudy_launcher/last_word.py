"""Why a launcher has ended by itself, where the kubelet looks for it.

A pool's spare that is of no use ends, and its log goes with its pod. What its container's status says the pool tells.
"""

import os

TERMINATION_LOG = "/dev/termination-log"
_LONGEST = 1000


def leave(why: str, path: str = TERMINATION_LOG) -> None:
    """Where there is such a file: the kubelet has made it, and reads it once the container has ended."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_TRUNC), "w", errors="replace") as file:
            file.write(why[:_LONGEST])
    except OSError:
        pass  # no kubelet, or a path of the user's own: the log says it, too
