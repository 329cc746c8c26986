"""Process-wide settings of the kernel and of Python: any member may have to coordinate ten thousand."""

import gc
import resource

#: New objects between two runs of the garbage collector. With Python's default of 700 it would scan the members of a
#: large job again and again; a sidecar creates no cycles except with errors.
OBJECTS = 50_000


def prepare() -> None:
    """Raise the limit of open files to the container's; make garbage collections rare, and skip imported modules."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS, 20, 20)
