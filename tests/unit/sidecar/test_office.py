"""Who may take office: one epoch has one coordinator, whatever becomes of the process."""

import asyncio
from pathlib import Path

import pytest

from understudy_protocol import compiled, observer, wire
from understudy_protocol.observer import Appoint, End, Observe, Snapshot
from understudy_protocol.pod import JobShape
from understudy_protocol.words import CloseReason
from understudy_sidecar.link import Link
from understudy_sidecar.membership.events import Resign
from understudy_sidecar.membership.heir import Known
from understudy_sidecar.membership.identity import Identity
from understudy_sidecar.membership.voter import Voter
from understudy_sidecar.office import Office
from understudy_sidecar.records import recorded_vow

SHAPE = JobShape("job-uid", "ns", "job", 2, 1, 10, 3600.0)
ME = Identity("uid", "pod-0", "node-0", "10.0.0.1", 0)


class Observer(Link):
    """The operator's line, and what it was told."""

    def __init__(self) -> None:
        super().__init__(1, masks=False, limit=1024)
        self.told: list[object] = []
        self.hears = asyncio.Event()

    def send(self, message: object) -> None:
        self.told.append(message)

    def send_encoded(self, message: bytes) -> None:
        self.told.append(compiled.decode(message.decode(), wire.message_types(observer)))
        self.hears.set()


def an_office(folder: Path) -> Office:
    voter = Voter(recorded_vow(folder))
    known = Known(None, None, False, voter.vow)
    return Office(SHAPE, ME, voter, folder, lambda: known, lambda: None, lambda close: None)


def appoint(office: Office, epoch: int) -> Observer:
    observer = Observer()
    office.asked(observer, Appoint(epoch, -1, {}))
    return observer


def appointed(folder: Path, *epochs: int) -> Office:
    office = an_office(folder)
    for epoch in epochs:
        appoint(office, epoch)
    return office


def epoch_of(office: Office) -> int | None:
    return None if office.coordinator is None else office.coordinator.office.epoch


@pytest.mark.parametrize(("epochs", "held"), [((), None), ((1,), 1), ((3, 4), 4), ((4, 3), 4), ((4, 4), 4)])
async def test_the_newest_epoch_is_held(tmp_path: Path, epochs: tuple[int, ...], held: int | None) -> None:
    assert epoch_of(appointed(tmp_path, *epochs)) == held


async def test_a_repeated_appointment_keeps_the_coordinator_and_all_it_knows(tmp_path: Path) -> None:
    office = appointed(tmp_path, 1)
    before = office.coordinator
    appoint(office, 1)
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
    appoint(office, 1)
    assert epoch_of(office) is None
    appoint(office, 2)
    assert epoch_of(office) == 2


async def test_who_watches_is_told_of_the_end_at_once(tmp_path: Path) -> None:
    """A coordinator whose members had all answered was gone before the next telling was due."""
    # given somebody who watches, and has just been told something
    office = appointed(tmp_path, 1)
    watcher = Observer()
    office.observer(watcher)
    office.observers.changed()
    watcher.told.clear()

    # when the job ends
    caller = Observer()
    office.asked(caller, End(CloseReason.DELETED, "the job was deleted"))

    # then that is told before anything else happens
    (told,) = watcher.told
    assert isinstance(told, Snapshot)
    assert told.closed is not None
    assert told.closed.reason is CloseReason.DELETED


async def test_an_observer_that_asks_without_end_gets_few_snapshots(tmp_path: Path) -> None:
    # given a coordinator, and an observer that has been sent a snapshot
    office = appointed(tmp_path, 1)
    watcher = Observer()
    office.observer(watcher)
    office.asked(watcher, Observe())
    await asyncio.wait_for(watcher.hears.wait(), 5)
    watcher.hears.clear()
    watcher.told.clear()
    # when it sends a thousand messages, without any news
    for _ in range(1000):
        office.asked(watcher, Observe())
    # then one snapshot answers them all, when the next one is due
    assert watcher.told == []
    await asyncio.wait_for(watcher.hears.wait(), 5)
    assert [type(message) for message in watcher.told] == [Snapshot]
