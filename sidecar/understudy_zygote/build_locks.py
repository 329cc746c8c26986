"""The lock files of torch's extension builds: a build that was killed leaves its file, and all later workers wait.

torch (torch.utils.file_baton) creates the file before a build and removes it afterwards. Other processes wait until it
is gone, without a message and without a time limit, and then load the result.

Rules: a fork writes its identity into the lock file that it creates. A lock is removed only if its content names a
process of this kernel and PID namespace that does not exist any more, that is, a worker of an earlier round. Then the
next worker builds. It is removed before torch tries to create it, under a lock of the folder, because torch takes a
file that vanishes while it waits for the end of a build. If a worker waits for any other lock, it logs the path of this
file, and the fix.
"""

import contextlib
import fcntl
import os
import sys
import time
from typing import Any, Optional

from understudy_zygote.on_import import after_import

_MODULE = "torch.utils.file_baton"
_MARK = "understudy"
#: A worker that waits longer says so, and again after this time.
FIRST_NOTICE_S, NEXT_NOTICE_S = 10.0, 300.0
_LONGEST = 300
_START_FIELD = 18  # after the state, in /proc/PID/stat


def watch_build_locks() -> None:
    """Called in a fork before its script runs."""
    after_import(_MODULE, _watch)


def _watch(module: Any) -> None:
    baton: Any = module.FileBaton
    acquire, wait_for_end = baton.try_acquire, baton.wait

    def try_acquire(self: Any) -> Any:
        with contextlib.suppress(OSError):
            _remove_if_stale(self.lock_file_path)
        acquired = acquire(self)
        if acquired:
            with contextlib.suppress(OSError):
                _sign(self.lock_file_path)
        return acquired

    def wait(self: Any) -> None:
        _wait_with_notices(self.lock_file_path, self.wait_seconds)
        wait_for_end(self)

    baton.try_acquire, baton.wait = try_acquire, wait


def _wait_with_notices(path: str, every_s: float) -> None:
    start = time.monotonic()
    notice_at = start + FIRST_NOTICE_S
    while os.path.exists(path):
        time.sleep(every_s)
        now = time.monotonic()
        if now >= notice_at:
            notice_at = now + NEXT_NOTICE_S
            _log(
                f"this worker has waited for {now - start:.0f} s until the file {path} is removed. torch creates the "
                "file while it builds an extension, and a build that is killed leaves it. If no process builds the "
                f"extension now, remove the file: rm {path}"
            )


def _remove_if_stale(path: str) -> None:
    """Raises OSError."""
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if _is_stale(_read(path)):
            os.unlink(path)
            _log(f"removed the file {path}: a worker of an earlier round was killed while it built a torch extension")
    finally:
        os.close(folder)


def _sign(path: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.write(fd, " ".join((_MARK, *_place(), str(os.getpid()), _started(os.getpid()) or "?")).encode())
    finally:
        os.close(fd)


def _is_stale(content: str) -> bool:
    """Whether the content names a process of this kernel and PID namespace that does not exist any more."""
    words = content.split(" ")
    if len(words) != 5 or words[0] != _MARK or tuple(words[1:3]) != _place() or not words[3].isdecimal():
        return False
    return _started(int(words[3])) != words[4]


def _place() -> tuple[str, str]:
    """This boot of the kernel, and this PID namespace. Raises OSError."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip(), str(os.stat("/proc/self/ns/pid").st_ino)


def _started(pid: int) -> Optional[str]:
    """When the process started, in clock ticks since the boot; None if it does not exist."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state, *fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else fields[_START_FIELD]


def _read(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(fd, _LONGEST).decode(errors="replace")
    finally:
        os.close(fd)


def _log(text: str) -> None:
    with contextlib.suppress(Exception):  # the script may have closed stderr, or replaced it by an object of its own
        sys.stderr.write(f"understudy: {text}\n")
        sys.stderr.flush()
