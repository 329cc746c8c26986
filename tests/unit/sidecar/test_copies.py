"""Copies of snapshots between pods, with real processes, sockets and files in memory."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import random
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.unit.sidecar.copying import PAGE, R0, R1, CopyingPod, copying_pods, until
from tests.unit.sidecar.relay import relayed
from tests.unit.tcp_server import tcp_server
from understudy_launcher.snapshot_memory import pass_no_files
from understudy_protocol.copies import RequestCopy, SendCopies
from understudy_protocol.enums import NO_ROUND, RoundToken
from understudy_protocol.snapshot_files import own_file_bytes
from understudy_protocol.snapshots import CopyPlan, FetchedStep, SavedStep
from understudy_sidecar import peer_calls
from understudy_sidecar.client import Address
from understudy_sidecar.copy_commands import Setup
from understudy_sidecar.copy_link import CopyLink
from understudy_sidecar.membership.events import (
    CopiesFlushed,
    CopiesPlanned,
    CopyFetched,
    CopyOverwrites,
    FetchCopy,
    FlushCopies,
    PlanCopies,
    SnapshotCopied,
)
from understudy_sidecar.peer_calls import CallFailed, call

pytestmark = pytest.mark.timeout(240)
OTHER_KEY = bytes(range(100, 132))
R2 = RoundToken(1, 1, 2)
LONG = 24 << 20  # bytes: more than sockets buffer


def state(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


async def copied(owner: CopyingPod, keeper: CopyingPod, step: int, content: bytes) -> SavedStep:
    """The pod's worker saves, and the other pod keeps a copy."""
    before = owner.link.counts.copied
    saved = owner.save(step, content, serial=before + 1)
    await until(lambda: owner.link.counts.copied > before, "a copy")
    await until_kept(keeper, owner, step)
    return saved


async def until_kept(keeper: CopyingPod, owner: CopyingPod, step: int, token: RoundToken = R0) -> None:
    """The owner counts a copy when it is sent; the keeper stores it later, and reports it only when it is asked."""
    async with asyncio.timeout(60):
        while step not in await keeper.kept_steps(token, (owner.owner,)):  # noqa: ASYNC110 (it sends no event)
            await asyncio.sleep(0.01)


async def called(keeper: CopyingPod, message: SendCopies | RequestCopy, pod_uid: str) -> socket.socket:
    """A call after the answer of the pod that keeps copies."""
    return await asyncio.to_thread(call, keeper.address, bytes(range(32)), "job-uid", pod_uid, message)


async def planned(owner: CopyingPod, keeper: CopyingPod) -> None:
    assert [kept.whole for kept in await keeper.plan(owners=(owner.owner,))] == [()]
    await owner.plan(holders=(keeper.holder,))


@pytest.mark.parametrize("size", [1, 5000, 1 << 20, (1 << 20) + 1, 3 << 20])
async def test_a_pod_that_takes_the_ranks_of_a_lost_one_fetches_the_copy(size: int) -> None:
    async with copying_pods() as (owner, keeper, spare):
        # given the copy of a snapshot
        await planned(owner, keeper)
        saved = await copied(owner, keeper, 7, state(size))
        # when the pod is lost, and a spare gets its rank
        kept = await keeper.plan(token=R1)
        assert [(x.group_rank, x.whole) for x in kept] == [(0, (saved,))]
        await spare.plan(token=R1)
        # then it has the same content in its own memory
        assert await spare.fetch(saved, keeper.holder, group_rank=0) == ""
        assert spare.content(0, size) == state(size)


async def ordered_before_memory(owner: CopyingPod, keeper: CopyingPod, new: CopyingPod) -> SavedStep:
    """A snapshot that the new pod has to fetch in round R1, before its launcher has memory for it."""
    await planned(owner, keeper)
    saved = await copied(owner, keeper, 7, state(5000))
    await keeper.plan(token=R1)
    await new.plan(token=R1)
    new.link.do(FetchCopy(R1, 0, saved, (keeper.holder,)))
    return saved


async def test_a_new_pod_fetches_the_copy_once_its_launcher_has_allocated_the_memory() -> None:
    async with copying_pods(new=(2,)) as (owner, keeper, new):
        # given a pod that was created in place of a lost one, and gets its rank while its launcher allocates memory
        saved = await ordered_before_memory(owner, keeper, new)
        await new.plan(token=R1)
        assert new.events == []
        # when the memory is allocated
        new.pass_memory()
        # then the pod has the content
        assert await new.next_event() == CopyFetched(R1, saved, "", ())
        assert new.content(0, 5000) == state(5000)


async def test_a_fetch_into_a_pod_that_gets_no_memory_fails() -> None:
    async with copying_pods(new=(2,)) as (owner, keeper, new):
        saved = await ordered_before_memory(owner, keeper, new)
        # when its launcher cannot allocate the memory
        pass_no_files(str(new.path))
        assert await new.next_event() == CopyFetched(R1, saved, "this pod has no memory for snapshots", ())
        # then further fetches fail at once, also with another process for copies
        assert await new.fetch(saved, keeper.holder, group_rank=0) == "this pod has no memory for snapshots"
        new.link.kill_process()
        await until(lambda: not new.has_process(), "the end of the process")
        await until(new.has_process, "the next process")
        assert isinstance(await new.next_event(), CopiesPlanned)
        assert await new.fetch(saved, keeper.holder, group_rank=0) == "this pod has no memory for snapshots"


async def test_a_pod_that_still_allocates_its_memory_is_named_once_and_gets_its_copies_after_that(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with copying_pods(new=(1,)) as (owner, keeper, _):
        assert await keeper.plan(owners=(owner.owner,)) == ()
        await owner.plan(holders=(keeper.holder,))
        owner.save(7, state(5000))
        await until(lambda: owner.link.counts.failed >= 3, "three calls")
        reason = f"{keeper.address}: rejected: this pod has no memory for snapshots yet"
        assert caplog.text.count("cannot send copies to pod") == 1
        assert f"cannot send copies to pod uid-1: {reason}" in caplog.text
        keeper.pass_memory()
        await until_kept(keeper, owner, 7)


async def test_a_newer_plan_ends_a_fetch_that_waits_for_memory() -> None:
    async with copying_pods(new=(2,)) as (owner, keeper, new):
        await ordered_before_memory(owner, keeper, new)
        await new.plan(token=R2)
        new.pass_memory()
        # then the next fetch is the first one that is answered
        await keeper.plan(token=R2)
        assert await new.fetch(SavedStep(R0, 6), keeper.holder, group_rank=0, token=R2) != ""
        with pytest.raises(AssertionError):
            new.content(0, 5000)


async def test_a_spare_that_keeps_the_copy_itself_fetches_it_without_a_connection() -> None:
    async with copying_pods() as (owner, keeper, _):
        await planned(owner, keeper)
        saved = await copied(owner, keeper, 7, state(2 << 20))
        await keeper.plan(token=R1)
        await keeper.server.close(0.0)
        assert await keeper.fetch(saved, keeper.holder, group_rank=0) == ""
        assert keeper.content(0, 2 << 20) == state(2 << 20)


async def test_the_two_newest_copies_are_kept() -> None:
    async with copying_pods() as (owner, keeper, _):
        await planned(owner, keeper)
        for step in (7, 8, 9):
            await copied(owner, keeper, step, state(5000, step))
        assert await keeper.kept_steps() == [8, 9]


async def test_the_memory_of_another_pod_has_no_content_that_can_be_read_without_the_key() -> None:
    async with copying_pods() as (owner, keeper, _):
        await planned(owner, keeper)
        await copied(owner, keeper, 7, b"secret content " * 1000)
        kept = os.pread(keeper.memory.kept[0], os.fstat(keeper.memory.kept[0]).st_size, 0)
        assert b"secret content" not in kept


async def test_a_snapshot_that_was_saved_before_its_round_is_not_copied() -> None:
    async with copying_pods() as (owner, keeper, _):
        owner.save(7, state(5000), R0)
        await keeper.plan(token=R1, owners=(owner.owner,))
        await owner.plan(token=R1, holders=(keeper.holder,))
        owner.save(8, state(5000), R1)
        await until_kept(keeper, owner, 8, R1)
        assert await keeper.kept_steps(R1) == [8]
        await until(lambda: owner.link.counts.copied == 1, "the count of one copy")


async def test_the_newest_copied_snapshot_is_reported_with_the_time_of_its_save() -> None:
    async with copying_pods() as (owner, keeper, other):
        await planned(owner, keeper)
        saved = owner.save(7, state(5000), saved_at=1763716005)
        await until(lambda: bool(owner.copied), "the report of the copy")
        assert owner.copied == [SnapshotCopied(saved, 1763716005.0)]
        # when another pod that does not answer is to keep the copies
        await other.server.close(0.0)
        await owner.plan(holders=(other.holder,))
        # then no snapshot is copied
        await until(lambda: len(owner.copied) == 2, "the report that there is no copy")
        assert owner.copied[1].saved == SavedStep(NO_ROUND, -1)


async def test_snapshots_that_are_saved_while_another_one_is_sent_are_skipped_and_counted() -> None:
    async with copying_pods() as (owner, keeper, _):
        await planned(owner, keeper)
        await copied(owner, keeper, 7, state(5000))
        # when three more were saved before the next copy begins
        owner.save(8, state(5000), serial=4)
        await until(lambda: owner.link.counts.copied == 2, "a copy")
        counts = owner.link.counts
        assert (counts.copied, counts.skipped, counts.failed) == (2, 2, 0)
        # and the newest copied step is known, with its time
        assert counts.step == 8
        assert 0 <= time.time() - counts.at < 60
        assert owner.copied_slot() == 0


async def test_with_a_stride_only_its_saves_are_copied_and_the_newest_one_stays_in_the_own_memory() -> None:
    async with copying_pods() as (owner, keeper, _):
        await keeper.plan(owners=(owner.owner,))
        for serial, step in ((1, 10), (2, 11)):
            owner.save(step, state(5000), serial=serial)
        await owner.plan(holders=(keeper.holder,), stride=4)
        await until_kept(keeper, owner, 10)
        # then the slot of step 10 stays marked, until the fifth save was copied
        assert owner.copied_slot() == 1
        owner.save(13, state(5000), serial=5)
        await until_kept(keeper, owner, 13)
        assert await keeper.kept_steps(R0, (owner.owner,)) == [10, 13]
        assert owner.copied_slot() == 2
        # and the next round begins without a mark
        await owner.plan(token=R1, holders=(keeper.holder,), stride=4)
        await until(lambda: owner.copied_slot() == 0, "the end of the mark")


@asynccontextmanager
async def a_long_copy() -> AsyncIterator[tuple[CopyingPod, CopyingPod]]:
    """The copy of step 10, the second one, lasts until the context ends: the pod that keeps it does not read."""
    async with copying_pods(LONG) as (owner, keeper, _):
        await planned(owner, keeper)
        await copied(owner, keeper, 9, state(5000))
        keeper.signal_process(signal.SIGSTOP)
        owner.save(10, bytes(LONG), serial=2)
        await until(lambda: owner.copied_slot() == 1, "a copy")
        yield owner, keeper


async def test_another_stride_does_not_interrupt_a_copy() -> None:
    async with a_long_copy() as (owner, keeper):
        await owner.plan(holders=(keeper.holder,), stride=8)
        keeper.signal_process(signal.SIGCONT)
        # then it is completed, although the second save would not be copied with this stride
        await until_kept(keeper, owner, 10)


async def test_a_pod_reports_the_stride_that_it_needs() -> None:
    async with a_long_copy() as (owner, keeper):
        # given three saves during a copy, and during a later one
        owner.save(13, state(5000), serial=5)
        keeper.signal_process(signal.SIGCONT)
        await until_kept(keeper, owner, 13)
        keeper.signal_process(signal.SIGSTOP)
        owner.save(14, bytes(LONG), serial=6)
        await until(lambda: owner.copied_slot() == 1, "a copy")
        owner.save(17, state(5000), serial=9)
        keeper.signal_process(signal.SIGCONT)
        await until(lambda: owner.strides[-1:] == [8], "the stride")
        # and one such copy has changed nothing
        assert owner.strides == [1, 8]


async def test_while_a_slot_is_written_to_storage_only_its_snapshot_is_copied() -> None:
    async with copying_pods() as (owner, keeper, _):
        # given a slot that is written to storage, and a newer snapshot in the other slot
        owner.save(8, state(5000, 8))
        owner.save(9, state(5000, 9))
        owner.mark_stored_slot(0)
        # then the first copy is of the older snapshot
        await planned(owner, keeper)
        await until_kept(keeper, owner, 8)
        assert await keeper.kept_steps(R0, (owner.owner,)) == [8]
        # when it is written, then the newer one is copied
        owner.mark_stored_slot(None)
        await until_kept(keeper, owner, 9)


async def test_after_a_flush_the_other_pod_has_the_newest_snapshot_whatever_follows() -> None:
    async with copying_pods(24 << 20) as (owner, keeper, _):
        await planned(owner, keeper)
        for step in range(3):
            # given a snapshot whose copy has hardly begun
            owner.save(step, state(24 << 20, step), serial=1 + step)
            await owner.flush()
            # when the next round closes all connections of this one, then the copy is there
            assert await keeper.kept_steps(R0, (owner.owner,)) == [x for x in (step - 1, step) if x >= 0]
        assert await keeper.kept_steps(R1) == [1, 2]


async def test_after_a_flush_the_other_pod_has_the_snapshot_before_the_newest_too() -> None:
    """Workers are drained one after the other, so other ranks may have ended before they saved the newest one."""
    async with copying_pods() as (owner, keeper, _):
        # given a snapshot that was skipped
        assert await keeper.kept_steps(owners=(owner.owner,)) == []
        owner.save(7, state(5000, 7), serial=1)
        owner.save(8, state(5000, 8), serial=2)
        await owner.plan(holders=(keeper.holder,))
        await until_kept(keeper, owner, 8)
        assert await keeper.kept_steps(owners=(owner.owner,)) == [8]
        # then it is copied by the flush, and the counts stay those of the newest ones
        await owner.flush()
        assert await keeper.kept_steps(R1) == [7, 8]
        await until(lambda: owner.link.counts.copied == 2, "the counts")
        assert owner.link.counts.skipped == 1


async def test_a_pod_that_takes_the_place_of_a_lost_one_gets_the_newest_copy() -> None:
    async with copying_pods() as (owner, keeper, spare):
        await planned(owner, keeper)
        await copied(owner, keeper, 7, state(5000))
        # when the pod that keeps the copies is lost, and a flush follows at once
        await spare.plan(owners=(owner.owner,))
        await owner.plan(holders=(spare.holder,))
        await owner.flush()
        # then the next one has the snapshot, and it does not count as skipped
        assert await spare.kept_steps(R1) == [7]
        await until(lambda: owner.link.counts.copied == 2, "the counts")
        assert owner.link.counts.skipped == 0


async def test_a_flush_ends_if_the_pod_that_keeps_the_copies_is_lost_meanwhile() -> None:
    async with copying_pods(64 << 20) as (owner, keeper, _):
        await planned(owner, keeper)
        owner.save(7, bytes(64 << 20))
        await until(owner.copied_slot, "the begin of a copy")
        keeper.link.kill_process()
        await owner.flush()


async def test_a_flush_ends_if_the_pod_that_keeps_the_copies_hangs() -> None:
    async with copying_pods(64 << 20) as (owner, keeper, _):
        await planned(owner, keeper)
        owner.save(7, bytes(64 << 20))
        await until(owner.copied_slot, "the begin of a copy")
        keeper.signal_process(signal.SIGSTOP)
        # a connection without progress for 10 s is broken
        async with asyncio.timeout(25):
            await owner.flush()
        keeper.signal_process(signal.SIGCONT)


async def test_a_flush_ends_with_the_process_that_copies() -> None:
    async with copying_pods(64 << 20) as (owner, keeper, _):
        await planned(owner, keeper)
        owner.save(7, bytes(64 << 20))
        await until(owner.copied_slot, "the begin of a copy")
        owner.link.do(FlushCopies(R0))
        owner.link.kill_process()
        assert await owner.next_event() == CopiesFlushed(R0)


async def test_a_flush_ends_if_no_pod_that_keeps_copies_can_be_reached() -> None:
    async with copying_pods() as (owner, keeper, _):
        await planned(owner, keeper)
        await keeper.server.close(0.0)
        owner.save(7, state(5000))
        await owner.flush()
        assert await keeper.kept_steps(R1) == []


@pytest.mark.attack("C1", "a pod that changes the copy of a snapshot that it keeps", before="there were no copies")
async def test_each_flipped_bit_of_a_copy_is_found_when_it_is_fetched() -> None:
    size = (1 << 20) + 100
    async with copying_pods() as (owner, keeper, spare):
        await planned(owner, keeper)
        saved = await copied(owner, keeper, 7, state(size))
        await keeper.plan(token=R1)
        await spare.plan(token=R1)
        file, length = keeper.memory.kept[0], 32 + 128 + 16 + size + 2 * 16
        slot = next(n for n in (0, 1) if os.pread(file, 8, n * _kept_slot(keeper)) != bytes(8))
        for place in range(50):
            # given a bit of the record has changed: one of its head, or of its content
            at = slot * _kept_slot(keeper) + PAGE + (4 * place if place < 44 else length - 1 - (place - 44) * 200_000)
            (byte,) = os.pread(file, 1, at)
            os.pwrite(file, bytes([byte ^ 1 << place % 8]), at)
            # then the fetch fails, and leaves no snapshot
            assert "cannot be opened" in await spare.fetch(saved, keeper.holder, group_rank=0)
            with pytest.raises(AssertionError):
                spare.content(0, size)
            os.pwrite(file, bytes([byte]), at)
        assert await spare.fetch(saved, keeper.holder, group_rank=0) == ""


class ByteRelay:
    """Forwards bytes, and inverts one bit after so many bytes in one direction; -1: none."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.flips_to_called = self.flips_to_caller = -1
        self.flipped = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        called, to_called = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            await asyncio.gather(
                self._forward(reader, to_called, self.flips_to_called),
                self._forward(called, writer, self.flips_to_caller),
            )
        finally:
            to_called.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flips: int) -> None:
        before = 0
        with contextlib.suppress(OSError):
            while data := bytearray(await reader.read(1 << 16)):
                if before <= flips < before + len(data):
                    data[flips - before] ^= 1
                    self.flipped += 1
                before += len(data)
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def relayed_by_bytes(pod: CopyingPod) -> AsyncIterator[ByteRelay]:
    """A relay at the address of this pod, whose server moves to another port."""
    await pod.server.close(0.0)
    relay = ByteRelay(await pod.server.listen(0, "127.0.0.1"))
    async with tcp_server(relay.serve, port=pod.port):
        yield relay


@pytest.mark.attack("C1", "a relay that changes a copy between two pods", before="there were no copies")
async def test_a_copy_that_a_relay_changes_on_its_way_is_not_restored() -> None:
    size = (1 << 20) + 100
    async with copying_pods() as (owner, keeper, spare), relayed_by_bytes(keeper) as relay:
        # given a relay that inverts a bit of each copy
        await planned(owner, keeper)
        relay.flips_to_called = 500_000
        saved = owner.save(7, state(size))
        await until(lambda: bool(relay.flipped), "the inverted bit")
        await owner.flush()
        # then the other pod does not keep it, and no pod restores it
        assert await keeper.kept_steps(R1) == []
        await spare.plan(token=R1)
        assert await spare.fetch(saved, keeper.holder, group_rank=0) != ""
        with pytest.raises(AssertionError):
            spare.content(0, size)


@pytest.mark.attack("C1", "a relay that changes a copy that a pod fetches", before="there were no copies")
async def test_a_copy_that_a_relay_changes_when_it_is_fetched_is_not_restored() -> None:
    size = (1 << 20) + 100
    async with copying_pods() as (owner, keeper, spare), relayed_by_bytes(keeper) as relay:
        # given a copy, and a relay that inverts a bit of it when a pod fetches it
        await planned(owner, keeper)
        saved = await copied(owner, keeper, 7, state(size))
        await keeper.plan(token=R1)
        await spare.plan(token=R1)
        relay.flips_to_caller = 500_000
        # then the fetch fails, and leaves no snapshot
        assert "cannot be opened" in await spare.fetch(saved, keeper.holder, group_rank=0)
        assert relay.flipped == 1
        with pytest.raises(AssertionError):
            spare.content(0, size)
        # and without the change it succeeds
        relay.flips_to_caller = -1
        assert await spare.fetch(saved, keeper.holder, group_rank=0) == ""


@pytest.mark.attack("C1", "a relay at the address of another pod that keeps copies", before="there were no copies")
async def test_a_relay_at_the_address_of_another_pod_gets_no_copies(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        copying_pods() as (_, keeper, _),
        relayed(Address("127.0.0.1", keeper.port), host="127.0.0.2") as relay,
    ):
        address = f"127.0.0.2:{relay.address.port}"
        with pytest.raises(CallFailed, match="closed the connection"):
            await asyncio.to_thread(call, address, bytes(range(32)), "job-uid", "uid-0", SendCopies(R0, 0))
        expected = f"127.0.0.1 was rejected: it called address '{address}', which is not this pod's"
        assert expected in caplog.messages


@pytest.mark.attack(
    "C1",
    "listens at the former address of a pod that keeps copies, and sends byte by byte",
    before="a pod that restores waited for hours: each byte extended the time",
)
async def test_an_address_that_sends_byte_by_byte_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # given an address that sends another byte long before a call without progress counts as broken
    monkeypatch.setattr(peer_calls, "ANSWER_S", 0.5)

    async def trickle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"H")
            await asyncio.sleep(0.02)

    async with tcp_server(trickle) as (host, port), asyncio.timeout(10):
        # then the call ends in time
        with pytest.raises(CallFailed, match=r"timed out|it has not answered within 0\.5 s"):
            await asyncio.to_thread(call, f"{host}:{port}", bytes(range(32)), "job-uid", "uid-0", SendCopies(R0, 0))


def _kept_slot(pod: CopyingPod) -> int:
    return os.fstat(pod.memory.kept[0]).st_size // 2


async def test_a_fetch_tries_the_next_holder() -> None:
    async with copying_pods() as (owner, keeper, spare):
        await planned(owner, keeper)
        saved = await copied(owner, keeper, 7, state(5000))
        await keeper.plan(token=R1)
        await spare.plan(token=R1)
        assert await spare.fetch(saved, owner.holder, keeper.holder, group_rank=0) == ""
        error = await spare.fetch(SavedStep(R0, 6), owner.holder, keeper.holder, group_rank=0)
        assert error.count("it closed the connection") == 2


async def test_a_fetch_overwrites_the_older_snapshot_and_reports_it() -> None:
    async with copying_pods() as (owner, keeper, spare):
        await planned(owner, keeper)
        saved = await copied(owner, keeper, 8, state(5000, 8))
        await keeper.plan(token=R1)
        await spare.plan(token=R1)
        # given a pod that has two other snapshots
        older, newer = [spare.save(step, state(5000, step)) for step in (5, 6)]
        spare.link.do(FetchCopy(R1, 0, saved, (keeper.holder,)))
        assert await spare.next_event() == CopyOverwrites(older)
        assert await spare.next_event() == CopyFetched(R1, saved, "", (older,))
        # when it fetches the same one again, then this overwrites no other one
        spare.link.do(FetchCopy(R1, 0, saved, (keeper.holder,)))
        assert await spare.next_event() == CopyFetched(R1, saved, "", (older,))
        assert spare.content(newer.step % 2, 5000) == state(5000, 6)
        # and the answer to the next plan names what was overwritten too, and what was fetched for which round
        spare.link.do(PlanCopies(R2, 0, CopyPlan(3)))
        assert await spare.next_event() == CopiesPlanned(R2, (), (older,), (FetchedStep(R1, saved),))


async def test_a_snapshot_that_was_overwritten_and_fetched_again_is_not_reported_as_overwritten() -> None:
    async with copying_pods() as (owner, keeper, spare):
        await planned(owner, keeper)
        first, second = [await copied(owner, keeper, step, state(5000)) for step in (7, 8)]
        await keeper.plan(token=R1)
        await spare.plan(token=R1)
        # given a fetched snapshot that is older than the other one in the memory
        spare.save(6, state(5000))
        assert await spare.fetch(second, keeper.holder, group_rank=0) == ""
        spare.save(10, state(5000))
        # when another fetch overwrites it, and it is fetched again
        spare.link.do(FetchCopy(R1, 0, first, (keeper.holder,)))
        assert await spare.next_event() == CopyOverwrites(second)
        assert await spare.next_event() == CopyFetched(R1, first, "", (second,))
        spare.link.do(FetchCopy(R1, 0, second, (keeper.holder,)))
        assert await spare.next_event() == CopyOverwrites(first)
        assert await spare.next_event() == CopyFetched(R1, second, "", (first,))


async def test_a_newer_plan_ends_a_fetch_of_the_older_round() -> None:
    size = 24 << 20
    async with copying_pods(size) as (owner, keeper, spare):
        await planned(owner, keeper)
        saved = await copied(owner, keeper, 7, bytes(size))
        await keeper.plan(token=R1)
        await spare.plan(token=R1)
        # given a fetch that has begun to write, from a pod that is slow
        spare.save(6, state(5000))
        before, threads = spare.save(5, state(5000)), spare.threads()
        keeper.signal_process(signal.SIGSTOP)
        spare.link.do(FetchCopy(R1, 0, saved, (keeper.holder,)))
        await until(lambda: spare.threads() > threads, "the begin of the fetch")
        keeper.signal_process(signal.SIGCONT)
        await until(lambda: os.pread(spare.memory.files[0], 8, PAGE + PAGE + size) == bytes(8), "its first write")
        keeper.signal_process(signal.SIGSTOP)
        # when a newer round begins
        spare.link.do(PlanCopies(R2, 0, CopyPlan(3)))
        assert await spare.next_event() == CopyOverwrites(before)
        assert await spare.next_event() == CopiesPlanned(R2, (), (before,))
        keeper.signal_process(signal.SIGCONT)
        # then the fetch ends without an answer, and leaves no snapshot
        await until(lambda: spare.threads() == threads, "the end of the fetch")
        assert await spare.plan(token=R2) == ()
        with pytest.raises(AssertionError):
            spare.content(1, size)
        # nor has it failed when the process ends later
        spare.link.kill_process()
        assert isinstance(await spare.next_event(), CopiesPlanned)


async def test_a_process_that_is_killed_within_a_fetch_may_have_overwritten_any_snapshot() -> None:
    async with copying_pods() as (owner, keeper, spare):
        await planned(owner, keeper)
        saved = await copied(owner, keeper, 7, state(5000))
        await keeper.plan(token=R1)
        await spare.plan(token=R1)
        keeper.signal_process(signal.SIGSTOP)
        spare.link.do(FetchCopy(R1, 0, saved, (keeper.holder,)))
        spare.link.kill_process()
        assert await spare.next_event() == CopyFetched(R1, saved, "the process for copies has ended", None)


async def test_a_process_that_is_killed_within_a_copy_leaves_the_older_one_whole() -> None:
    size = 24 << 20
    async with copying_pods(size) as (owner, keeper, _):
        await planned(owner, keeper)
        await copied(owner, keeper, 7, state(1 << 20))
        # when the sender is killed at some moments of the next copies
        for step, delay_s in ((8, 0.0), (9, 0.004), (10, 0.008)):
            content = bytes(size)
            owner.save(step, content)
            await until(owner.copied_slot, "the begin of a copy")
            await asyncio.sleep(delay_s)
            owner.link.kill_process()
            kept = await keeper.kept_steps(owners=(owner.owner,))
            # then at least one copy is whole
            assert kept
            await until(lambda: owner.link.is_ready, "another process")
        # and the next process goes on, without a mark that is left
        await until_kept(keeper, owner, 10)
        await until(lambda: owner.copied_slot() == 0, "the end of the copy")


async def test_a_newer_plan_ends_a_copy_of_the_older_round() -> None:
    size = 24 << 20
    async with copying_pods(size) as (owner, keeper, _):
        await planned(owner, keeper)
        owner.save(8, bytes(size))
        await until(owner.copied_slot, "the begin of a copy")
        before = await keeper.kept_steps(R1, (owner.owner,))
        await until(lambda: not owner.copied_slot(), "the end of a copy")
        # then what the pod has reported is still all that it keeps of that round
        assert await keeper.kept_steps(R1, (owner.owner,)) == before


@pytest.mark.attack("C1", "a pod that sends copies in place of another one", before="there were no copies")
@pytest.mark.parametrize(
    ("token", "group_rank", "pod_uid", "reason"),
    [
        (R1, 0, "uid-0", "it belongs to round 1.1.1"),
        (R0, 1, "uid-0", "keeps no copies of pod uid-0 with group rank 1"),
        (R0, 0, "uid-2", "keeps no copies of pod uid-2"),
    ],
)
async def test_copies_are_accepted_only_as_the_coordinator_has_planned(
    token: object, group_rank: int, pod_uid: str, reason: str
) -> None:
    async with copying_pods() as (owner, keeper, _):
        await keeper.plan(owners=(owner.owner,))
        message = SendCopies(token, group_rank)  # type: ignore[arg-type]
        with pytest.raises(CallFailed, match=reason):
            await called(keeper, message, pod_uid)


async def test_a_newer_connection_of_a_pod_for_its_copies_ends_the_older_one() -> None:
    async with copying_pods() as (owner, keeper, _):
        await keeper.plan(owners=(owner.owner,))
        older, newer = [await called(keeper, SendCopies(R0, 0), "uid-0") for _ in range(2)]
        assert await asyncio.to_thread(older.recv, 1) == b""
        newer.setblocking(False)
        with pytest.raises(BlockingIOError):
            newer.recv(1)
        older.close()
        newer.close()


@pytest.mark.attack("C1", "a pod that requests copies without end", before="there were no copies")
async def test_a_pod_that_requests_copies_and_reads_none_gets_a_few_only() -> None:
    size = 24 << 20  # more than the buffers of a connection
    async with copying_pods(size) as (owner, keeper, spare):
        await planned(owner, keeper)
        saved = await copied(owner, keeper, 7, bytes(size))
        request = RequestCopy(0, saved, 3)
        calls = [await called(keeper, request, "uid-2") for _ in range(16)]
        with pytest.raises(CallFailed, match="closed the connection"):
            await called(keeper, request, "uid-2")
        # and when these have ended, another pod gets its copy
        for connection in calls:
            connection.close()
        await keeper.plan(token=R1)
        await spare.plan(token=R1)
        async with asyncio.timeout(60):
            while await spare.fetch(saved, keeper.holder, group_rank=0):
                pass


@pytest.mark.attack("C1", "a process without the key that requests a copy", before="there were no copies")
async def test_a_process_without_the_key_gets_no_copy() -> None:
    async with copying_pods() as (owner, keeper, _):
        await planned(owner, keeper)
        saved = await copied(owner, keeper, 7, state(5000))
        with pytest.raises(CallFailed):
            await asyncio.to_thread(call, keeper.address, OTHER_KEY, "job-uid", "uid-2", RequestCopy(0, saved, 3))


async def test_a_state_that_is_larger_than_the_memory_is_not_stored() -> None:
    async with (
        copying_pods(1 << 20) as (owner, keeper, _),
        copying_pods(3 << 20, (bytes(range(32)),) * 2) as (large, _),
    ):
        # given a pod with more memory, whose pod has the place of the owner
        await keeper.plan(owners=(owner.owner,))
        await large.plan(holders=(keeper.holder,))
        async with asyncio.timeout(60):
            while not large.link.counts.failed:  # the first record may be in buffers when the connection is closed
                large.save(7 + large.link.counts.copied, state(2 << 20))
                await asyncio.sleep(0.05)
        assert await keeper.kept_steps(owners=(owner.owner,)) == []


async def test_of_connections_that_pass_no_files_only_the_newest_stays(tmp_path: Path) -> None:
    link = CopyLink(Setup("00" * 32, "job-uid", "uid-0", 1), lambda event: None)
    await link.start(path := tmp_path / "copies.sock")
    connections = [await asyncio.open_unix_connection(path) for _ in range(3)]
    async with asyncio.timeout(10):
        assert [await reader.read() for reader, _ in connections[:2]] == [b"", b""]
    assert not connections[2][0].at_eof()
    await link.close()
    for _, writer in connections:
        writer.close()
        await writer.wait_closed()


F_ADD_SEALS, F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW = 1033, 1, 2, 4


@pytest.mark.attack("C1", "a trainer that passes a file that it can shorten", before="there were no copies")
@pytest.mark.parametrize(
    ("which", "reason"),
    [
        ("too-small", "1 files with -4096 bytes for a slot"),
        ("not-sealed", "sealed"),
        ("may-shrink", "sealed"),
        ("may-grow", "sealed"),
        ("may-be-sealed", "sealed"),
    ],
)
async def test_files_that_are_no_memory_for_snapshots_are_ignored(
    which: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with copying_pods() as (owner, keeper, _):
        await planned(owner, keeper)
        # when any process of the pod passes a file that it can shorten
        size = 4096 if which == "too-small" else own_file_bytes(3 << 20)
        file = os.memfd_create("other", os.MFD_ALLOW_SEALING)
        os.ftruncate(file, size)
        if which == "may-shrink":
            fcntl.fcntl(file, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_GROW)
        elif which == "may-grow":
            fcntl.fcntl(file, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK)
        elif which == "may-be-sealed":
            fcntl.fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
        owner.link.take_files(1, [os.dup(file)])
        os.close(file)
        await until(lambda: "ignored the memory for snapshots" in caplog.text, "the log")
        assert caplog.text.rstrip().endswith(reason)
        await copied(owner, keeper, 7, state(5000))
