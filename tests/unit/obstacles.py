"""Entries that may be in a folder which another container writes to, where a program expects a file of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NULL, ZERO = os.makedev(1, 3), os.makedev(1, 5)
NOBODY = 65534


class Obstacle:
    """make(path, private): creates it; `private` is a file that it may lead to."""

    def __init__(self, make: Callable[[Path, Path], object], user: int | None = None) -> None:
        self._make, self._user = make, user

    def __call__(self, path: Path, private: Path) -> None:
        try:
            self._make(path, private)
        except PermissionError:
            pytest.skip("this process may not create a device")

    @contextmanager
    def at(self, path: Path, private: Path) -> Iterator[None]:
        """While it is there, this process has the rights of its user."""
        self(path, private)
        before = os.geteuid()
        if self._user is not None and before == 0:
            os.seteuid(self._user)
        try:
            yield
        finally:
            os.seteuid(before)


def _device(number: int, path: Path) -> None:
    os.mknod(path, 0o020666, number)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _full_folder(path: Path) -> None:
    path.mkdir()
    (path / "x").write_text("x")


def _unreadable(path: Path) -> None:
    path.write_text("x")
    path.chmod(0)


OBSTACLES = {
    "link-to-a-private-file": Obstacle(lambda path, private: path.symlink_to(private)),
    "link-to-a-folder": Obstacle(lambda path, private: path.symlink_to(private.parent)),
    "link-to-nothing": Obstacle(lambda path, private: path.symlink_to("nowhere")),
    "link-to-itself": Obstacle(lambda path, private: path.symlink_to(path.name)),
    "hard-link": Obstacle(lambda path, private: path.hardlink_to(private)),
    "fifo": Obstacle(lambda path, private: os.mkfifo(path)),
    "device": Obstacle(lambda path, private: _device(NULL, path)),
    "empty-folder": Obstacle(lambda path, private: path.mkdir()),
    "folder": Obstacle(lambda path, private: _full_folder(path)),
    "file": Obstacle(lambda path, private: path.write_text("x")),
    "huge-file": Obstacle(lambda path, private: _sparse(path)),
    "unreadable-file": Obstacle(lambda path, private: _unreadable(path)),
}
#: Files that no program may read as its own.
UNREADABLE = {
    **{name: OBSTACLES[name] for name in ("link-to-a-private-file", "link-to-itself", "fifo", "device", "folder")},
    "link-to-nothing": OBSTACLES["link-to-nothing"],
    "link-to-zeros": Obstacle(lambda path, private: path.symlink_to("/dev/zero")),
    "zeros": Obstacle(lambda path, private: _device(ZERO, path)),
    "huge-file": Obstacle(lambda path, private: _sparse(path)),
    "unreadable-file": Obstacle(lambda path, private: _unreadable(path), user=NOBODY),
}
