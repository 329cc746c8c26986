"""A child process with many members: the member's half of a sidecar, many times, without a training.

Each has the real state machine (membership/member.py) and the real connection (client.py). Its simulated launcher only
reports that workers have started. Its hard state is in memory. Times are reported when the last member is done.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import Counter
from collections.abc import Callable

from benchmarks.child import Answer, run, serve
from benchmarks.machine import take_open_files
from benchmarks.rendezvous import job
from understudy_protocol import launcher as l
from understudy_protocol import membership as m
from understudy_protocol import pod
from understudy_protocol.enums import NO_ROUND, WorkersState
from understudy_protocol.hard_state import HardState
from understudy_sidecar.client import Address, CoordinatorClient
from understudy_sidecar.clock import Alarm, now
from understudy_sidecar.membership.events import (
    SERVICE,
    CoordinatorUnreachable,
    Dial,
    FromCoordinator,
    FromLauncher,
    HangupCoordinator,
    LauncherUp,
    LinkDown,
    LinkUp,
    MemberEffect,
    MemberEvent,
    Tick,
    ToCoordinator,
    ToLauncher,
    WatchCoordinator,
)
from understudy_sidecar.membership.member import Member
from understudy_sidecar.membership.member_state import Identity
from understudy_sidecar.membership.voter import Voter

NOWHERE = "127.2.0.1"  # the address of pods whose sidecars cannot be called: these members are no standby coordinators


class Crowd:
    """All members of this process, and the times at which the last of them reached each state."""

    def __init__(self) -> None:
        self.members: dict[str, LightMember] = {}
        self.joined_at = 0.0
        self.assigned: Counter[int] = Counter()  # round -> members
        self.assigned_at: dict[int, float] = {}  # round -> when the last so far was
        self.welcomed_at: list[float] = []
        self._moved = asyncio.Event()

    async def make(self, service: str, actives: list[int], spares: list[str]) -> Answer:
        """Create members for these completion indices, and spares of these names. They do not call yet."""
        named = [*((f"active-{index}", index) for index in actives), *((name, None) for name in spares)]
        self.members |= {name: LightMember(self, service, name, index) for name, index in named}
        return {"members": len(self.members)}

    async def release(self) -> Answer:
        """Connect their launchers: all members call at once."""
        for member in self.members.values():
            member.start()
        return {}

    async def assigned_to(self, number: int, members: int) -> Answer:
        """When the last of so many members had its place in the round. `newest` is the newest round of any member."""
        await self._until(lambda: self.assigned[number] >= members)
        return {"at": self.assigned_at[number], "joined_at": self.joined_at, "newest": max(self.assigned)}

    async def lose(self, name: str) -> Answer:
        """Kill the member's process, as far as the coordinator can see."""
        at = time.monotonic()
        self.members.pop(name).die()
        return {"at": at}

    async def expect_welcome(self) -> Answer:
        self.welcomed_at = []
        return {}

    async def welcomed(self, members: int) -> Answer:
        """When the first and the last of so many members were welcomed since `expect_welcome`."""
        await self._until(lambda: len(self.welcomed_at) >= members)
        return {"first": self.welcomed_at[0], "last": self.welcomed_at[members - 1], "newest": max(self.assigned)}

    def on_join(self) -> None:
        self.joined_at = time.monotonic()

    def on_assign(self, number: int) -> None:
        self.assigned[number] += 1
        self.assigned_at[number] = time.monotonic()
        self._moved.set()

    def on_welcome(self) -> None:
        self.welcomed_at.append(time.monotonic())
        self._moved.set()

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():  # the runner enforces the limit
            self._moved.clear()
            await self._moved.wait()


class LightMember:
    """Replaces app.py of a pod: the state machine, between its coordinator's link and its launcher."""

    def __init__(self, crowd: Crowd, service: str, name: str, index: int | None) -> None:
        self._crowd, self._service = crowd, service
        identity = Identity(name, name, f"node-{name}", NOWHERE, index)
        self._member = Member(identity, Voter(HardState()), now())
        self._alarm = Alarm(lambda: self._handle(Tick()))
        self._client = CoordinatorClient(
            job.KEY,
            job.UID,
            name,
            lambda host: self._handle(LinkUp(SERVICE if host == service else host)),
            self._on_message,
            lambda silent: self._handle(LinkDown(silent)),
            self._on_socket,
            lambda: self._handle(CoordinatorUnreachable()),
        )
        self._socket: int | None = None
        self._dial_later: asyncio.TimerHandle | None = None
        self._dead = False

    def start(self) -> None:
        self._handle(LauncherUp(l.LauncherHello(1, NO_ROUND, None, WorkersState.IDLE, 4000)))

    def die(self) -> None:
        """Send FIN without a final message, as a kernel does for a killed process."""
        assert self._socket is not None, "it is linked"
        self._dead = True
        self._alarm.set(None)
        with socket.socket(fileno=os.dup(self._socket)) as connection:
            connection.shutdown(socket.SHUT_RDWR)

    def _on_socket(self, fd: int | None) -> None:
        self._socket = fd

    def _on_message(self, message: object) -> None:
        if isinstance(message, m.Welcome):
            self._crowd.on_welcome()
        self._handle(FromCoordinator(message))

    def _handle(self, event: MemberEvent) -> None:
        if self._dead:
            return
        for effect in self._member.handle(event, now()):
            self._do(effect)
        self._alarm.set(self._member.deadline())

    def _do(self, effect: MemberEffect) -> None:
        match effect:
            case ToCoordinator(message):
                self._client.send(message)
                if isinstance(message, m.Join):
                    self._crowd.on_join()
            case ToLauncher(l.StartWorkers(token)):
                self._crowd.on_assign(token.round)
                asyncio.get_running_loop().call_soon(self._handle, FromLauncher(l.WorkersStarted(token)))
            case ToLauncher(l.Ping(number)):
                asyncio.get_running_loop().call_soon(self._handle, FromLauncher(l.Pong(number)))
            case Dial(hosts, delay_s):
                self._dial(hosts, delay_s)
            case HangupCoordinator():
                self._dial((), 0.0)
                self._client.hangup()
            case WatchCoordinator():
                self._client.watch()
            case _:
                pass  # files, log lines, and the launcher's work

    def _dial(self, hosts: tuple[str, ...], delay_s: float) -> None:
        """Replace the previous dial. Without hosts, dial none."""
        if self._dial_later is not None:
            self._dial_later.cancel()
            self._dial_later = None
        if hosts:
            addresses = tuple(self._address(host) for host in hosts)
            self._dial_later = asyncio.get_running_loop().call_later(delay_s, self._client.dial, addresses)

    def _address(self, host: str) -> Address:
        if host == SERVICE:
            return Address(self._service, pod.COORDINATOR_PORT, is_pod=False)
        return Address(host, pod.COORDINATOR_PORT)


async def _main() -> None:
    crowd = Crowd()
    await serve(
        {
            "make": crowd.make,
            "release": crowd.release,
            "assigned_to": crowd.assigned_to,
            "lose": crowd.lose,
            "expect_welcome": crowd.expect_welcome,
            "welcomed": crowd.welcomed,
        }
    )


if __name__ == "__main__":
    take_open_files()
    run(_main())
