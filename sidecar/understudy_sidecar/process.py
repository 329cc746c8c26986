"""What a sidecar's process asks of its kernel and of Python: any member may have to coordinate ten thousand."""

import gc
import resource

#: Python looks for cycles after so many new objects. At its own 700 the members of a large job are looked at again and
#: again; a sidecar makes no cycles but those of errors.
OBJECTS = 50_000


def prepare() -> None:
    """All the open files that the container may have, and few collections, which leave out what was imported."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS, 20, 20)
