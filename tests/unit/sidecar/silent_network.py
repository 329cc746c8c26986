"""A second network stack on this machine, behind a cable that a test can pull: a peer that really falls silent."""

from __future__ import annotations

import ctypes
import itertools
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

# From the range for benchmarks, which is routed nowhere. Each process that runs the tests has other addresses.
_BLOCK = os.getpid() % (64 * 256)
HERE, THERE = (f"198.18.{_BLOCK // 64}.{_BLOCK % 64 * 4 + host}" for host in (1, 2))
_CLONE_NEWNET = 0x40000000
_NUMBERS = itertools.count(1)


class Cable:
    """A network namespace and its veth pair."""

    def __init__(self) -> None:
        number = next(_NUMBERS)  # the kernel takes its time to remove an earlier one
        self._name = f"understudy-{os.getpid()}-{number}"
        self._end = f"us{os.getpid() % 100000}-{number}"

    def lay(self) -> None:
        _ip("netns", "add", self._name)
        _ip("link", "add", self._end, "type", "veth", "peer", "name", "far", "netns", self._name)
        _ip("addr", "add", f"{HERE}/30", "dev", self._end)
        _ip("link", "set", self._end, "up")
        _ip("-n", self._name, "addr", "add", f"{THERE}/30", "dev", "far")
        _ip("-n", self._name, "link", "set", "far", "up")

    def pull(self) -> None:
        _ip("-n", self._name, "link", "set", "far", "down")

    def remove(self) -> None:
        """Removes also an incomplete network."""
        for words in (("link", "del", self._end), ("netns", "del", self._name)):  # the link is removed with its far end
            subprocess.run(["ip", *words], check=False, capture_output=True)

    def socket(self) -> socket.socket:
        """A TCP socket at the far end."""
        libc = ctypes.CDLL(None, use_errno=True)
        ours, theirs = (
            os.open("/proc/thread-self/ns/net", os.O_RDONLY),
            os.open(f"/run/netns/{self._name}", os.O_RDONLY),
        )
        try:
            _checked(libc.setns(theirs, _CLONE_NEWNET))
            return socket.socket()
        finally:
            _checked(libc.setns(ours, _CLONE_NEWNET))
            os.close(ours)
            os.close(theirs)


def may_lay_cables() -> bool:
    """Whether this user may create network namespaces."""
    return subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode == 0


@contextmanager
def cable() -> Iterator[Cable]:
    new = Cable()
    try:
        new.lay()
        yield new
    finally:
        new.remove()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
