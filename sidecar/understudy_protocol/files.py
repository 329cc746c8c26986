"""Reads and writes files in a folder to which another container of the pod can write, too.

Such a folder may contain anything under a name that a program uses: a symbolic link into a private volume, a FIFO that
blocks its reader, a device, a folder, a file without end. Rules:
- A program reads regular files only, does not follow a link in the last part of the path, never blocks, and reads at
  most as many bytes as it expects.
- A program writes a new file under a random name, and moves it over the entry that has the name: no link is followed,
  and a reader finds the old file or the new one. A folder that has the name is renamed.
- An error names the path and never quotes the content: the content may be a key that a link leads to.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import Callable, Optional, TypeVar, Union

Path = Union[str, "os.PathLike[str]"]
T = TypeVar("T")

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def opened(path: Path, *, follow_links: bool = False) -> Iterator[int]:
    """The descriptor of a regular file, for reading. Raises OSError, for every other kind of file too.

    follow_links: for volumes to which only the kubelet writes, and in which each file is a link.
    """
    fd = os.open(path, _READ | (0 if follow_links else os.O_NOFOLLOW))
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "expected a regular file", os.fspath(path))
        yield fd
    finally:
        os.close(fd)


def read_at_most(fd: int, limit_bytes: int) -> bytes:
    """The rest of an opened file. Raises OSError if it is longer than `limit_bytes`."""
    parts, left = [], limit_bytes + 1
    while left > 0 and (part := os.read(fd, min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    if left <= 0:
        raise OSError(errno.EFBIG, f"expected at most {limit_bytes} bytes")
    return b"".join(parts)


def read_file(path: Path, limit_bytes: int, *, follow_links: bool = False) -> bytes:
    """The content of a regular file. Raises OSError, as `opened` and `read_at_most` do."""
    with opened(path, follow_links=follow_links) as fd:
        return read_at_most(fd, limit_bytes)


def write_file(path: Path, content: bytes, mode: int = 0o644, *, dir_fd: Optional[int] = None) -> None:
    """Replace the entry at `path` by a file with this content, atomically. Raises OSError."""
    folder, name = os.path.split(path)
    aside = os.path.join(folder, unused_name())
    fd = os.open(aside, _CREATE, mode, dir_fd=dir_fd)
    try:
        with open(fd, "wb") as file:
            os.fchmod(fd, mode)  # whatever the umask is
            file.write(content)
        replace(aside, os.path.join(folder, name), dir_fd=dir_fd)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(aside, dir_fd=dir_fd)
        raise


def replace(aside: Path, path: Path, *, dir_fd: Optional[int] = None) -> None:
    """Move the entry at `aside`, which is not a folder, over the entry at `path`. Raises OSError."""
    _past_obstacle(lambda: os.replace(aside, path, src_dir_fd=dir_fd, dst_dir_fd=dir_fd), path, dir_fd)


def install_folder(source: Path, target: Path) -> None:
    """Copy the files and folders in `source` into `target`, over entries with their names. Raises OSError."""
    fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _install(source, fd)
    finally:
        os.close(fd)


def unused_name() -> str:
    """A random name for a file that will be moved; no longer than the names of our sockets."""
    return f".new-{os.urandom(3).hex()}"


def _install(source: Path, into: int) -> None:
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.is_dir():
                _install_subfolder(entry, into)
            else:
                with open(entry.path, "rb") as file:
                    content, mode = file.read(), stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                write_file(entry.name, content, mode, dir_fd=into)


def _install_subfolder(source: "os.DirEntry[str]", into: int) -> None:
    def make_and_open() -> int:
        with contextlib.suppress(FileExistsError):
            os.mkdir(source.name, 0o755, dir_fd=into)
        return os.open(source.name, _FOLDER, dir_fd=into)

    fd = _past_obstacle(make_and_open, source.name, into)
    try:
        _install(source.path, fd)
    finally:
        os.close(fd)


def _past_obstacle(do: Callable[[], T], path: Path, dir_fd: Optional[int]) -> T:
    """Call `do`. If an entry of another kind has the name, rename that entry, and call `do` again."""
    try:
        return do()
    except (IsADirectoryError, NotADirectoryError):
        pass
    except OSError as error:
        if error.errno != errno.ELOOP:  # a link in place of the expected folder
            raise
    elsewhere = os.path.join(os.path.dirname(path), unused_name())
    os.rename(path, elsewhere, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    return do()
