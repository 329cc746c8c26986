"""Requests to servers at a steady rate, without waiting for answers: directly, and through proxies, in turns.

The client has no HTTP library and runs on uvloop, as the servers, to use less of the cores that they all share.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from benchmarks.records import Sample
from benchmarks.rollout.proxies import Proxies
from benchmarks.rollout.servers import STREAM, STREAM_END, TIME, WHOLE_END

#: Open connections to all servers together, and the fewest to one server.
CONNECTIONS, CONNECTIONS_EACH = 512, 8
#: The systems take turns, so that other work of the machine slows down all of them.
SLICE_S = 0.5
WARM_S = 0.25
END_S = 60.0
PERCENTS = (50, 99)
DIRECT = "direct"
_PROMPT = b'{"text": "' + b"y" * 500 + b'"}'
_OK = b"HTTP/1.1 200 "


class RequestFailed(Exception):
    """A request was not answered with status 200."""


class Load:
    """Requests to the servers or proxies at these ports, each in its turn.

    took_s: of each answer since its request was due. In streams: of each token since the server has written it.
    """

    def __init__(self, ports: Sequence[int], *, streamed: bool) -> None:
        self.streamed, self.body = streamed, STREAM + b", " + _PROMPT[1:] if streamed else _PROMPT
        self.took_s: list[float] = []
        self.sent = 0  # requests of the last run
        self._ports = ports
        self._idle: dict[int, list[_Connection]] = {port: [] for port in ports}
        self._waiting: dict[int, deque[float]] = {port: deque() for port in ports}
        self._running = 0
        self._is_over = asyncio.Event()
        self._error = ""

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        for port in [*self._ports] * max(CONNECTIONS_EACH, CONNECTIONS // len(self._ports)):
            _, connection = await loop.create_connection(partial(_Connection, self, port), "127.0.0.1", port)
            self._idle[port].append(connection)

    def close(self) -> None:
        for connection in (x for idle in self._idle.values() for x in idle):
            connection.close()

    async def run(self, rate: float, seconds: float) -> list[float]:
        """Send requests for these seconds, and wait for all answers. Return took_s. Raises RequestFailed."""
        self.took_s = []
        start_s, self.sent = time.monotonic(), 0
        while self.sent < rate * seconds:
            now_s = time.monotonic()
            while self.sent < rate * seconds and start_s + self.sent / rate <= now_s:
                self._send(self._ports[self.sent % len(self._ports)], now_s)
                self.sent += 1
            await asyncio.sleep(max(0.0, start_s + self.sent / rate - time.monotonic()))
        await asyncio.wait_for(self._is_over.wait(), END_S)
        if self._error:
            raise RequestFailed(self._error)
        return self.took_s

    def _send(self, port: int, now_s: float) -> None:
        self._running += 1
        self._is_over.clear()
        if self._idle[port]:
            self._idle[port].pop().send(now_s)
        else:
            self._waiting[port].append(now_s)

    def on_answer(self, connection: _Connection) -> None:
        if self._waiting[connection.port]:
            connection.send(self._waiting[connection.port].popleft())
        else:
            self._idle[connection.port].append(connection)
        self._running -= 1
        if not self._running:
            self._is_over.set()

    def on_error(self, error: str) -> None:
        self._error = error
        self._is_over.set()


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, load: Load, port: int) -> None:
        self.port, self._load = port, load
        self._request = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (
            len(load.body),
            load.body,
        )
        self._received, self._is_begun, self._sent_s = b"", False, 0.0
        self._is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def send(self, due_s: float) -> None:
        self._received, self._is_begun, self._sent_s = b"", False, due_s
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now_s = time.monotonic()
        self._received += data
        if not self._is_begun and not self._received.startswith(_OK):
            self._load.on_error(f"the proxy or server answered {self._received!r:.500}")
            return
        self._is_begun = True
        if not self._load.streamed:
            if self._received.endswith(WHOLE_END):
                self._load.took_s.append(now_s - self._sent_s)
                self._load.on_answer(self)
            return
        read = 0
        for token in TIME.finditer(self._received):
            self._load.took_s.append(now_s - int(token[1]) / 1e9)
            read = token.end()
        self._received = self._received[read:]
        if self._received.endswith(STREAM_END):
            self._load.on_answer(self)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._is_closed:
            self._load.on_error(f"a connection ended: {error}")

    def close(self) -> None:
        self._is_closed = True
        self._transport.abort()


async def measure(
    case: str, systems: Mapping[str, Proxies], rate: int, seconds: float, runs: Sequence[int], *, streamed: bool
) -> list[Sample]:
    """seconds: of load in each run, for each system."""
    loads = {system: Load(proxies.ports, streamed=streamed) for system, proxies in systems.items()}
    for load in loads.values():
        await load.connect()
        await load.run(rate, min(seconds, WARM_S))
    samples = []
    for run in runs:
        results = {system: _Result() for system in systems}
        for turn in range(max(1, round(seconds / SLICE_S))):
            for system in _rotated([*systems], turn):
                before_s = systems[system].cpu_s()
                results[system].took_s += await loads[system].run(rate, min(seconds, SLICE_S))
                results[system].cpu_s += systems[system].cpu_s() - before_s
                results[system].answers += loads[system].sent
        samples += [Sample(x, case, rate, run, _metrics(results[x], results[DIRECT])) for x in systems]
    for load in loads.values():
        load.close()
    return samples


@dataclass
class _Result:
    took_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    answers: int = 0

    def percentile_ms(self, percent: int) -> float:
        return sorted(self.took_s)[len(self.took_s) * percent // 100] * 1000


def _metrics(result: _Result, direct: _Result) -> dict[str, float]:
    own = {f"p{percent}_ms": result.percentile_ms(percent) for percent in PERCENTS}
    if result is direct:
        return own
    added = {f"added_p{percent}_ms": own[f"p{percent}_ms"] - direct.percentile_ms(percent) for percent in PERCENTS}
    return {**own, **added, "cpu_us": result.cpu_s / result.answers * 1e6}


def _rotated(names: list[str], by: int) -> list[str]:
    first = by % len(names)
    return names[first:] + names[:first]
