"""A machine behind a network that delays and loses packets: two tun devices, and this process carries the packets.

The kernel's own emulation (netem) is missing in some kernels. Needs root, and the program `ip`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.cluster.commands import run

DELAY_S, LOSS = 0.2, 0.01
_HERE, _THERE = "198.18.255.1", "198.18.255.2"
_PACKET = 1 << 16
# From include/uapi/linux/if_tun.h.
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


@dataclass
class LossyNetwork:
    """To the machine at `ip`, whose processes start with the command prefix `inside`."""

    inside: tuple[str, ...]
    ip: str
    _ends: tuple[int, int]  # tun devices
    _random: random.Random
    is_cut: bool = False

    def begin(self) -> None:
        """Carry packets in this event loop."""
        loop, (near, far) = asyncio.get_running_loop(), self._ends
        loop.add_reader(near, self._carry, near, far)
        loop.add_reader(far, self._carry, far, near)

    def end(self) -> None:
        for device in self._ends:
            asyncio.get_running_loop().remove_reader(device)

    def _carry(self, source: int, target: int) -> None:
        packet = os.read(source, _PACKET)
        if not self.is_cut and self._random.random() >= LOSS:
            delay_s = self._random.uniform(0.0, DELAY_S)
            asyncio.get_running_loop().call_later(delay_s, self._deliver, target, packet)

    def _deliver(self, target: int, packet: bytes) -> None:
        if not self.is_cut:
            os.write(target, packet)


@contextmanager
def lossy_network(seed: int) -> Iterator[LossyNetwork]:
    with ExitStack() as undo:
        space = f"understudy-lossy-{os.getpid()}"
        run(["ip", "netns", "add", space])
        undo.callback(run, ["ip", "netns", "del", space])
        near, far = (_device(undo, f"ul{os.getpid()}{end}") for end in "nf")
        run(["ip", "addr", "add", _HERE, "peer", _THERE, "dev", near.name])
        run(["ip", "link", "set", near.name, "up"])
        run(["ip", "link", "set", far.name, "netns", space])
        run(["ip", "-n", space, "addr", "add", _THERE, "peer", _HERE, "dev", far.name])
        for name in ("lo", far.name):
            run(["ip", "-n", space, "link", "set", name, "up"])
        yield LossyNetwork(("ip", "netns", "exec", space), _THERE, (near.file, far.file), random.Random(seed))


@dataclass(frozen=True)
class _Device:
    name: str
    file: int  # it stays open if the device moves to another namespace


def _device(undo: ExitStack, name: str) -> _Device:
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    undo.callback(_close, file)
    fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return _Device(name, file)


def _close(file: int) -> None:
    with contextlib.suppress(OSError):
        os.close(file)
