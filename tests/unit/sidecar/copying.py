"""Pods with the real process for copies: a server, its memory for snapshots, and the answers to its plans."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import struct
import tempfile
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.ports import free_port
from understudy_launcher.snapshot_memory import SnapshotMemory
from understudy_protocol.enums import RoundToken
from understudy_protocol.snapshots import CopyHolder, CopyOwner, CopyPlan, KeptSteps, SavedStep
from understudy_sidecar.copy_commands import Setup
from understudy_sidecar.copy_link import CopyLink
from understudy_sidecar.membership.events import (
    CopiesFlushed,
    CopiesPlanned,
    CopyEvent,
    CopyFetched,
    CopyOverwrites,
    CopyStrideNeeded,
    FetchCopy,
    FlushCopies,
    PlanCopies,
    SnapshotCopied,
)
from understudy_sidecar.server import Server, SidecarIdentity

KEY, JOB, MAGIC = bytes(range(32)), "job-uid", 0x756E64736E617031
PAGE, HEADER, LIMIT_S = 4096, 160, 60.0
WORLD = 3
R0, R1 = RoundToken(1, 1, 0), RoundToken(1, 1, 1)


class CopyingPod:
    """A pod with one worker: its group rank is its rank. slot_bytes: the size of a state."""

    def __init__(self, group_rank: int, slot_bytes: int, key: bytes = KEY) -> None:
        self.group_rank, self.uid = group_rank, f"uid-{group_rank}"
        self.path = Path()  # of the socket for the files of its memory
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.memory = SnapshotMemory(1, slot_bytes, 1, copies=1)
        self.slot_bytes = slot_bytes
        self.events: list[CopyEvent] = []
        self.strides: list[int] = []  # the strides that its process has reported
        self.copied: list[SnapshotCopied] = []  # the newest copies that its process has reported
        self.link = CopyLink(Setup(key.hex(), JOB, self.uid, 1), self._on_event)
        self.server = Server(None, SidecarIdentity(self.uid, self.address, bytes(32)), key, JOB, peers=self.link)

    def _on_event(self, event: CopyEvent) -> None:
        if isinstance(event, CopyStrideNeeded):
            self.strides.append(event.stride)
        elif isinstance(event, SnapshotCopied):
            self.copied.append(event)
        else:
            self.events.append(event)

    @property
    def holder(self) -> CopyHolder:
        return CopyHolder(self.uid, self.address)

    @property
    def owner(self) -> CopyOwner:
        return CopyOwner(self.group_rank, self.uid)

    def pass_memory(self) -> None:
        """The launcher has allocated it."""
        self.memory.pass_files(str(self.path))

    async def plan(
        self,
        *,
        token: RoundToken = R0,
        holders: tuple[CopyHolder, ...] = (),
        owners: tuple[CopyOwner, ...] = (),
        stride: int = 1,
    ) -> tuple[KeptSteps, ...]:
        """Return the answer."""
        self.link.do(PlanCopies(token, self.group_rank, CopyPlan(WORLD, holders, owners, stride)))
        answered = await self.next_event()
        assert isinstance(answered, CopiesPlanned)
        assert answered.token == token
        return answered.kept

    async def kept_steps(self, token: RoundToken = R0, owners: tuple[CopyOwner, ...] = ()) -> list[int]:
        """The steps of all copies that this pod keeps."""
        return [saved.step for kept in await self.plan(token=token, owners=owners) for saved in kept.whole]

    async def fetch(self, saved: SavedStep, *holders: CopyHolder, group_rank: int, token: RoundToken = R1) -> str:
        """Return the error."""
        self.link.do(FetchCopy(token, group_rank, saved, holders))
        fetched = await self.next_event()
        while isinstance(fetched, CopyOverwrites):
            fetched = await self.next_event()
        assert isinstance(fetched, CopyFetched)
        assert fetched.saved == saved
        return fetched.error

    async def flush(self) -> None:
        self.link.do(FlushCopies(R0))
        assert await self.next_event() == CopiesFlushed(R0)

    def signal_process(self, number: signal.Signals) -> None:
        """A signal to its process for copies."""
        process = self.link._process
        assert process is not None
        process.process.send_signal(number)

    def has_process(self) -> bool:
        return self.link._process is not None and self.link._process.is_ready

    def threads(self) -> int:
        """Of its process for copies."""
        process = self.link._process
        assert process is not None
        return len(os.listdir(f"/proc/{process.process.pid}/task"))

    async def next_event(self) -> CopyEvent:
        await until(lambda: bool(self.events), "an answer of the process for copies")
        return self.events.pop(0)

    def save(self, step: int, content: bytes, token: RoundToken = R0, serial: int = 1, saved_at: int = 0) -> SavedStep:
        """save() in the worker, into the slot of the step's parity. saved_at: in Unix seconds."""
        at = PAGE + step % 2 * (PAGE + -(-self.slot_bytes // PAGE) * PAGE)
        file = self.memory.files[0]
        os.pwrite(file, bytes(HEADER), at)
        os.pwrite(file, content, at + PAGE)
        place = (token.epoch, token.term, token.round, step, self.group_rank, WORLD)
        numbers = (*place, 0, len(content), 0, serial, saved_at * 10**9)
        body = struct.pack("<12q32s24x", MAGIC, *numbers, hashlib.sha256(content).digest())
        os.pwrite(file, body + struct.pack("<q", zlib.crc32(body)), at)
        return SavedStep(token, step)

    def content(self, slot: int, size: int) -> bytes:
        """The content of a slot with a header."""
        at = PAGE + slot * (PAGE + -(-self.slot_bytes // PAGE) * PAGE)
        assert os.pread(self.memory.files[0], HEADER, at) != bytes(HEADER)
        return os.pread(self.memory.files[0], size, at + PAGE)

    def mark_stored_slot(self, slot: int | None) -> None:
        """As save() marks a slot for the storage, and the process that writes it clears the mark."""
        os.pwrite(self.memory.files[0], struct.pack("<q", 0 if slot is None else 1 + slot), PAGE - 16)

    def copied_slot(self) -> int:
        """1 + the slot that is marked; 0: none."""
        return int.from_bytes(os.pread(self.memory.files[0], 8, PAGE - 8), "little")


@asynccontextmanager
async def copying_pods(
    slot_bytes: int = 3 << 20, keys: tuple[bytes, ...] = (KEY, KEY, KEY), new: tuple[int, ...] = ()
) -> AsyncIterator[list[CopyingPod]]:
    """Pods whose memory has been passed to their processes. new: group ranks of those whose launchers allocate it."""
    pods = [CopyingPod(number, slot_bytes, key) for number, key in enumerate(keys)]
    with tempfile.TemporaryDirectory(prefix="understudy-") as folder:
        for pod in pods:
            await pod.server.listen(pod.port, "127.0.0.1")
            pod.path = Path(folder) / f"{pod.uid}.sock"
            await pod.link.start(pod.path)
            if pod.group_rank not in new:
                pod.pass_memory()
        await until(lambda: all(pod.has_process() for pod in pods), "the processes for copies")
        await until(lambda: all(pod.link.is_ready for pod in pods if pod.group_rank not in new), "their memory")
        try:
            yield pods
        finally:
            for pod in pods:
                await pod.link.close()
                await pod.server.close(0.0)
                for file in (*pod.memory.files.values(), *pod.memory.kept):
                    os.close(file)


async def until(condition: Callable[[], object], what: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 (what it waits for tells nobody)
            await asyncio.sleep(0.005)
    assert condition(), what
