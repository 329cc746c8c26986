"""Places that addresses take in turn: no address can keep another one waiting by asking often.

Rules:
- At most `places` are taken at once, at most `per_address` of them by one address. Further requests wait, at most
  `waiting` of them.
- A free place goes to the address that has fewest places; of several such addresses, to the one whose requests have
  cost least (`note_cost`; an unknown address has cost nothing); and of these to the one that has waited longest.
- If too many wait, the newest request of the address with most waiting requests is refused.

No sockets here: bounded_server.py uses this for connections, for large bodies and for the calculation of answers.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

#: Addresses whose costs are kept.
MOST_COSTS = 1024


class Crowded(Exception):
    """Too many requests wait for a place."""


class Turns:
    def __init__(self, places: int, per_address: int, waiting: int) -> None:
        self._places, self._per_address, self._most_waiting = places, per_address, waiting
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # in the order of their turns
        self._costs: dict[str, float] = {}  # the mean of an address, which follows the newest ones; the newest last

    @property
    def taken(self) -> Counter[str]:
        """Places by address."""
        return self._taken

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def is_full(self) -> bool:
        return self._taken.total() >= self._places

    @asynccontextmanager
    async def place(self, address: str) -> AsyncIterator[None]:
        """A place, as long as the body runs. Raises Crowded."""
        await self.take(address)
        try:
            yield
        finally:
            self.leave(address)

    async def take(self, address: str) -> None:
        """`leave` gives the place back. Raises Crowded."""
        if not self.is_full and self._taken[address] < self._per_address and address not in self._waiting:
            self._taken[address] += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, deque()).append(turn)
        if self.waiting > self._most_waiting:
            self._refuse_one()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.leave(address)  # granted and cancelled in the same moment
            else:
                self._forget(address, turn)
            raise

    def leave(self, address: str) -> None:
        self._taken[address] -= 1
        if not self._taken[address]:
            del self._taken[address]
        self._grant()

    def note_cost(self, address: str, cost: float) -> None:
        """What a request of this address has cost, in any unit."""
        before = self._costs.pop(address, cost)
        self._costs[address] = (before + cost) / 2
        if len(self._costs) > MOST_COSTS:
            del self._costs[next(iter(self._costs))]

    def _grant(self) -> None:
        while not self.is_full:
            asking = [address for address in self._waiting if self._taken[address] < self._per_address]
            if not asking:
                return
            address = min(asking, key=lambda each: (self._taken[each], self._costs.get(each, 0.0)))
            turn = self._next(address)
            if not turn.done():  # else it is cancelled, and its task does not run yet
                turn.set_result(None)
                self._taken[address] += 1

    def _next(self, address: str) -> "asyncio.Future[None]":
        """Its oldest request; the address goes to the end of the line."""
        requests = self._waiting.pop(address)
        oldest = requests.popleft()
        if requests:
            self._waiting[address] = requests
        return oldest

    def _refuse_one(self) -> None:
        address = max(self._waiting, key=lambda each: len(self._waiting[each]))
        newest = self._waiting[address][-1]
        self._forget(address, newest)
        newest.set_exception(Crowded(f"too many requests of {address} wait"))

    def _forget(self, address: str, turn: "asyncio.Future[None]") -> None:
        requests = self._waiting.get(address, deque())
        if turn in requests:
            requests.remove(turn)
        if not requests:
            self._waiting.pop(address, None)
