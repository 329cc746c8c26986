"""A simulated process on a machine, and the timer of a state machine in it."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.network import End, Machine
from tests.simulation.world import Rule, Violation, World

ALARM_LATE_S = 0.001
#: A Tick at a machine's own deadline may leave the deadline in the past once or twice; repeatedly, it is a busy loop.
TICKS_IN_A_ROW = 5


class Process:
    """Works through `post`: never after its death; if it is stopped or its machine frozen, later."""

    def __init__(self, world: World, machine: Machine) -> None:
        self.world, self.machine = world, machine
        self.alive = True
        self.stopped = False
        self.ahead_s = machine.clock_ahead_s  # of its clock, which it reads once; the machine's clock may be set later
        self._backlog: list[Callable[[], None]] = []

    def now(self) -> float:
        """Unix seconds by this process's clock."""
        return self.world.now + self.ahead_s

    def post(self, work: Callable[[], None]) -> None:
        self.machine.post(lambda: self._run(work))

    def later(self, delay: float, work: Callable[[], None]) -> None:
        self.world.after(delay, lambda: self.post(work))

    def _run(self, work: Callable[[], None]) -> None:
        if self.alive and self.stopped:
            self._backlog.append(work)
        elif self.alive:
            work()

    def stop(self) -> None:
        """SIGSTOP, or a process that hangs: its kernel still acknowledges."""
        self.stopped = True

    def go_on(self) -> None:
        """Run the backlog in order, before any new work."""
        self.machine.post(self._go_on)

    def _go_on(self) -> None:
        self.stopped = False
        backlog, self._backlog = self._backlog, []
        for work in backlog:
            self._run(work)

    def listen(self, end: End, on_message: Callable[[object], None], on_end: Callable[[bool], None]) -> None:
        end.on_message = lambda message: self._run(lambda: on_message(message))
        end.on_end = lambda silent: self._run(lambda: on_end(silent))


class Alarm:
    """clock.py: one timer for a state machine. It reads `deadline` after each event."""

    def __init__(self, process: Process, deadline: Callable[[], float | None], ring: Callable[[], None]) -> None:
        self._process, self._deadline, self._ring = process, deadline, ring
        self._set_for: float | None = None
        self._in_a_row = 0

    def set(self) -> None:
        at = self._due()
        if at is None or (self._set_for is not None and self._set_for <= at + ALARM_LATE_S):
            return  # an alarm that rings earlier reads the deadline again
        world = self._process.world
        at = self._set_for = max(at, world.now) + ALARM_LATE_S
        world.at(at, lambda: self._process.post(lambda: self._rings(at)))

    def _due(self) -> float | None:
        """In simulated time."""
        deadline = self._deadline()
        return None if deadline is None else deadline - self._process.ahead_s

    def _rings(self, at: float) -> None:
        if self._set_for != at:
            return
        self._set_for = None
        now, due = self._process.world.now, self._due()
        if due is not None and due <= now:
            self._ring()
            after = self._due()
            self._in_a_row = self._in_a_row + 1 if after is not None and after <= now else 0
            if self._in_a_row > TICKS_IN_A_ROW:
                raise Violation(Rule.NO_BUSY_LOOP, f"busy loop: a Tick at {now} leaves the deadline at {after}")
        self.set()
