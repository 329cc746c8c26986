"""client.py of the sidecar in simulated time: dials the coordinator until it answers, then carries messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.network import LATENCY_S, End, reachable

if TYPE_CHECKING:
    from tests.simulation.pods import Pod
    from tests.simulation.sidecars import Sidecar

CONNECT_S = 3.0
FIRST_RETRY_S = 0.05
LONGEST_RETRY_S = 1.0


class CoordinatorClient:
    """Callbacks: on_up() when linked, on_message(message), on_down() when an up link has ended."""

    def __init__(
        self,
        sidecar: Sidecar,
        on_up: Callable[[], None],
        on_message: Callable[[object], None],
        on_down: Callable[[], None],
    ) -> None:
        self._sidecar, self._world = sidecar, sidecar.world
        self._on_up, self._on_message, self._on_down = on_up, on_message, on_down
        self._link: End | None = None
        self._dialing = 0  # number of the newest dialing; an older one has been cancelled

    def dial(self) -> None:
        self._dialing += 1
        self._attempt(self._dialing, FIRST_RETRY_S)

    def send(self, message: Any) -> None:
        if self._link is not None:
            self._link.send(message)

    def hangup(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        else:
            self._dialing += 1

    def close(self) -> None:
        if self._link is not None:
            self._link.close()

    def _attempt(self, dialing: int, retry_s: float) -> None:
        """One attempt, with its time limit; the first of its outcomes counts."""
        if dialing != self._dialing:
            return
        settled = False

        def failed() -> None:
            nonlocal settled
            if not settled:
                settled = True
                self._sidecar.later(retry_s, lambda: self._attempt(dialing, min(2 * retry_s, LONGEST_RETRY_S)))

        def linked(link: End) -> None:
            nonlocal settled
            if settled or dialing != self._dialing:
                link.close()
                return
            settled = True
            self._up(link)

        pod = self._sidecar.coordinator_pod()
        if pod is None:
            self._sidecar.later(0.001, failed)
            return
        self._sidecar.later(CONNECT_S, failed)
        if reachable(self._sidecar.machine, pod.machine):
            self._world.after(self._latency_s(), lambda: pod.machine.post(lambda: self._called(pod, linked, failed)))

    def _called(self, pod: Pod, linked: Callable[[End], None], failed: Callable[[], None]) -> None:
        """At the machine that is called. Without a process that listens its kernel answers with a RST."""
        ours, back_s = self._sidecar.machine, self._latency_s()
        server = pod.sidecar
        if not reachable(ours, pod.machine):
            return  # the caller's time limit ends it
        if server is None or not server.alive:
            self._sidecar.later(back_s, failed)
            return

        def answer() -> None:
            if server.office.coordinator is None:
                self._sidecar.later(back_s, failed)
            elif reachable(ours, pod.machine):
                mine, theirs = pod.network.connect(ours, pod.machine)
                server.office.serve(theirs)
                self._sidecar.later(back_s, lambda: linked(mine))

        server.post(answer)

    def _up(self, link: End) -> None:
        self._link = link

        def ended(silent: bool) -> None:
            if self._link is link:
                self._link = None
                self._on_down()

        self._sidecar.listen(link, self._on_message, ended)
        self._on_up()

    def _latency_s(self) -> float:
        return self._world.between(*LATENCY_S)
