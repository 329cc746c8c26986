"""Who may take office: one epoch has one coordinator, whatever becomes of the process."""

from pathlib import Path

import pytest

from understudy_protocol.observer import Appoint
from understudy_protocol.pod import JobShape
from understudy_sidecar.membership.events import Resign
from understudy_sidecar.office import Office

SHAPE = JobShape("job-uid", "ns", "job", 2, 1, 10, 3600.0)


def appointed(folder: Path, *epochs: int) -> Office:
    office = Office(SHAPE, "uid", folder, lambda: None)
    for epoch in epochs:
        office.appoint(Appoint(epoch, -1, {}))
    return office


def epoch_of(office: Office) -> int | None:
    return None if office.coordinator is None else office.coordinator.office[0]


@pytest.mark.parametrize(("epochs", "held"), [((), None), ((1,), 1), ((3, 4), 4), ((4, 3), 4), ((4, 4), 4)])
async def test_the_newest_epoch_is_held(tmp_path: Path, epochs: tuple[int, ...], held: int | None) -> None:
    assert epoch_of(appointed(tmp_path, *epochs)) == held


async def test_a_repeated_appointment_keeps_the_coordinator_and_all_it_knows(tmp_path: Path) -> None:
    office = appointed(tmp_path, 1)
    before = office.coordinator
    office.appoint(Appoint(1, -1, {}))
    assert office.coordinator is before


async def test_a_restarted_sidecar_does_not_hold_its_former_epoch_again(tmp_path: Path) -> None:
    """Found by the simulation (seed 2): two coordinators of one epoch, the second of which knew of no round."""
    appointed(tmp_path, 2)
    assert epoch_of(appointed(tmp_path, 2)) is None
    assert epoch_of(appointed(tmp_path, 2, 3)) == 3


async def test_one_that_resigns_may_be_appointed_again_in_a_newer_epoch(tmp_path: Path) -> None:
    office = appointed(tmp_path, 1)
    office._do(Resign("it was alone"))
    assert epoch_of(office) is None
    office.appoint(Appoint(1, -1, {}))
    assert epoch_of(office) is None
    office.appoint(Appoint(2, -1, {}))
    assert epoch_of(office) == 2
