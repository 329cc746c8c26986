"""Process-wide settings of the kernel and of Python: any member may have to coordinate ten thousand members."""

import resource

from understudy_protocol.garbage import FEW_SCANS, collect_rarely


def prepare() -> None:
    """Raise the limit of open files to the container's; make garbage collections rare, and skip imported modules."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    collect_rarely(FEW_SCANS)
