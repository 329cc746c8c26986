"""client.py of the sidecar in simulated time: calls its hosts in turn until one answers, then carries messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.network import LATENCY_S, End, reachable
from understudy_sidecar.client import ANSWER_S, TCP_S
from understudy_sidecar.membership.calling import Dialing
from understudy_sidecar.membership.events import SERVICE

#: Seconds until the kernel's counters are read.
LOOK_S = 0.1

if TYPE_CHECKING:
    from tests.simulation.pods import Pod
    from tests.simulation.sidecars import SimulatedSidecar


class CoordinatorClient:
    """Callbacks: on_up(host) when connected, on_message(message), on_down(silent) when an up link has ended,
    on_unreachable() as in client.py.
    """

    def __init__(
        self,
        sidecar: SimulatedSidecar,
        on_up: Callable[[str], None],
        on_message: Callable[[object], None],
        on_down: Callable[[bool], None],
        on_unreachable: Callable[[], None],
    ) -> None:
        self._sidecar, self._world = sidecar, sidecar.world
        self._on_up, self._on_message, self._on_down = on_up, on_message, on_down
        self._on_unreachable = on_unreachable
        self._link: End | None = None
        self._kept = False  # the launcher has a duplicate of its socket
        self._dialing = 0  # number of the newest dialing; an older one has been canceled

    def dial(self, hosts: tuple[str, ...]) -> None:
        self.hangup()
        self._try_next(self._dialing, Dialing(hosts))

    def send(self, message: Any) -> None:
        if self._link is not None:
            self._link.send(message)

    def hangup(self) -> None:
        self._dialing += 1
        if self._link is not None:
            self._link.close()
            self._link = None

    def crashed(self) -> None:
        """If the launcher has a duplicate of the socket, the link ends only when the launcher has ended too."""
        if self._link is not None and self._kept:
            self._sidecar.pod.hold_socket(self._link)
        elif self._link is not None:
            self._link.close()

    def watch(self) -> None:
        """machine_watch.py"""
        link = self._link

        def look() -> None:
            if link is not None and self._link is link and link.is_unreachable:
                self._on_unreachable()

        self._sidecar.later(LOOK_S, look)

    def keep(self) -> None:
        self._kept = True
        self._sidecar.pod.release_socket()

    def _try_next(self, dialing: int, order: Dialing[str]) -> None:
        wait_s, host = order.next()
        if wait_s:
            self._sidecar.later(wait_s, lambda: self._attempt(dialing, order, host))
        else:
            self._attempt(dialing, order, host)

    def _attempt(self, dialing: int, order: Dialing[str], host: str) -> None:
        """One attempt, with its time limit; the first of its outcomes counts."""
        if dialing != self._dialing:
            return
        settled = False

        def failed() -> None:
            nonlocal settled
            if settled:
                return
            settled = True
            self._try_next(dialing, order)

        def connected(link: End) -> None:
            nonlocal settled
            if settled or dialing != self._dialing:
                link.close()
                return
            settled = True
            self._up(link, host)

        cluster = self._sidecar.pod.cluster
        pod = cluster.coordinator_pod() if host == SERVICE else cluster.pod_at(host)
        if pod is None:
            self._sidecar.later(0.001, failed)
            return
        if not reachable(self._sidecar.machine, pod.machine):
            self._sidecar.later(TCP_S, failed)
            return
        self._sidecar.later(ANSWER_S, failed)
        self._world.after(self._latency_s(), lambda: pod.machine.post(lambda: self._called(pod, connected, failed)))

    def _called(self, pod: Pod, connected: Callable[[End], None], failed: Callable[[], None]) -> None:
        """Runs at the called machine. If no process listens, its kernel answers with a RST."""
        ours, back_s = self._sidecar.machine, self._latency_s()
        server = pod.sidecar
        if not reachable(ours, pod.machine):
            return  # the caller's time limit ends it
        if server is None or not server.alive:
            self._sidecar.later(back_s, failed)
            return

        def answer() -> None:
            if reachable(ours, pod.machine):
                mine, theirs = pod.network.connect(ours, pod.machine)
                server.serve(theirs)
                self._sidecar.later(back_s, lambda: connected(mine))

        server.post(answer)

    def _up(self, link: End, host: str) -> None:
        self._link, self._kept = link, False

        def ended(silent: bool) -> None:
            if self._link is link:
                self._link = None
                self._on_down(silent)

        self._sidecar.listen(link, lambda message: self._heard(link, message), ended)
        self._on_up(host)

    def _heard(self, link: End, message: object) -> None:
        if self._link is link:
            self._on_message(message)

    def _latency_s(self) -> float:
        return self._world.between(*LATENCY_S)
