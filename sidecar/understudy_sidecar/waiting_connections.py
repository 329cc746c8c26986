"""Connections that have proved no key yet: how many may wait, and how long.

Rules:
- A connection may wait for at most `limit_s`, and at least 4/5 of it, whatever it sends. The time is counted in periods
  of one timer for all connections. A timer that fires late counts one period, so a pause of this process closes no
  connection.
- At most `max_per_address` connections of one address wait: one more evicts the oldest of that address. Members of a
  node may share an address (SNAT), so the number follows from the job's size.
- At most `max_connections` connections wait: one more evicts a connection of the network with the most connections. In
  this network it evicts the oldest connection of the address with the most. A network is a /64 of IPv6, or one address.
  So a flood from a few addresses or networks evicts only its own connections.
"""

import asyncio
import itertools
from typing import Protocol

from understudy_protocol.addresses import network_of

PERIODS = 5  # within limit_s


class Connection(Protocol):
    @property
    def peer(self) -> str:
        """The source address; it does not change."""

    def evict(self, reason: str) -> None:
        """It waits no more, and must be closed at once."""


class _Counts:
    """Counts of keys, with the largest one."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._keys: dict[int, dict[str, None]] = {}  # by their counts
        self._largest = 0

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, key: str, more: int) -> None:
        """more: 1 or -1."""
        before = self._counts.pop(key, 0)
        self._keys.get(before, {}).pop(key, None)
        count = before + more
        if count:
            self._counts[key] = count
            self._keys.setdefault(count, {})[key] = None
        if count > self._largest or not self._keys.get(self._largest):
            self._largest = count

    def first_with_most(self) -> str:
        return next(iter(self._keys[self._largest]))


class WaitingConnections:
    def __init__(self, max_connections: int, max_per_address: int, limit_s: float) -> None:
        self._max_connections, self._max_per_address, self._limit_s = max_connections, max_per_address, limit_s
        self._since: dict[Connection, int] = {}  # the period in which each was added; the oldest first
        self._of: dict[str, dict[Connection, None]] = {}  # by address; the oldest first
        self._networks = _Counts()
        self._addresses: dict[str, _Counts] = {}  # by network
        self._period = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._since)

    def add(self, connection: Connection) -> None:
        address = connection.peer
        self._since[connection] = self._period
        self._of.setdefault(address, {})[connection] = None
        self._count(address, 1)
        if len(self._of[address]) > self._max_per_address:
            self._evict_oldest_of(address, f"its address has opened {self._max_per_address} newer connections")
        elif len(self) > self._max_connections:
            self.evict_one(
                f"{self._max_connections} connections are waiting for a handshake, most of them from its address"
            )
        if self._timer is None and self._since:
            self._set_timer()

    def remove(self, connection: Connection) -> None:
        if self._since.pop(connection, None) is None:
            return
        address = connection.peer
        del self._of[address][connection]
        self._count(address, -1)
        if not self._of[address]:
            del self._of[address]

    def evict_one(self, reason: str) -> None:
        """Evict the oldest of the address with the most connections, in the network with the most, if any waits."""
        if self._since:
            addresses = self._addresses[self._networks.first_with_most()]
            self._evict_oldest_of(addresses.first_with_most(), reason)

    def _count(self, address: str, more: int) -> None:
        network = network_of(address)
        self._networks.add(network, more)
        addresses = self._addresses.setdefault(network, _Counts())
        addresses.add(address, more)
        if not addresses:
            del self._addresses[network]

    def _evict_oldest_of(self, address: str, reason: str) -> None:
        self._evict(next(iter(self._of[address])), reason)

    def _evict(self, connection: Connection, reason: str) -> None:
        self.remove(connection)
        connection.evict(reason)

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._limit_s / PERIODS, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._period += 1
        overdue = itertools.takewhile(lambda x: self._period - self._since[x] >= PERIODS, self._since)
        for connection in list(overdue):
            self._evict(connection, f"it did not prove the job's key within {self._limit_s:g} s")
        if self._since:
            self._set_timer()
