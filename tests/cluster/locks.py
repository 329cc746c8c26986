"""Locks between processes, on files of the cache: two commands never build one cluster at once.

`up` and `down` lock the whole cluster; a fault locks its node, and shares the cluster
with faults of other nodes. A lock ends with its process, however that ends. A machine
can run only one cluster, so a file names the cache that owns it.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from .cgroups import TREE, ControlGroup
from .commands import Progress, wait_until
from .failures import ClusterError

LIMIT_S = 1800
OWNER = Path("/run/understudy-cluster")


@contextlib.contextmanager
def locked(file: Path, progress: Progress, *, shared: bool = False) -> Iterator[None]:
    """Lock `file` during the body. Raises ClusterError if another process has it for half an hour."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as handle:
        if not _try(handle.fileno(), shared):
            progress.report("another cluster command runs; waiting for it")
            wait_until(
                lambda: _try(handle.fileno(), shared),
                limit_s=LIMIT_S,
                failure=lambda: ClusterError(
                    f"another cluster command has locked {file} for {LIMIT_S} s; find it with `fuser {file}` and end it"
                ),
            )
        yield


def _try(descriptor: int, shared: bool) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def claim_machine(cache: Path) -> None:
    """Raise ClusterError if a cluster of another cache runs here. Otherwise this cache owns the machine from now on."""
    with contextlib.suppress(FileNotFoundError):
        owner = OWNER.read_text()
        if owner != str(cache) and ControlGroup(TREE).pids():
            raise ClusterError(
                f"the cluster of the cache {owner} runs on this machine, which has room for one, and this is {cache}; "
                f"run `UNDERSTUDY_CACHE={owner} cluster down` first"
            )
    OWNER.write_text(str(cache))


def give_up_machine() -> None:
    """No cache owns the machine any more."""
    OWNER.unlink(missing_ok=True)
