"""The measured process: a coordinator's core between the real links of its server. Only sockets and the clock differ.

A transport keeps what a link writes, until the process of the members (members.py) gets it. The clock is the CPU time
of this process, without the exchange with that process; idle time passes at once. So `seconds` are those of a
coordinator alone on one core, whose network and members take no time. The system calls of a real coordinator, and its
kernel's work for each packet, come on top: `make bench-rendezvous` has them.
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.child import Unfinished, reply
from benchmarks.machine import Usage
from benchmarks.rendezvous import job
from benchmarks.scale.members import OPERATOR, Bytes, Known, Progress, join_of, serve
from understudy_protocol import membership as m
from understudy_protocol.enums import ConfigVersion, RoundToken, Term
from understudy_protocol.hard_state import HardState
from understudy_protocol.recovery import History
from understudy_sidecar import process_setup
from understudy_sidecar.caller_links import CallerLinks
from understudy_sidecar.membership.coordinator import Coordinator
from understudy_sidecar.membership.core import Core, CoreEvent
from understudy_sidecar.membership.events import Broadcast, Hangup, Send, Tick, WatchMachines
from understudy_sidecar.membership.member_state import Identity
from understudy_sidecar.membership.round_state import RoundPhase
from understudy_sidecar.server import Server, ServerLink, SidecarIdentity

EPOCH_S = 1_800_000_000.0
UID = "ffffffff-52ab-4c1e-9b1d-6f0a00000000"
COORDINATOR = Identity(UID, "llama-405b-spare-0", "node-of-the-coordinator", "10.255.0.1", None)
REST_S = 10.0  # at least one turn of heartbeats
MINUTE_S = 60.0
LIMIT_S = 600.0
Condition = Callable[[], bool]
Marks = Mapping[str, Condition]


@dataclass
class Used:
    """What the process has used so far."""

    core_s: float = 0.0
    wire_s: float = 0.0
    longest_s: float = 0.0  # of one event in the core
    out_bytes: int = 0
    in_bytes: int = 0


@dataclass(frozen=True)
class Before:
    """At the start of a measurement."""

    at: float
    used: Used
    progress: Progress


class ClockedLoop(asyncio.SelectorEventLoop):
    """Its timers follow the clock of the run."""

    clock: Callable[[], float] = staticmethod(time.monotonic)

    def time(self) -> float:
        return self.clock()


class MemoryTransport(asyncio.Transport):
    """Keeps what its link writes."""

    def __init__(self, run: Run, number: int, ip: str) -> None:
        super().__init__()
        self._run, self._number, self._ip = run, number, ip

    def write(self, data: Any) -> None:
        self._run.written.append((self._number, data))

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": (self._ip, 40002), "socket": self._run.any_socket}.get(name, default)

    def write_eof(self) -> None:
        pass

    def abort(self) -> None:
        self._run.end(self._number)

    close = abort


class FilelessServer(Server):
    """Without the limit of open files of this machine: its connections are not files."""

    def on_connected(self, caller: ServerLink) -> None:
        self.callers.add(caller)
        self.waiting_connections.add(caller)


class Run:
    """One coordinator, and the pipe to its members."""

    def __init__(self, size: int, pipe: Connection, hard_state: HardState, *, snapshots: bool = False) -> None:
        self.size, self._pipe = size, pipe
        self.used, self.progress = Used(), Progress()
        self.written: list[Bytes] = []
        self.any_socket = socket.socket()
        self._skipped_s, self._handling = EPOCH_S, 0.0
        self._links: dict[int, ServerLink] = {}
        shape = replace(job.shape(size), snapshots=snapshots, snapshot_copies=int(snapshots))
        self.core = Core(shape, COORDINATOR, hard_state, self.now(), cpu_clock=time.thread_time)
        self.links = CallerLinks(self._handle, self.core.snapshot_took)
        identity = SidecarIdentity(COORDINATOR.pod_uid, COORDINATOR.ip, job.OPERATOR_PUBLIC)
        self._server = FilelessServer(self.links, identity, job.KEY, job.UID, members=size)

    def now(self) -> float:
        return self._skipped_s + self.used.core_s + self.used.wire_s

    def skip_to(self, at: float) -> None:
        self._skipped_s += max(0.0, at - self.now())

    def ask(self, name: str, *arguments: Any) -> Any:
        self._pipe.send((name, *arguments))
        answer, self.progress = self._pipe.recv()
        return answer

    def lose(self, number: int) -> None:
        """The kernel of a member's machine ends its connection."""
        self._time(lambda: self._links.pop(number).connection_lost(None))

    def end(self, number: int) -> None:
        """The coordinator ends a connection. The member learns it after all that was written before."""
        if (link := self._links.pop(number, None)) is not None:
            self.written.append((number, b""))
            asyncio.get_running_loop().call_soon(link.connection_lost, None)

    async def until(self, done: Condition, latest: float = math.inf, marks: Marks | None = None) -> dict[str, float]:
        """Exchange messages and let time pass, until this is true and no message is on its way.

        latest: a time that is not passed while nothing happens. Returns when each mark was first true.
        """
        limit, found = self.now() + LIMIT_S, dict[str, float]()
        while self.now() < limit:
            batch = self.ask("exchange", self._take_written())
            found |= {name: self.now() for name, is_true in (marks or {}).items() if name not in found and is_true()}
            if batch:
                await self._turn(batch)
            elif done() and not self.written:
                return found
            else:
                self.skip_to(min(latest, self.core.deadline() or math.inf))
                await self._turn([])
        raise RuntimeError(f"not within {LIMIT_S:g} s of the coordinator's time: {self.progress}")

    async def measure(self, done: Condition, marks: Marks) -> dict[str, float]:
        """The resources that this took, and the seconds from the start to each mark."""
        before = self._begin()
        found = await self.until(done, marks=marks)
        return self._values(before) | {name: at - before.at for name, at in found.items()}

    async def rest(self) -> dict[str, float]:
        """The resources of a minute in which the training steps, measured in a part of it."""
        before = self._begin()
        end = before.at + REST_S
        await self.until(lambda: self.now() >= end, end)
        factor = MINUTE_S / (self.now() - before.at)
        peaks = ("longest_task_ms", "peak_rss_mb")
        return {name: x if name in peaks else x * factor for name, x in self._values(before).items()}

    def _begin(self) -> Before:
        self.used.longest_s = 0.0
        Path("/proc/self/clear_refs").write_text("5")  # the peak of the resident memory begins anew
        return Before(self.now(), replace(self.used), replace(self.progress))

    def _values(self, before: Before) -> dict[str, float]:
        return {
            "core_s": self.used.core_s - before.used.core_s,
            "wire_s": self.used.wire_s - before.used.wire_s,
            "longest_task_ms": self.used.longest_s * 1e3,
            "messages_out": self.progress.received - before.progress.received,
            "messages_in": self.progress.sent - before.progress.sent,
            "mb_out": (self.used.out_bytes - before.used.out_bytes) / 1e6,
            "mb_in": (self.used.in_bytes - before.used.in_bytes) / 1e6,
            "peak_rss_mb": Usage.of(os.getpid()).peak_rss_mb,
        }

    def _take_written(self) -> list[Bytes]:
        taken, self.written = self.written, []
        self.used.out_bytes += sum(len(data) for _, data in taken)
        return taken

    async def _turn(self, batch: list[Bytes]) -> None:
        """One turn of the event loop: what has arrived, and the timer."""
        self._time(lambda: self._deliver(batch))
        begun, core_s = time.process_time(), self.used.core_s
        await asyncio.sleep(0)
        self._count(begun, core_s)
        if (due := self.core.deadline()) is not None and due <= self.now():
            self._time(lambda: self._handle(Tick()))

    def _deliver(self, batch: list[Bytes]) -> None:
        for number, data in batch:
            link = self._links.get(number)
            if link is None and data.startswith(b"GET "):
                link = self._called(number)
            if link is not None:  # else the coordinator has ended the connection
                link.data_received(data)
            self.used.in_bytes += len(data)

    def _called(self, number: int) -> ServerLink:
        link = self._links[number] = ServerLink(number + 1, self._server)
        ip = join_of(number, self.size, Known()).ip
        link.connection_made(MemoryTransport(self, number, ip))
        return link

    def _time(self, act: Callable[[], None]) -> None:
        begun, core_s = time.process_time(), self.used.core_s
        act()
        self._count(begun, core_s)

    def _count(self, begun: float, core_s: float) -> None:
        """All CPU time since then that was not the core's."""
        self.used.wire_s += time.process_time() - begun - (self.used.core_s - core_s)

    def _handle(self, event: CoreEvent) -> None:
        """As app.py, without the files and the calls of the sidecar's own member."""
        begun = time.process_time()
        effects = self.core.handle(event, self.now())
        self.core.deadline()
        took = time.process_time() - begun
        self.used.core_s += took
        self.used.longest_s = max(self.used.longest_s, took)
        for effect in effects:
            if isinstance(effect, Send | Broadcast | Hangup | WatchMachines):
                self.links.enqueue(effect)
        self.links.flush()


async def rounds(run: Run) -> None:
    """A job from its first round on, with one spare, and another one that joins later."""
    size = run.size
    coordinator = await call_all(run)
    marks = {"joined": lambda: run.progress.joined == size + 1, "seconds": in_round(run, 0)}
    values = await run.measure(have_stepped(run, 0), marks)
    reply(case="first-round", values=values | {"assign_s": values["seconds"] - values.pop("joined")})
    run.ask("call", size + 2, 1)
    await run.until(lambda: run.progress.welcomed >= size + 2)
    configs = coordinator.state.voter_configs
    coordinator.state.config_changes.due = run.now()  # in a large job it is due later, after many heartbeats
    is_committed = lambda: coordinator.has_voters and len(configs.committed.voters) == size + 2  # noqa: E731
    reply(case="voter-config", values=await run.measure(is_committed, {}))
    reply(case="rest", values=await run.rest())
    await faults(run, coordinator)


async def restarts(run: Run) -> None:
    """The faults of `rounds` alone."""
    coordinator = await call_all(run)
    await run.until(have_stepped(run, 0))
    await faults(run, coordinator)


async def call_all(run: Run) -> Coordinator:
    """The operator appoints this pod, and then all members and a spare call it."""
    run.ask("call", OPERATOR, 1)
    await run.until(lambda: run.core.coordinator is not None)
    assert run.core.coordinator is not None
    run.ask("call", run.size + 1, 1)
    run.ask("call", 1, run.size)
    return run.core.coordinator


async def faults(run: Run, coordinator: Coordinator) -> None:
    run.ask("send", 2, m.WorkerFailed(coordinator.token, 0, 1, None, "exit code 1", run.now()))
    reply(case="worker-failed", values=await run.measure(have_stepped(run, 1), {"seconds": in_round(run, 1)}))
    run.lose(run.size)
    reply(case="member-lost", values=await run.measure(have_stepped(run, 2), {"seconds": in_round(run, 2)}))


def in_round(run: Run, number: int) -> Condition:
    return lambda: run.progress.round == number and run.progress.assigned == run.size


def have_stepped(run: Run, number: int) -> Condition:
    steps = run.progress.stepped + run.size
    return lambda: in_round(run, number)() and run.progress.stepped >= steps


async def failover(run: Run) -> None:
    """All members have lost their coordinator, and call this pod first. The round continues."""
    run.ask("call", OPERATOR, 1)
    run.ask("call", 1, run.size)

    def continues() -> bool:
        coordinator = run.core.coordinator
        if coordinator is not None and coordinator.phase is RoundPhase.WAITING:
            missing = run.size - len(coordinator.state.roster.members)
            raise Unfinished(f"the new coordinator has not waited for {missing:,} members", run.now() - began)
        return coordinator is not None and run.progress.welcomed >= run.size

    began = run.now()
    try:
        marks = {"seconds": continues, "first_welcome_s": lambda: run.progress.welcomed > 0}
        reply(case="failover", values=await run.measure(continues, marks))
    except Unfinished as error:
        reply(case="failover", unfinished=str(error), after_s=error.after_s)


SNAPSHOTS = "restarts-with-snapshots"
SESSIONS = {"rounds": rounds, "failover": failover, "restarts": restarts, SNAPSHOTS: restarts}


def known_before(session: str, size: int) -> tuple[Known, HardState]:
    """What the members and this sidecar know before they meet."""
    if session != "failover":
        return Known(), HardState()
    token, term, version = RoundToken(job.EPOCH, 1, 3), Term(job.EPOCH, 1), ConfigVersion(job.EPOCH, 1, 2)
    joins = [join_of(number, size, Known()) for number in range(1, size + 1)]
    holders = tuple(m.RankHolder(rank, x.pod_uid, x.pod_name, x.node) for rank, x in enumerate(joins))
    voters = tuple(sorted(x.pod_uid for x in joins))
    snapshot = m.LeaderSnapshot(
        version, voters, (), "the previous coordinator", {}, History(term, 1, (), {}, (), 0), token, holders, token
    )
    standbys = (m.StandbyCoordinator(COORDINATOR.pod_uid, COORDINATOR.ip),)
    return Known(token, term, version, 0.1), HardState(term, "", version, standbys, snapshot)


def main() -> None:
    session, size = sys.argv[1], int(sys.argv[2])
    known, hard_state = known_before(session, size)
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    context.Process(target=serve, args=(theirs, size, COORDINATOR.ip, known), daemon=True).start()
    theirs.close()
    process_setup.prepare()

    loop = ClockedLoop()

    async def measured() -> None:
        run = Run(size, ours, hard_state, snapshots=session == SNAPSHOTS)
        loop.clock = run.now
        await SESSIONS[session](run)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(measured())


if __name__ == "__main__":
    main()
