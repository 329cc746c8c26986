"""See the package's docstring."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import benchmarks.detection
from benchmarks.arguments import listed, some_of
from benchmarks.child import Child, ChildFailed
from benchmarks.detection.goals import GOALS, LINKS
from benchmarks.detection.lossy_network import LossyNetwork, lossy_network
from benchmarks.goals import UNDERSTUDY
from benchmarks.records import Sample
from benchmarks.rendezvous.network import nodes
from benchmarks.report import add_arguments, open_journal, show
from understudy_sidecar.machine_watch import MachineWatch
from understudy_sidecar.tcp import Counters, counters, watch_peer

CASES = ("quiet-alive", "quiet-off", "busy-alive", "lossy-alive", "lossy-off")
MINUTES, RUNS = 10.0, 10
#: A sidecar watches for 3 s after a ping.
PING_S = WATCH_S = 3.0
PACKET = bytes(60)
#: From the power-off to the ping, if a step takes 0.3 s: a step is late 0.85 to 1.1 s after the end of the last one,
#: which was up to 0.3 s before the power-off.
LATE_S = 0.55, 1.1
BUSY_PER_CORE = 4
START_S, FOUND_S, LOOK_S = 20.0, 15.0, 0.01
#: A state of struct tcp_info.
_ESTABLISHED = 1


@dataclass
class Machine:
    """With the members. cut: whether no packet arrives."""

    inside: tuple[str, ...]
    ip: str
    begin: Callable[[], None]
    end: Callable[[], None]
    cut: Callable[[bool], None]


class Connection:
    """One of the coordinator's connections, as machine_watch.py sees it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def counters(self) -> Counters | None:
        return None if self.has_ended() else counters(self.sock)

    def has_ended(self) -> bool:
        """The kernel has ended the connection. A coordinator notices that at once."""
        return self.sock.fileno() < 0 or self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _ESTABLISHED

    def ping(self) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self.sock.send(PACKET)


async def connect(ip: str, port: int) -> list[Connection]:
    found = []
    for _ in range(LINKS):
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (ip, port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        watch_peer(sock)
        found.append(Connection(sock))
    return found


def close(connections: Sequence[Connection]) -> None:
    for connection in connections:
        connection.sock.close()


async def alive(machine: Machine, port: int, minutes: float) -> dict[str, float]:
    """Nothing is broken. false_alarms: how often a machine counts as unreachable. ended: connections by the kernel."""
    alarms: set[int] = set()
    watch = MachineWatch(alarms.update)
    connections = await connect(machine.ip, port)
    begun, pings, found, all_ended = time.monotonic(), 0, 0, 0
    while time.monotonic() < begun + minutes * 60:
        ended = [number for number, connection in enumerate(connections) if connection.has_ended()]
        for connection in connections:
            connection.ping()
        watch.begin(dict(enumerate(connections)), WATCH_S)
        pings += len(connections)
        await asyncio.sleep(PING_S)
        found, all_ended = found + len(alarms), all_ended + len(ended)
        alarms.clear()
        for number in ended:
            connections[number].sock.close()
            connections[number] = (await connect(machine.ip, port))[0]
    close(connections)
    return {"minutes": (time.monotonic() - begun) / 60, "pings": pings, "false_alarms": found, "ended": all_ended}


async def power_off(machine: Machine, port: int, late_s: float) -> dict[str, float]:
    """detected_s: from the power-off until the last connection counts as unreachable. after_ping_s: from the ping."""
    connections = await connect(machine.ip, port)
    found: set[int] = set()
    for connection in connections:
        connection.ping()
    await asyncio.sleep(random.uniform(2.0, 3.0))  # the phase of the kernel's keepalive
    off_at = time.monotonic()
    machine.cut(True)
    await asyncio.sleep(max(0.0, off_at + late_s - time.monotonic()))
    pinged_at = time.monotonic()
    for connection in connections:
        connection.ping()
    watch = MachineWatch(found.update)
    links = dict(enumerate(connections))
    watch.begin(links, FOUND_S)
    try:
        async with asyncio.timeout(FOUND_S):
            while any(x not in found and not links[x].has_ended() for x in links):  # noqa: ASYNC110 (no event)
                await asyncio.sleep(LOOK_S)
    finally:
        now = time.monotonic()
        watch.begin({}, 0.0)
        machine.cut(False)
        close(connections)
    return {"detected_s": now - off_at, "after_ping_s": now - pinged_at}


@contextmanager
def machine_of(network: str) -> Iterator[Machine]:
    if network == "lossy":
        with lossy_network(1) as lossy:
            yield Machine(lossy.inside, lossy.ip, lossy.begin, lossy.end, lambda is_cut: _cut(lossy, is_cut))
        return
    with nodes(1) as (node,):
        yield Machine(
            node.inside,
            node.ip,
            lambda: None,
            lambda: None,
            lambda is_cut: node.pull_the_cable() if is_cut else node.plug_in_the_cable(),
        )


def _cut(lossy: LossyNetwork, is_cut: bool) -> None:
    lossy.is_cut = is_cut


@contextmanager
def busy(processes: int) -> Iterator[None]:
    spinning = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(processes)]
    for process in spinning:
        process.start()
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.join()


def _spin() -> None:
    while True:
        pass


async def measure(machine: Machine, case: str, run: int, minutes: float) -> Sample:
    with Child(f"members-{case}", "benchmarks.detection.members", machine.ip, nice=19, inside=machine.inside) as child:
        machine.begin()
        try:
            port = (await asyncio.to_thread(child.answer, START_S))["port"]
            if case.endswith("-alive"):
                return Sample(UNDERSTUDY, case, LINKS, run, await alive(machine, port, minutes))
            late_s = LATE_S[0] + (LATE_S[1] - LATE_S[0]) * (run % RUNS) / (RUNS - 1)
            return Sample(UNDERSTUDY, case, LINKS, run, await power_off(machine, port, late_s))
        finally:
            machine.end()


def main(arguments: Sequence[str]) -> int:
    assert benchmarks.detection.__doc__ is not None
    description = benchmarks.detection.__doc__.splitlines()[0]
    parser = argparse.ArgumentParser(prog="make bench-detection ARGS=…", description=description)
    parser.add_argument("--cases", type=listed(CASES), default=CASES, help="some of " + some_of(CASES))
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of each case *-alive")
    parser.add_argument("--runs", type=int, default=RUNS, help="of each case *-off")
    add_arguments(parser)
    requests = parser.parse_args(arguments)
    journal = open_journal("detection", requests)
    for case in requests.cases:
        for run in range(1 if case.endswith("-alive") else requests.runs):
            if journal.has(UNDERSTUDY, case, LINKS, run):
                continue
            spinning = BUSY_PER_CORE * (os.cpu_count() or 1) if case.startswith("busy") else 0
            with machine_of(case.partition("-")[0]) as machine, busy(spinning):
                journal.add([asyncio.run(measure(machine, case, run, requests.minutes))])
    journal.close()
    show(journal, GOALS)
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        try:
            sys.exit(main(sys.argv[1:]))
        except ChildFailed as error:
            sys.exit(str(error))
