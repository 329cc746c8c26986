"""Stands for the coordinator's Service of a cluster: a fixed address that redirects members to the coordinator.

It is no coordinator itself: as soon as the coordinator is known, it redirects every caller that proves the job's key,
as a sidecar that is not the leader does.
"""

from understudy_protocol.membership import Join, Redirect
from understudy_protocol.observer import Refused
from understudy_sidecar.link import Link


class JobCallers:
    """A connection handler of the sidecar's server."""

    def __init__(self) -> None:
        self._coordinator: tuple[str, str] | None = None
        self._waiting: dict[int, Link] = {}

    def set_coordinator(self, coordinator: tuple[str, str] | None) -> None:
        """coordinator: pod uid and address; None while unknown."""
        self._coordinator = coordinator
        if coordinator is not None:
            for link in self._waiting.values():
                link.send(Redirect(*coordinator))
            self._waiting.clear()

    def add(self, link: Link) -> None:
        """The link's Join comes next."""

    def on_message(self, link: Link, message: object) -> None:
        if isinstance(message, Join):
            self._waiting[link.number] = link
            self.set_coordinator(self._coordinator)

    def on_dropped(self, link: Link, silent: bool) -> None:
        self._waiting.pop(link.number, None)

    def add_observer(self, link: Link) -> None:
        link.send(Refused("this address is the directory of a local run, and no coordinator listens here"))

    def on_observer_message(self, link: Link, message: object) -> None:
        """add_observer has already rejected the observer."""

    def on_observer_dropped(self, link: Link) -> None:
        """No state is kept for observers."""
