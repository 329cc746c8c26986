"""Snapshots of the training in memory that outlives the workers: a fault of a worker loses at most one step.

    restored = snapshot.load()  # once, before the first save(): None, or the state that all ranks restore
    snapshot.save(step, state)  # in every rank, after the same steps: returns after the copy

    the file of a local rank, inherited as UNDERSTUDY_SNAPSHOT_FD
    ------  --------------------------------------------------------------------------------------------------------
    page 0  the order: round, rank, and what the round restores; written by understudy_launcher/snapshot_memory.py; at
            its end the slot that the sidecar copies to another pod
    page 1  the header of slot 0, then the content of slot 0: the structure of the state, then its tensors
    ...     the same for slot 1

Rules: save() writes into the slot whose snapshot the next round would not restore: it clears the header, copies, and
writes the header last. So a worker that is killed at any instant leaves the other slot whole. A state that does not
fit, or that cannot be restored, fails this save with a message on stderr, and the training continues. Outside a job, or
in one without memory for snapshots, both functions do nothing.

The structure is the output of torch.save. It has the state, with tensors of the device "meta" in place of its tensors,
and the places of its DTensors, whose shards are stored. It is read with weights_only=True: it executes no code. The
digest is SHA-256 over the names in the header, the structure, and the sums of the tensors' blocks as 64-bit integers:
each flipped bit changes the sum of its block, and a sum costs less than the copy. The contents are mapped, because a
copy into a mapping takes half the time of a system call. A slot's pages are mapped at once at its first use in a
process, instead of by a page fault each.
"""

import contextlib
import ctypes
import hashlib
import io
import mmap
import os
import struct
import sys
import time
from binascii import crc32
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable, Optional

if TYPE_CHECKING:
    import torch

ENV_FD = "UNDERSTUDY_SNAPSHOT_FD"  # also in understudy_protocol.pod, which workers do not have
ENV_ROUND = "UNDERSTUDY_ROUND"
PAGE_BYTES = 4096
SLOTS = 2
#: All as in understudy_protocol/snapshot_files.py.
MAGIC = 0x75_6E_64_73_6E_61_70_31
ORDER = struct.Struct("<12q")
HEADER = struct.Struct("<11q32s3qq")
COPIED = struct.Struct("<q")
COPIED_OFFSET = PAGE_BYTES - COPIED.size
PENDING, STORAGE, MEMORY = 0, 1, 2
_NOT_FETCHED = (0, 0, 0)
BLOCK_BYTES = 1 << 16
_ALIGNMENT = 64
_MADV_POPULATE_WRITE = 23  # since Linux 5.14
_POLL_S = 0.001
_LOG_AFTER_S = 10.0
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_NO_MEMORY = "this process is no worker of a job with spec.snapshots, or its pod has no memory for snapshots"
_NOT_ASKED = "snapshot.load() was not called"

Token = tuple[int, int, int]


class DamagedSnapshotError(RuntimeError):
    """The content of a snapshot has changed. It is discarded: the next round restores a copy of it, or a checkpoint."""


def load(like: Optional[Any] = None) -> Optional[Any]:
    """The state that the coordinator has chosen for the round, its tensors on the CPU; None: see reason().

    like: needed if the state has DTensors: a state as for save(), whose DTensors have the mesh and the placements. Only
    its DTensors are read. A DTensor is restored from the shard of this rank, on the device of the shard in `like`.

    Waits for the choice, which comes once the workers of all pods have been started. Raises DamagedSnapshotError,
    ValueError if `like` has no DTensor, or one with another shard, in place of a DTensor, and RuntimeError after a
    save() of this process.
    """
    memory = _memory()
    return None if memory is None else memory.load(like)


def save(step: int, state: Any) -> bool:
    """Keep `state` as the snapshot of `step`. Return whether it was stored; False for a call that `every` skips.

    state: dicts, lists and tuples of tensors (strided, of any device and dtype), DTensors, numbers, texts and bytes. Of
    a DTensor, the shard of this rank is stored.
    """
    memory = _memory()
    return memory is not None and memory.save(step, state)


def reason() -> str:
    """Why load() returned None; "" if it returned a state."""
    memory = _memory()
    return _NO_MEMORY if memory is None else memory.reason


def complain(text: str) -> None:
    """Write it to stderr, once per text."""
    memory = _memory()
    if memory is not None:
        memory.complain(text)


class _Unsuitable(Exception):
    """The state cannot be stored. The text has the reason."""


class _Memory:
    """The file of this rank. fd: the inherited file."""

    def __init__(self, fd: int, token: Token) -> None:
        self._fd, self._token = fd, token
        order = self._order()
        self._slot_bytes, self._every, self._rank, self._world_size = order[1], order[2], order[6], order[7]
        self._calls = self._stored = 0
        self._target: Optional[int] = None  # the slot for the next save
        self._complaints: set[str] = set()
        self._mapped: Optional[mmap.mmap] = None
        self._populated: set[int] = set()  # slots
        self.reason = _NOT_ASKED

    # The order ------------------------------------------------------------------------------------------------------

    def _order(self) -> tuple[int, ...]:
        return ORDER.unpack(os.pread(self._fd, ORDER.size, 0))

    def _is_current(self) -> bool:
        """Whether this worker belongs to the round of the order: no worker of an older round writes."""
        return self._order()[3:6] == self._token

    def _choice(self) -> tuple[int, ...]:
        """Wait until the launcher has written the choice."""
        since, is_logged = time.monotonic(), False
        while (order := self._order())[8] == PENDING or order[3:6] != self._token:
            if not is_logged and time.monotonic() > since + _LOG_AFTER_S:
                is_logged = True
                _log(f"snapshot.load() has waited {_LOG_AFTER_S:g} s until the workers of all pods are started")
            time.sleep(_POLL_S)
        return order

    # Restore --------------------------------------------------------------------------------------------------------

    def load(self, like: Optional[Any]) -> Optional[Any]:
        if self._target is not None:
            raise RuntimeError("snapshot.load() restores once, before the first snapshot.save() of a process")
        order = self._choice()
        state, slot, step, length = order[8:]
        if state != MEMORY:
            self.reason = os.pread(self._fd, length, ORDER.size).decode(errors="replace")
            return None
        if slot not in range(SLOTS):
            raise DamagedSnapshotError(f"rank {self._rank} has no snapshot of step {step}, which all others restore")
        try:
            restored, sharded = self._read(slot, step)
        except Exception as error:
            self._clear(slot)
            raise DamagedSnapshotError(
                f"the snapshot of step {step} of rank {self._rank} is damaged ({error}), and is discarded: the next "
                "round restores a copy of it, or a checkpoint. Check the memory of this node"
            ) from error
        self.reason, self._target = "", 1 - slot
        return _distributed(restored, like, frozenset(sharded), "state") if sharded else restored

    def _read(self, slot: int, step: int) -> tuple[Any, list[str]]:
        """The state in a slot, and the places in it where a shard is instead of a DTensor. Raises any error if the slot
        is damaged.
        """
        import torch

        at = self._content(slot)
        header = os.pread(self._fd, HEADER.size, at - PAGE_BYTES)
        fields = HEADER.unpack(header)
        if fields[0] != MAGIC or fields[-1] != crc32(header[:-8]) or fields[4] != step:
            raise ValueError("its header has changed")
        names, structure_bytes, total, crc, digest = header[8:56], *fields[7:10], fields[11]
        structure = os.pread(self._fd, structure_bytes, at)
        if crc32(structure) != crc:
            raise ValueError("its structure has changed")
        tree, sharded = torch.load(io.BytesIO(structure), map_location="meta", weights_only=True)
        tensors: list[torch.Tensor] = []

        def visit(placeholder: "torch.Tensor", path: str) -> "torch.Tensor":
            tensors.append(torch.empty(placeholder.shape, dtype=placeholder.dtype))
            return tensors[-1]

        state = _mapped(tree, visit, "state")
        layout, end = _layout(structure_bytes, tensors)
        if end != total or total > self._slot_bytes:
            raise ValueError("its structure does not fit its header")
        found = hashlib.sha256(names + structure)
        for tensor, offset in zip(tensors, layout):
            content = self._tensor(tensor, at + offset)
            tensor.copy_(content)
            found.update(block_sums(content))
        if found.digest() != digest:
            raise ValueError("its digest is wrong")
        return state, sharded

    # Save -----------------------------------------------------------------------------------------------------------

    def save(self, step: int, state: Any) -> bool:
        self._calls += 1
        if (self._calls - 1) % self._every:
            return False
        try:
            return self._write(_checked_step(step), state)
        except (_Unsuitable, RecursionError, OSError) as error:
            self.complain(f"snapshot.save({step}) has stored nothing: {error}", about=str(error))
            return False

    def complain(self, text: str, about: str = "") -> None:
        """about: of several texts with the same `about`, only the first one is written."""
        if (about or text) not in self._complaints and len(self._complaints) < 10:
            self._complaints.add(about or text)
            _log(text)

    def _write(self, step: int, state: Any) -> bool:
        tensors: list[torch.Tensor] = []
        structure = _structure(state, tensors)
        layout, total = _layout(len(structure), tensors)
        if total > self._slot_bytes:
            raise _Unsuitable(
                f"the state of rank {self._rank} has {_mib(total)}, and spec.snapshots.size is "
                f"{_mib(self._slot_bytes)} for each rank: raise the size, or save less. The training continues"
            )
        if not self._is_current():
            return False
        slot = self._free_slot()
        at = self._content(slot)
        names = struct.pack("<6q", *self._token, step, self._rank, self._world_size)
        self._clear(slot)
        _pwrite_bytes(self._fd, structure, at)
        digest = hashlib.sha256(names + structure)
        self._populate(slot, total)
        for tensor, offset in zip(tensors, layout):
            content = self._tensor(tensor, at + offset)
            content.copy_(tensor.detach())
            digest.update(block_sums(content))
        if not self._is_current():
            return False
        place = (*self._token, step, self._rank, self._world_size)
        sizes = (len(structure), total, crc32(structure), self._stored + 1)
        header = HEADER.pack(MAGIC, *place, *sizes, digest.digest(), *_NOT_FETCHED, 0)[:-8]
        _pwrite_bytes(self._fd, header + struct.pack("<q", crc32(header)), at - PAGE_BYTES)
        self._target, self._stored = 1 - slot, self._stored + 1
        return True

    def _free_slot(self) -> int:
        """Not the one with the newest snapshot, which the next round may restore. If the other one is being copied to
        another pod, it is whole, and the newest one is overwritten: no save waits for a copy.
        """
        if self._target is None:
            newest = [self._written(slot) for slot in range(SLOTS)]
            self._target = newest.index(min(newest))
        (copied,) = COPIED.unpack(os.pread(self._fd, COPIED.size, COPIED_OFFSET))
        return 1 - self._target if copied == 1 + self._target else self._target

    def _written(self, slot: int) -> tuple[int, ...]:
        """Round and step of a slot's snapshot; () if it has none."""
        header = os.pread(self._fd, HEADER.size, self._content(slot) - PAGE_BYTES)
        fields = HEADER.unpack(header)
        return fields[1:5] if fields[0] == MAGIC and fields[-1] == crc32(header[:-8]) else ()

    def _clear(self, slot: int) -> None:
        _pwrite_bytes(self._fd, bytes(HEADER.size), self._content(slot) - PAGE_BYTES)

    def _content(self, slot: int) -> int:
        """The offset of a slot's content. Its header is in the page before."""
        return PAGE_BYTES + slot * (PAGE_BYTES + self._slot_bytes) + PAGE_BYTES

    def _tensor(self, like: "torch.Tensor", offset: int) -> "torch.Tensor":
        """The memory of the file at this offset, as a tensor of this shape and type."""
        import torch

        if not like.numel():
            return torch.empty(like.shape, dtype=like.dtype)
        return torch.frombuffer(self._map(), dtype=like.dtype, count=like.numel(), offset=offset).view(like.shape)

    def _map(self) -> mmap.mmap:
        if self._mapped is None:
            self._mapped = mmap.mmap(self._fd, self._content(SLOTS) - PAGE_BYTES)
        return self._mapped

    def _populate(self, slot: int, size: int) -> None:
        if slot not in self._populated:
            self._populated.add(slot)
            with contextlib.suppress(OSError):  # an older kernel: page faults do it
                self._map().madvise(_MADV_POPULATE_WRITE, self._content(slot), size)


def block_sums(tensor: "torch.Tensor") -> bytes:
    """The sums of the 64 KiB blocks of a contiguous tensor's memory as 64-bit integers, native; its last bytes as they
    are.
    """
    import torch

    length, address = tensor.numel() * tensor.element_size(), tensor.data_ptr()
    words, of_block = length // 8, BLOCK_BYTES // 8
    sums, full = b"", words // of_block * of_block
    if words:
        whole = torch.frombuffer((ctypes.c_char * (words * 8)).from_address(address), dtype=torch.int64)
        added = whole[:full].view(-1, of_block).sum(1)
        sums = ctypes.string_at(added.data_ptr(), added.numel() * 8) if full else b""
        sums += struct.pack("<q", int(whole[full:].sum()))
    return sums + ctypes.string_at(address + words * 8, length - words * 8)


def _structure(state: Any, tensors: "list[torch.Tensor]") -> bytes:
    """The structure of a state, and the places of its DTensors. Appends its tensors, and the shards of its DTensors, to
    `tensors`. Raises _Unsuitable.
    """
    import torch

    sharded: list[str] = []

    def visit(tensor: "torch.Tensor", path: str) -> "torch.Tensor":
        if _is_dtensor(tensor):
            sharded.append(path)
            tensor = tensor.detach().to_local()
        tensors.append(_checked(tensor, path))
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

    file = io.BytesIO()
    torch.save((_mapped(state, visit, "state"), sharded), file)
    return file.getvalue()


def _mapped(value: Any, visit: "Callable[[torch.Tensor, str], torch.Tensor]", path: str) -> Any:
    """`value` with `visit(tensor, path)` in place of each tensor, always in the same order. Raises _Unsuitable."""
    import torch

    kind = type(value)
    if kind in _PLAIN or kind in (torch.Size, torch.dtype, torch.device):
        return value
    if kind in (torch.Tensor, torch.nn.Parameter) or _is_dtensor(value):
        return visit(value, path)
    if kind in (dict, OrderedDict):
        return {_key(key, path): _mapped(item, visit, f"{path}[{key!r}]") for key, item in value.items()}
    if kind in (list, tuple):
        return kind(_mapped(item, visit, f"{path}[{at}]") for at, item in enumerate(value))
    hint = "use tensor.tolist() or torch.from_numpy" if kind.__module__ == "numpy" else "save its content instead"
    raise _Unsuitable(f"{path} is a {kind.__module__}.{kind.__qualname__}, which cannot be restored: {hint}")


def _distributed(value: Any, like: Any, sharded: frozenset[str], path: str) -> Any:
    """`value` with DTensors in place of the shards at these places. Raises ValueError."""
    if path in sharded:
        return _dtensor(value, like, path)
    kind = type(value)
    if kind is dict:
        items = like if isinstance(like, Mapping) else {}
        return {key: _distributed(item, items.get(key), sharded, f"{path}[{key!r}]") for key, item in value.items()}
    if kind in (list, tuple):
        beside = list(like) if isinstance(like, (list, tuple)) else []
        beside += [None] * (len(value) - len(beside))
        return kind(_distributed(item, beside[at], sharded, f"{path}[{at}]") for at, item in enumerate(value))
    return value


def _dtensor(shard: "torch.Tensor", like: Any, path: str) -> "torch.Tensor":
    if not _is_dtensor(like):
        raise ValueError(f"{path} was saved as a DTensor: snapshot.load(like=state) needs a DTensor there")
    from torch.distributed.tensor import DTensor

    local = like.to_local()
    if shard.shape != local.shape:
        raise ValueError(
            f"{path} was saved with a shard of the shape {tuple(shard.shape)}, and that of `like` has "
            f"{tuple(local.shape)}: the mesh, the placements, or the model have changed. Restore from storage"
        )
    return DTensor.from_local(
        shard.to(local.device),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def _is_dtensor(value: Any) -> bool:
    """Without an import of torch.distributed, which a script may not need."""
    kind = type(value)
    return kind.__name__ == "DTensor" and kind.__module__.startswith("torch.distributed.")


def _key(key: Any, path: str) -> Any:
    if type(key) in _PLAIN:
        return key
    raise _Unsuitable(f"{path} has the key {key!r}: expected a text or a number")


def _checked(tensor: "torch.Tensor", path: str) -> "torch.Tensor":
    import torch

    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise _Unsuitable(f"the shard of {path} is a {type(tensor).__qualname__}: expected a tensor")
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise _Unsuitable(
            f"{path} is a tensor of the layout {tensor.layout} on {tensor.device}: expected a strided tensor with "
            "values"
        )
    return tensor


def _layout(start: int, tensors: "list[torch.Tensor]") -> tuple[list[int], int]:
    """The offsets of the tensors behind a structure of `start` bytes, and the end."""
    offsets = []
    for tensor in tensors:
        start = -(-start // _ALIGNMENT) * _ALIGNMENT
        offsets.append(start)
        start += tensor.numel() * tensor.element_size()
    return offsets, start


def _pwrite_bytes(fd: int, data: bytes, offset: int) -> None:
    while data:
        done = os.pwrite(fd, data, offset)
        data, offset = data[done:], offset + done


def _checked_step(step: Any) -> int:
    if type(step) is int and 0 <= step < 1 << 63:
        return step
    raise _Unsuitable(f"its step is {step!r}: expected a whole number, 0 or more")


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


def _log(text: str) -> None:
    sys.stderr.write(f"understudy: {text}\n")
    sys.stderr.flush()


_found: Optional[_Memory] = None
_looked = False  # whether this process has looked for its memory


def _memory() -> Optional[_Memory]:
    """The memory of this process. If the inherited number belongs to another file by now, because a parent closed ours,
    there is no memory.
    """
    global _found, _looked
    if not _looked:
        _looked = True
        try:
            fd = int(os.environ[ENV_FD])
            epoch, term, number = map(int, os.environ[ENV_ROUND].split("."))
            if ORDER.unpack(os.pread(fd, ORDER.size, 0))[0] == MAGIC:
                _found = _Memory(fd, (epoch, term, number))
        except (OSError, ValueError, KeyError, OverflowError, struct.error):
            _found = None
    return _found
