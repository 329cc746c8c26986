"""Snapshots of the training in memory that outlives the workers: a fault of a worker loses at most one step.

    restored = snapshot.load()  # once, before the first save(): None, or the state that all ranks restore
    snapshot.save(step, state)  # in every rank, after the same steps: returns after the copy

understudy_protocol/snapshot_slots.py writes and reads the memory. This module packs a state with torch. Outside a job,
or in one without memory for snapshots, the functions do nothing, and torch is not imported.

The structure is the output of torch.save. It has the state, with tensors of the device "meta" in place of its tensors,
the places of its DTensors, whose shards are stored, and which of the tensors were on a GPU. It is read with
weights_only=True: it executes no code.
"""

import ctypes
import io
import mmap
import struct
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from understudy_protocol.snapshot_slots import (
    BLOCK_BYTES,
    DamagedSnapshotError,
    Part,
    UnsuitableState,
    WrongLibraryError,
    complain,
    load_in_process,
    reason,
    shown,
    slots_of_process,
)
from understudy_protocol.snapshot_storage import SnapshotStorageError
from understudy_torch import gpu_copies

if TYPE_CHECKING:
    import torch

__all__ = [
    "DamagedSnapshotError",
    "SnapshotStorageError",
    "WrongLibraryError",
    "complain",
    "load",
    "reason",
    "save",
]

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
#: With its sign 255 bytes: torch.load(weights_only=True) restores no longer ones.
MOST_INT_BITS = 2039
#: torch has these types, and cannot copy them.
_UNCOPIED = frozenset(f"torch.{name}{bits}" for name in ("int", "uint") for bits in range(1, 8))
_ZIP = b"PK"  # how the output of torch.save begins
_pinned = gpu_copies.PinnedMemory(complain, gpu_copies.of_torch, gpu_copies.run_a_kernel)


def load(like: Optional[Any] = None, device: "Union[str, torch.device, None]" = None) -> Optional[Any]:
    """The state that the coordinator has chosen for the round. If it has chosen none: the newest one on storage
    (spec.snapshots.storage). None: see reason().

    device: where the tensors are restored that were on a GPU when they were saved, such as "cuda"; it needs free memory
    for them. All other tensors are restored on the CPU, and without `device` all are. like: needed if the state has
    DTensors: a state as for save(), whose DTensors have the mesh and the placements. Only its DTensors are read. A
    DTensor is restored from the shard of this rank, on the device of the shard in `like`.

    Waits for the choice, which comes once the workers of all pods have been started. Raises DamagedSnapshotError;
    SnapshotStorageError if the storage cannot be read; ValueError if `like` has no DTensor, or one with another shard,
    in place of a DTensor; WrongLibraryError, a ValueError, if understudy_jax has saved the snapshot; and RuntimeError
    after a save() of this process.
    """
    loaded = load_in_process(partial(_unpack, device="cpu" if device is None else device))
    if loaded is None:
        return None
    state, sharded = loaded
    return _distributed(state, like, frozenset(sharded), "state") if sharded else state


def save(step: int, state: Any) -> bool:
    """Keep `state` as the snapshot of `step`. Return whether it was stored; False for a call that `every` skips.

    step: a whole number from 0 to 2^53 - 1, larger than that of the last snapshot that this process has stored;
    otherwise nothing is stored. state: dicts, lists and tuples of tensors (strided, of any device and dtype), DTensors,
    numbers, texts and bytes. Of a DTensor, the shard of this rank is stored.
    """
    slots = slots_of_process()
    return slots is not None and slots.save(step, state, _pack)


def _pack(state: Any) -> tuple[bytes, Sequence[Part]]:
    """Raises UnsuitableState."""
    tensors: list[torch.Tensor] = []
    structure = _structure(state, tensors)
    gpu_copies.synchronize(tensors)
    return structure, [_part(tensor, is_save=True) for tensor in tensors]


def _unpack(structure: bytes, device: "Union[str, torch.device]" = "cpu") -> tuple[Any, Sequence[Part]]:
    """The state, and the places in it where a shard is instead of a DTensor. device: of tensors from a GPU."""
    import torch

    if not structure.startswith(_ZIP):
        raise WrongLibraryError("the snapshot was saved with understudy_jax: load it with understudy_jax.snapshot")
    allowed = torch.serialization.get_safe_globals()
    with torch.serialization.safe_globals([] if bytes in allowed else [bytes]):  # how pickle stores b""
        tree, sharded, on_gpu = torch.load(io.BytesIO(structure), map_location="meta", weights_only=True)
    tensors: list[torch.Tensor] = []

    def visit(placeholder: "torch.Tensor", path: str) -> "torch.Tensor":
        place = device if on_gpu[len(tensors)] else "cpu"
        tensors.append(torch.empty(placeholder.shape, dtype=placeholder.dtype, device=place))
        return tensors[-1]

    state = _mapped(tree, visit, "state")
    return (state, sharded), [_part(tensor, is_save=False) for tensor in tensors]


def _part(tensor: "torch.Tensor", is_save: bool) -> Part:
    source = tensor.detach()
    if source.is_neg():
        source = source.resolve_neg()  # torch 2.11 copies a negated view from a GPU to the CPU without the negation
    has_sums = gpu_copies.has_sums(source)

    def copy(memory: mmap.mmap, offset: int) -> bytes:
        content = _view(source, memory, offset)
        target, origin = (content, source) if is_save else (source, content)
        target.copy_(origin, non_blocking=has_sums)
        return gpu_copies.device_sums(source) if has_sums else block_sums(content)

    prepare = _pinned.prepare if gpu_copies.is_on_gpu(tensor) else None
    return Part(tensor.numel() * tensor.element_size(), copy, prepare)


def _view(like: "torch.Tensor", memory: mmap.mmap, offset: int) -> "torch.Tensor":
    """The memory at this offset, as a tensor of this shape and type."""
    import torch

    if not like.numel():
        return torch.empty(like.shape, dtype=like.dtype, device="cpu")
    return torch.frombuffer(memory, dtype=like.dtype, count=like.numel(), offset=offset).view(like.shape)


def block_sums(tensor: "torch.Tensor") -> bytes:
    """Of a contiguous tensor: see Part."""
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
    """The structure of a state. Appends its tensors, and the shards of its DTensors, to `tensors`. Raises
    UnsuitableState.
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
    tree = _mapped(state, visit, "state")
    torch.save((tree, sharded, [gpu_copies.is_on_gpu(tensor) for tensor in tensors]), file)
    return file.getvalue()


def _mapped(value: Any, visit: "Callable[[torch.Tensor, str], torch.Tensor]", path: str) -> Any:
    """`value` with `visit(tensor, path)` in place of each tensor, always in the same order. Raises UnsuitableState."""
    import torch

    kind = type(value)
    if kind is int:
        _check_bits(value, path)
    if kind in _PLAIN or kind in (torch.Size, torch.dtype, torch.device):
        return value
    if kind in (torch.Tensor, torch.nn.Parameter) or _is_dtensor(value):
        return visit(value, path)
    if kind in (dict, OrderedDict):
        return {_key(key, path): _mapped(item, visit, f"{path}[{key!r}]") for key, item in value.items()}
    if kind in (list, tuple):
        return kind(_mapped(item, visit, f"{path}[{at}]") for at, item in enumerate(value))
    hint = "use tensor.tolist() or torch.from_numpy" if kind.__module__ == "numpy" else "save its content instead"
    raise UnsuitableState(f"{path} is a {kind.__module__}.{kind.__qualname__}, which cannot be restored: {hint}")


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


def _check_bits(number: int, path: str) -> None:
    if number.bit_length() > MOST_INT_BITS:
        raise UnsuitableState(f"{path} is a number of {number.bit_length()} bits: torch.load restores {MOST_INT_BITS}")


def _key(key: Any, path: str) -> Any:
    if type(key) is int:
        _check_bits(key, f"a key of {path}")
    if type(key) in _PLAIN:
        return key
    raise UnsuitableState(f"{path} has the key {shown(key)}: expected a text or a number")


def _checked(tensor: "torch.Tensor", path: str) -> "torch.Tensor":
    import torch

    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise UnsuitableState(f"the shard of {path} is a {type(tensor).__qualname__}: expected a tensor")
    kind = ""
    if tensor.layout is not torch.strided:
        kind = str(tensor.layout)
    elif tensor.is_nested or tensor.is_quantized or tensor.is_meta:
        kind = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else "meta"
    elif str(tensor.dtype) in _UNCOPIED:
        kind = str(tensor.dtype)
    elif tensor.numel() and tensor.device.type in ("cpu", "cuda") and not tensor.untyped_storage().nbytes():
        kind = "freed"  # as FSDP frees whole parameters: a copy would end the process
    if kind:
        raise UnsuitableState(f"{path} is a {kind} tensor: expected a dense tensor with values")
    return tensor
