"""Delays that the links of callers report."""

import time

import pytest

from tests.integration.operator.training import a_snapshot
from understudy_sidecar.caller_links import CallerLinks
from understudy_sidecar.link import Link
from understudy_sidecar.membership.events import Send


class SlowMachine(Link):
    """While it writes, other processes have the CPU."""

    def send_encoded(self, message: bytes) -> None:
        time.sleep(0.2)


def test_a_moment_in_which_the_sidecar_gets_no_cpu_delays_no_snapshot():
    delays: list[float] = []
    links = CallerLinks(lambda event: None, delays.append)
    links.add(SlowMachine(1, masks=False))
    links.enqueue(Send(1, a_snapshot(3, ())))
    links.flush()
    assert delays == pytest.approx([0.0], abs=0.05)
