"""What the coordinator's Service is in a cluster: one fixed address, at which members find who coordinates.

It coordinates nothing: who proves the job's key is told where to call, as a sidecar that is not in office does, as soon
as that is known.
"""

from understudy_protocol.membership import Join, Redirect
from understudy_protocol.observer import Refused
from understudy_sidecar.link import Link


class JobCallers:
    """A Hall of the sidecar's server."""

    def __init__(self) -> None:
        self._coordinator: tuple[str, str] | None = None
        self._waiting: dict[int, Link] = {}

    def set_coordinator(self, coordinator: tuple[str, str] | None) -> None:
        """Who coordinates from now on: pod uid and address; None while nobody is known."""
        self._coordinator = coordinator
        if coordinator is not None:
            for link in self._waiting.values():
                link.send(Redirect(*coordinator))
            self._waiting.clear()

    def add(self, link: Link) -> None:
        """Its Join comes next."""

    def on_message(self, link: Link, message: object) -> None:
        if isinstance(message, Join):
            self._waiting[link.number] = link
            self.set_coordinator(self._coordinator)

    def on_dropped(self, link: Link, silent: bool) -> None:
        self._waiting.pop(link.number, None)

    def add_observer(self, link: Link) -> None:
        link.send(Refused("this address is the directory of a local run, and no coordinator listens here"))

    def on_observer_message(self, link: Link, message: object) -> None:
        """It has been answered."""

    def on_observer_dropped(self, link: Link) -> None:
        """Nothing was kept of it."""
