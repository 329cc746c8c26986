"""A semaphore whose places addresses get in turn: an address with many requests cannot delay another address.

Rules:
- At most `places` are taken at once, at most `per_address` of them by one address. Further requests wait, at most
  `waiting` of them. A request may need several places: it waits until all of them are free, and no other request gets
  one of them meanwhile.
- A free place goes to the address whose network has the fewest places. Ties go to the address with the fewest places
  of its own, then to the network whose requests have cost least (`note_cost`; for an unknown network `unknown_cost`),
  then to the address that has waited longest. A network is a /64 of IPv6, or one address.
- If too many requests wait, the network with the most waiting requests loses one: the newest request of its address
  with the most. Ties go to the newest address.

No sockets here. bounded_server.py uses this for connections, large bodies and the computation of answers, and
runtime/line.py for the memory of messages.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from understudy_protocol.addresses import network_of

#: Networks whose costs are remembered.
MOST_COSTS = 1024


class Crowded(Exception):
    """Too many requests wait for a place."""


@dataclass(eq=False, frozen=True)
class _Request:
    places: int
    granted: "asyncio.Future[None]"


class FairSemaphore:
    def __init__(self, places: int, per_address: int, waiting: int, unknown_cost: float = 0.0) -> None:
        self._places, self._per_address, self._most_waiting = places, per_address, waiting
        self._unknown_cost = unknown_cost
        self._taken: Counter[str] = Counter()
        self._taken_by_network: Counter[str] = Counter()
        self._waiting: dict[str, deque[_Request]] = {}  # in the order of their turns
        self._costs: dict[str, float] = {}  # a moving mean for each network; the newest last

    @property
    def taken(self) -> Counter[str]:
        """Places by address."""
        return self._taken

    @property
    def taken_by_network(self) -> Counter[str]:
        return self._taken_by_network

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def is_full(self) -> bool:
        return self._taken.total() >= self._places

    @asynccontextmanager
    async def slot(self, address: str) -> AsyncIterator[None]:
        """A place while the body runs. Raises Crowded."""
        await self.acquire(address)
        try:
            yield
        finally:
            self.release(address)

    async def acquire(self, address: str, places: int = 1) -> None:
        """Wait for places. `release` gives them back. Raises Crowded."""
        request = _Request(places, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(address, deque()).append(request)
        self._grant()
        if self.waiting > self._most_waiting:
            self._refuse_one()
        granted = request.granted
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                self.release(address, places)  # granted and canceled at the same time
            else:
                self._forget(address, request)
                self._grant()
            raise

    def release(self, address: str, places: int = 1) -> None:
        for taken, key in ((self._taken, address), (self._taken_by_network, network_of(address))):
            taken[key] -= places
            if not taken[key]:
                del taken[key]
        self._grant()

    def note_cost(self, address: str, cost: float) -> None:
        """Record the cost of a request of this address, in any unit."""
        network = network_of(address)
        before = self._costs.pop(network, cost)
        self._costs[network] = (before + cost) / 2
        if len(self._costs) > MOST_COSTS:
            del self._costs[next(iter(self._costs))]

    def _grant(self) -> None:
        while self._waiting and not self.is_full:
            ready = [
                address
                for address, requests in self._waiting.items()
                if self._taken[address] + requests[0].places <= self._per_address
            ]
            if not ready:
                return
            address = min(ready, key=self._precedence)
            if self._taken.total() + self._waiting[address][0].places > self._places:
                return
            request = self._next(address)
            if not request.granted.done():  # else it is canceled, and its task has not run yet
                request.granted.set_result(None)
                self._taken[address] += request.places
                self._taken_by_network[network_of(address)] += request.places

    def _precedence(self, address: str) -> tuple[int, int, float]:
        network = network_of(address)
        return self._taken_by_network[network], self._taken[address], self._costs.get(network, self._unknown_cost)

    def _next(self, address: str) -> "_Request":
        """The address's oldest request. The address goes to the end of the line."""
        requests = self._waiting.pop(address)
        oldest = requests.popleft()
        if requests:
            self._waiting[address] = requests
        return oldest

    def _refuse_one(self) -> None:
        by_network: Counter[str] = Counter()
        for each, requests in self._waiting.items():
            by_network[network_of(each)] += len(requests)
        address = max(
            reversed(self._waiting), key=lambda each: (by_network[network_of(each)], len(self._waiting[each]))
        )
        newest = self._waiting[address][-1]
        self._forget(address, newest)
        newest.granted.set_exception(Crowded(f"too many requests of {address} wait"))

    def _forget(self, address: str, request: "_Request") -> None:
        requests = self._waiting.get(address, deque())
        if request in requests:
            requests.remove(request)
        if not requests:
            self._waiting.pop(address, None)
