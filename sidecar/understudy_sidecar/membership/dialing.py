"""The order in which a member calls addresses, and its pauses. Pure."""

from collections.abc import Sequence
from typing import Generic, TypeVar

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
Address = TypeVar("Address")


class Dialing(Generic[Address]):
    """Each address in turn; after the last one a pause, 50 ms doubling to 1 s, and the first one again."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses
        self._next = 0
        self._pause_s = FIRST_PAUSE_S

    def next(self) -> tuple[float, Address]:
        """The seconds to wait, and the address to call then."""
        wait_s = 0.0
        if self._next == len(self._addresses):
            wait_s, self._next = self._pause_s, 0
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._next += 1
        return wait_s, self._addresses[self._next - 1]
