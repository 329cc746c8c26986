"""Machines and the connections between processes on them, with the behavior of Linux and TCP.

- A connection is two FIFOs with a random latency. The end of a process closes its connections: the peer reads all
  pending messages, then the FIN.
- Two groups of machines may not reach each other while both reach others; a machine's network may be slow. Messages
  over one connection stay in order; messages over several do not.
- A machine without power or network is cut off. Messages to it wait (TCP sends them again); after about 3 s (keepalive,
  TCP_USER_TIMEOUT) the kernel of each live side ends the connection as silent, and it counts the packets without an
  acknowledgment before. A side whose peer's kernel has already ended it gets a RST once the network is back: not
  silent.
- The processes of a frozen machine do not run, but its kernel still acknowledges, so no kernel detects the freeze. All
  received messages and expired timers are handled at the thaw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.world import World

LATENCY_S = (0.001, 0.030)
LOCAL_LATENCY_S = (0.0001, 0.001)
SILENT_S = (3.0, 4.5)
UNACKNOWLEDGED_S = 1.2


@dataclass
class Machine:
    """A node. `on`, `frozen` and `cut` (off the network) change only through Network."""

    name: str
    on: bool = True
    frozen: bool = False
    thawed_at: float = 0.0
    cut: bool = False
    clock_ahead_s: float = 0.0  # of its wall clock
    slow_s: float = 0.0  # the most that its network adds to each latency
    unreachable: set[str] = field(default_factory=set)  # machines that it alone does not reach (nor they it)
    hardware_finding: str = ""  # why it is Faulty; "" if it is not
    leaving_reason: str = ""  # why it will leave soon
    not_ready_since: float | None = None  # when it stopped responding to the API server
    _backlog: list[Callable[[], None]] = field(default_factory=list)

    @property
    def is_responding(self) -> bool:
        return self.on and not self.frozen and not self.cut

    def post(self, work: Callable[[], None]) -> None:
        """Run a process's work now, at the thaw, or never."""
        if not self.on:
            return
        if self.frozen:
            self._backlog.append(work)
        else:
            work()

    def take_backlog(self) -> list[Callable[[], None]]:
        backlog, self._backlog = self._backlog, []
        return backlog


def reachable(a: Machine, b: Machine) -> bool:
    return a.on and b.on and (a is b or not (a.cut or b.cut or b.name in a.unreachable))


class End:
    """One process's end of a connection."""

    def __init__(self, link: Link, machine: Machine) -> None:
        self.machine = machine
        self.open = True
        self.on_message: Callable[[Any], None] = lambda message: None
        self.on_end: Callable[[bool], None] = lambda silent: None
        self.sent_until = 0.0  # when the last item sent arrives: FIFO
        self.waiting: list[Any] = []  # messages that wait for the network
        self._link = link

    @property
    def peer(self) -> End:
        a, b = self._link.ends
        return b if self is a else a

    @property
    def is_unreachable(self) -> bool:
        """Whether several packets in a row were not acknowledged, a second and more (tcp.py)."""
        since = self._link.blocked_since
        return self.open and since is not None and self._link.now - since >= UNACKNOWLEDGED_S

    def send(self, message: Any) -> None:
        if self.open:
            self._link.carry(self, message)

    def close(self) -> None:
        """The process closes the connection, or ends: the kernel sends FIN after all pending messages."""
        if self.open:
            self.open = False
            self._link.carry(self, _FIN)

    def ended(self, silent: bool) -> None:
        """The kernel reports to the process that the connection is over."""
        if self.open:
            self.open = False
            self.machine.post(lambda: self.on_end(silent))


_FIN = object()


class Link:
    def __init__(self, network: Network, a: Machine, b: Machine) -> None:
        self.ends = (End(self, a), End(self, b))
        self.blocked_since: float | None = None if reachable(a, b) else network.world.now
        self._network = network
        self._latency = LOCAL_LATENCY_S if a is b else LATENCY_S
        network.links.append(self)

    @property
    def now(self) -> float:
        return self._network.world.now

    @property
    def is_over(self) -> bool:
        return not any(end.open for end in self.ends)

    @property
    def blocked(self) -> bool:
        return not reachable(self.ends[0].machine, self.ends[1].machine)

    def carry(self, sender: End, item: Any) -> None:
        world = self._network.world
        local = self.ends[0].machine is self.ends[1].machine  # as a launcher's connection to its sidecar: no network
        slow_s = 0.0 if local else max(end.machine.slow_s for end in self.ends)
        delay = world.between(*self._latency) + (world.between(0.0, slow_s) if slow_s else 0.0)
        sender.sent_until = max(sender.sent_until, world.now + delay)
        world.at(sender.sent_until, lambda: self._arrive(sender.peer, item))

    def _arrive(self, to: End, item: Any) -> None:
        if self.blocked or to.waiting:
            to.waiting.append(item)
        elif not to.open and item is not _FIN:
            to.peer.ended(silent=False)  # RST
        else:
            self._hand_over(to, item)

    def _hand_over(self, to: End, item: Any) -> None:
        if item is _FIN:
            to.ended(silent=False)
        else:
            to.machine.post(lambda: to.on_message(item) if to.open else None)

    def block(self) -> None:
        world = self._network.world
        since = self.blocked_since = world.now
        for end in self.ends:
            world.after(world.between(*SILENT_S), lambda end=end: self._give_up(end, since))  # type: ignore[misc]

    def _give_up(self, end: End, since: float) -> None:
        if self.blocked_since == since:
            end.waiting.clear()
            end.ended(silent=True)

    def unblock(self) -> None:
        self.blocked_since = None
        for end in self.ends:
            if end.open and not end.peer.open and _FIN not in end.waiting:
                end.waiting.clear()
                end.ended(silent=False)  # the peer's kernel had ended it: RST
            waiting, end.waiting = end.waiting, []
            for item in waiting:
                self._hand_over(end, item)


class Network:
    def __init__(self, world: World) -> None:
        self.world = world
        self.links: list[Link] = []

    def connect(self, a: Machine, b: Machine) -> tuple[End, End]:
        return Link(self, a, b).ends

    def power_off(self, machine: Machine) -> None:
        machine.not_ready_since = machine.not_ready_since or self.world.now
        machine.on = False
        for end in (end for link in self.links for end in link.ends if end.machine is machine):
            end.open = False  # its peer gets no FIN
        self._changed(machine)

    def cut(self, machine: Machine) -> None:
        machine.not_ready_since = machine.not_ready_since or self.world.now
        machine.cut = True
        self._changed(machine)

    def heal(self, machine: Machine) -> None:
        machine.cut = False
        if machine.is_responding:
            machine.not_ready_since = None
        self._changed(machine)

    def part(self, group: list[Machine], others: list[Machine]) -> None:
        """Cut the two groups off from each other; all still reach third machines."""
        for a in group:
            for b in others:
                a.unreachable.add(b.name)
                b.unreachable.add(a.name)
        for machine in group:
            self._changed(machine)

    def join(self, group: list[Machine], others: list[Machine]) -> None:
        for a in group:
            for b in others:
                a.unreachable.discard(b.name)
                b.unreachable.discard(a.name)
        for machine in group:
            self._changed(machine)

    def freeze(self, machine: Machine) -> None:
        machine.not_ready_since = machine.not_ready_since or self.world.now
        machine.frozen = True

    def thaw(self, machine: Machine) -> None:
        """Run the backlog in order, before any new work."""
        machine.frozen, machine.thawed_at = False, self.world.now
        if machine.is_responding:
            machine.not_ready_since = None
        for work in machine.take_backlog():
            self.world.after(0.0, lambda work=work: machine.post(work))  # type: ignore[misc]

    def _changed(self, machine: Machine) -> None:
        self.links = [link for link in self.links if not link.is_over]
        for link in self.links:
            if machine in (link.ends[0].machine, link.ends[1].machine):
                if link.blocked and link.blocked_since is None:
                    link.block()
                elif not link.blocked and link.blocked_since is not None:
                    link.unblock()
