"""A process that checks the container's devices (devices.py) and reports the result through a pipe.

Rules: only this process loads NVIDIA's library, so a broken driver can harm no other process. At most one check runs at
a time: if the process hangs in the driver, even SIGKILL ends it only after the driver returns.
"""

import os
import signal
from typing import Callable, NoReturn, Optional

from understudy_launcher import devices, forked, prctl
from understudy_launcher.events import DevicesChecked
from understudy_launcher.process_table import Handle

_SEEN, _UNSEEN, _UNKNOWN = b"+", b"-", b"?"
_LONGEST = 1000
ENDED = "the device check ended without a result"


class DeviceCheck:
    """`watch` and `unwatch` get the pipe to select for reading. wanted: the number of devices."""

    def __init__(self, wanted: int, watch: Callable[[int], None], unwatch: Callable[[int], None]) -> None:
        self._wanted, self._watch, self._unwatch = wanted, watch, unwatch
        self.pid = 0  # while it runs
        self._process: Optional[Handle] = None
        self._read_end = -1  # while it runs

    def start(self) -> list[DevicesChecked]:
        """Return a result only if the process cannot be started."""
        assert self._read_end < 0, "one at a time"
        dies_with_us = prctl.dies_with_parent()
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            self.pid = os.fork()
        except OSError as error:
            os.close(read_end)
            os.close(write_end)
            return [DevicesChecked(f"cannot start the device check: {error.strerror}", is_certain=False)]
        if self.pid == 0:
            _check_devices(self._wanted, write_end, dies_with_us)
        self._process = Handle(self.pid)
        os.close(write_end)
        self._read_end = read_end
        self._watch(read_end)
        return []

    def on_packet(self) -> list[DevicesChecked]:
        """The pipe is readable: the process has reported its result, or ended."""
        packet = os.read(self._read_end, _LONGEST + 1)
        self._unwatch(self._read_end)
        os.close(self._read_end)
        self._read_end = -1
        self.pid = 0
        if self._process is not None:
            self._process.close()
        if not packet:
            return [DevicesChecked(ENDED, is_certain=False)]
        return [DevicesChecked(packet[1:].decode(errors="replace"), is_certain=packet[:1] != _UNKNOWN)]

    def end(self) -> None:
        """Kill a check that takes too long. on_packet then reports its end."""
        if self._read_end >= 0 and self._process is not None:
            self._process.kill()


def _check_devices(wanted: int, write_end: int, dies_with_parent: Optional[Callable[[], None]]) -> NoReturn:
    """Runs in the fork."""
    try:
        forked.begin("devices", [write_end], signal.SIG_DFL)
        if dies_with_parent is not None:
            dies_with_parent()
        why_not = devices.missing_devices_reason(devices.visible_devices(wanted, os.environ))
        os.write(write_end, _packet(_UNSEEN if why_not else _SEEN, why_not))
    except BaseException as error:  # noqa: BLE001 - the fork must never run the launcher's code
        os.write(write_end, _packet(_UNKNOWN, f"the device check failed: {type(error).__name__}: {error}"))
    finally:
        os._exit(0)


def _packet(result: bytes, why_not: str) -> bytes:
    return result + why_not.encode(errors="replace")[:_LONGEST]
