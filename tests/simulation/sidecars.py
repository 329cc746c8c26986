"""app.py of the sidecar in simulated time: one life of the process, the real member between its edges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.clients import CoordinatorClient
from tests.simulation.network import End
from tests.simulation.offices import Office
from tests.simulation.process import Alarm, Process
from understudy_protocol.launcher import LauncherHello, StopWorkers
from understudy_sidecar.membership import events as e
from understudy_sidecar.membership.heir import Known
from understudy_sidecar.membership.identity import Identity
from understudy_sidecar.membership.member import Member
from understudy_sidecar.membership.voter import Voter

if TYPE_CHECKING:
    from tests.simulation.pods import Pod

#: How a member's word about its fence begins.
FENCED = "no coordinator in office was heard"


class Sidecar(Process):
    def __init__(self, pod: Pod) -> None:
        super().__init__(pod.world, pod.machine)
        self.pod = pod
        fence_s = pod.cluster.shape.fence_s
        me = Identity(pod.uid, pod.name, pod.machine.name, pod.ip, pod.index, pod.grace_s, fence_s)
        self.voter = Voter(pod.vow)
        self.member = Member(me, self.voter, self.now(), pod.recorded_close)
        self.office = Office(self)
        self._known = self.look()
        self._finished = self._terminated = False
        self._launcher: End | None = None
        self._dialed = 0
        self._client = CoordinatorClient(
            self,
            lambda host: self.handle(e.LinkUp(host)),
            lambda message: self.handle(e.FromCoordinator(message)),
            lambda: self.handle(e.LinkDown()),
        )
        self._alarm = Alarm(self, self.member.deadline, lambda: self.handle(e.Tick()))

    def die(self) -> None:
        """The kernel closes what the process had open (unless the machine is off)."""
        self.alive = False
        self._client.crashed()
        if self._launcher is not None:
            self._launcher.close()
        self.office.close()

    def look(self) -> Known:
        member = self.member
        return Known(member.coordinator, member.closed, member.may_vote_here, self.voter.vow)

    def handle(self, event: e.MemberEvent) -> None:
        for effect in self.member.handle(event, self.now()):
            self._do(effect)
        self._alarm.set()
        known = self.look()
        if known != self._known:
            self._known = known
            self.office.member_changed()

    def _do(self, effect: e.MemberEffect) -> None:
        match effect:
            case e.ToCoordinator(message):
                self._client.send(message)
            case e.KeepLink():
                self._client.keep()
            case e.ToLauncher(message):
                if isinstance(message, StopWorkers) and message.reason.startswith(FENCED):
                    self.pod.cluster.worker_faults.append(self.world.now)
                if self._launcher is not None:
                    self._launcher.send(message)
            case e.Dial(hosts, delay_s):
                self._dial(hosts, delay_s)
            case e.HangupCoordinator(reason):
                self.world.say(self.pod.name, f"hangs up: {reason}")
                self._dialed += 1
                self._client.hangup()
            case e.RecordClose(close):
                self.pod.recorded_close = close
            case e.RecordVow(vow):
                self.pod.vow = vow
            case e.Finish():
                self._finished = True
                self.end_if_over()
            case e.Say(text):
                self.world.say(self.pod.name, text)

    def _dial(self, hosts: tuple[str, ...], delay_s: float) -> None:
        self._dialed += 1
        number = self._dialed
        if delay_s:
            self.later(delay_s, lambda: self._client.dial(hosts) if self._dialed == number else None)
        else:
            self._client.dial(hosts)

    def terminate(self) -> None:
        """SIGTERM: it announces the leave, and ends (a coordinator of a closed job when it has adjourned)."""
        self.handle(e.LeaveAsked("the sidecar got SIGTERM", self.pod.grace_s))
        self._terminated = True
        self.end_if_over()

    def end_if_over(self) -> None:
        busy = self.member.closed is not None and self.office.coordinator is not None and not self.office.adjourned
        if (self._finished or self._terminated) and not busy and self.alive:
            self._client.hangup()
            self.die()

    def launcher_connected(self, end: End) -> None:
        """launcher_link.py: a newer connection takes over; its first line is the hello."""
        if self._launcher is not None:
            self._launcher.close()
        self._launcher = end
        up = False

        def received(message: object) -> None:
            nonlocal up
            if self._launcher is end:
                first, up = isinstance(message, LauncherHello) and not up, True
                self.handle(e.LauncherUp(message) if first else e.FromLauncher(message))  # type: ignore[arg-type]

        def ended(silent: bool) -> None:
            if self._launcher is end:
                self._launcher = None
                self.handle(e.LauncherDown())

        self.listen(end, received, ended)
