"""Snapshots of a JAX training in memory that outlives the workers: a fault of a worker loses at most one step.

    restored = snapshot.load(like=state)  # once, before the first save(): None, or the state that all ranks restore
    snapshot.save(step, state)  # in every process, after the same steps: returns after the copy

understudy_protocol/snapshot_slots.py writes and reads the memory. This module packs a pytree with numpy. Outside a job,
or in one without memory for snapshots, the functions do nothing, and jax is not imported.

The structure is FORMAT and JSON: the tree with its dicts, lists and tuples, and for each leaf its path and its value,
or the dtype, the shape and the shards of its array. Nothing in it names code to call. Of a jax.Array, each process
stores its addressable shards, each part of the array once. Other nodes of a pytree, such as a NamedTuple, are restored
from `like`.
"""

import base64
import json
import mmap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from understudy_protocol.snapshot_slots import (
    BLOCK_BYTES,
    DamagedSnapshotError,
    Part,
    UnsuitableState,
    WrongLibraryError,
    complain,
    load_in_process,
    reason,
    slots_of_process,
)
from understudy_protocol.snapshot_storage import SnapshotStorageError

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "DamagedSnapshotError",
    "SnapshotStorageError",
    "WrongLibraryError",
    "complain",
    "load",
    "reason",
    "save",
]

FORMAT = b"understudy-jax-1\n"
_NUMBERS = "biufc"  # kinds of numpy's own dtypes; those of ml_dtypes have others
_NOT_ALL = "this process has not all of its shards"

Index = tuple[tuple[int, int], ...]  # of a shard: the start and the end in each dimension


class _Array(NamedTuple):
    """A restored array: the shards that this process has saved. key: the implementation of PRNG keys; "": no keys."""

    kind: str  # "jax", "numpy" or "scalar"
    dtype: "np.dtype[Any]"
    shape: tuple[int, ...]
    shards: "dict[Index, np.ndarray[Any, Any]]"
    key: str


class _Loaded(NamedTuple):
    tree: Any  # see _described
    paths: list[str]
    leaves: list[Any]  # a plain value, or an _Array


def load(like: Optional[Any] = None) -> Optional[Any]:
    """The state that the coordinator has chosen for the round. If it has chosen none: the newest one on storage
    (spec.snapshots.storage). None: see reason().

    like: a state as for save(), with the same structure. Each jax.Array is restored with the sharding of the array, or
    of the jax.ShapeDtypeStruct, in its place. Needed if the state has shards of other processes, or nodes other than
    dicts, lists and tuples. Without `like`, arrays are restored as numpy arrays.

    Waits for the choice, which comes once the workers of all pods have been started. Raises DamagedSnapshotError;
    SnapshotStorageError if the storage cannot be read; ValueError if `like` does not fit; WrongLibraryError, a
    ValueError, if understudy_torch has saved the snapshot; and RuntimeError after a save() of this process.
    """
    loaded = load_in_process(_unpack)
    if loaded is None:
        return None
    return _plain(loaded, loaded.tree, "state") if like is None else _restored(loaded, like)


def save(step: int, state: Any) -> bool:
    """Keep `state` as the snapshot of `step`. Return whether it was stored; False for a call that `every` skips.

    step: a whole number from 0 to 2^53 - 1, larger than that of the last snapshot that this process has stored;
    otherwise nothing is stored. state: a pytree of jax.Array (also PRNG keys), numpy arrays, numbers, texts, bytes and
    None. Of an array that other processes share, the shards of this process are stored.
    """
    slots = slots_of_process()
    return slots is not None and slots.save(step, state, _pack)


# Save -------------------------------------------------------------------------------------------------------------


def _pack(state: Any) -> tuple[bytes, Sequence[Part]]:
    """Raises UnsuitableState."""
    import jax

    try:
        found, treedef = jax.tree_util.tree_flatten_with_path(state)
        names = [_name(path) for path, _ in found]
        tree = _described(treedef, iter(range(len(found))), "state")
    except (TypeError, ValueError) as error:  # dict keys that cannot be sorted, or numbers too long to be a text
        raise UnsuitableState(f"jax cannot flatten the state: {error}") from error
    parts: list[Part] = []
    leaves = [{"path": name, **_described_leaf(value, name, parts)} for name, (_, value) in zip(names, found)]
    content = {"tree": tree, "leaves": leaves}
    text = json.dumps(content, separators=(",", ":"))
    return FORMAT + text.encode("ascii"), parts


def _name(path: Any) -> str:
    import jax

    return f"state{jax.tree_util.keystr(path)}"


def _described(treedef: Any, numbers: Iterator[int], path: str) -> Any:
    """A tree for JSON, with the numbers of its leaves. Raises UnsuitableState."""
    data, children = treedef.node_data(), treedef.children()
    if data is None:
        return {"leaf": next(numbers)}
    kind, keys = data
    if kind is type(None):
        return {"none": True}
    if kind is dict:
        items = zip(keys, children)
        return {"dict": [[_value(key, path), _described(child, numbers, f"{path}[{key!r}]")] for key, child in items]}
    inside = [_described(child, numbers, f"{path}[{at}]") for at, child in enumerate(children)]
    if kind in (list, tuple):
        return {kind.__name__: inside}
    return {"other": f"{kind.__module__}.{kind.__qualname__}"}


def _described_leaf(value: Any, path: str, parts: list[Part]) -> dict[str, Any]:
    """A leaf for JSON. Appends its shards to `parts`. Raises UnsuitableState."""
    import jax
    import numpy as np

    if isinstance(value, jax.core.Tracer):
        raise UnsuitableState(f"{path} is traced by a transformation: call snapshot.save() outside of jax.jit")
    if isinstance(value, jax.Array):
        return _described_array(value, path, parts)
    if isinstance(value, np.generic) or type(value) is np.ndarray:
        kind, content = ("numpy", value) if type(value) is np.ndarray else ("scalar", np.asarray(value))
        index = tuple((0, length) for length in content.shape)
        parts.append(_part(content, is_save=True))
        return _fields(kind, _checked_dtype(content.dtype, path), content.shape, [index], "")
    return {"value": _value(value, path)}


def _described_array(value: Any, path: str, parts: list[Part]) -> dict[str, Any]:
    import jax
    import numpy as np

    if value.is_deleted():
        raise UnsuitableState(f"{path} was donated to a function (donate_argnums): save the function's result")
    key = ""
    if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        implementation = jax.random.key_impl(value)
        if not isinstance(implementation, str):
            raise UnsuitableState(f"{path} has PRNG keys of {implementation!r}, an implementation without a name")
        key, value = implementation, jax.random.key_data(value)
    dtype = _checked_dtype(value.dtype, path)
    shards: dict[Index, Any] = {}
    for shard in value.addressable_shards:
        shards.setdefault(_index(shard.index, value.shape), shard.data)
    parts += [_part(np.asarray(content), is_save=True) for content in shards.values()]
    return _fields("jax", dtype, value.shape, list(shards), key)


def _fields(kind: str, dtype: str, shape: tuple[int, ...], indices: list[Index], key: str) -> dict[str, Any]:
    return {"kind": kind, "dtype": dtype, "shape": list(shape), "indices": indices, **({"key": key} if key else {})}


def _index(slices: tuple[slice, ...], shape: tuple[int, ...]) -> Index:
    of = [part.indices(length) for part, length in zip(slices, shape)]
    return tuple((start, stop) for start, stop, _ in of)


def _value(value: Any, path: str) -> Any:
    """A plain value for JSON: each kind has a name, and every float is exact. Raises UnsuitableState."""
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return {"int": hex(value)}
    if kind is float:
        return {"float": value.hex()}
    if kind is complex:
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode("ascii")}
    hint = "save its content instead"
    raise UnsuitableState(f"{path} has a {kind.__module__}.{kind.__qualname__}, which cannot be restored: {hint}")


def _checked_dtype(dtype: Any, path: str) -> str:
    """Its name. Raises UnsuitableState."""
    try:
        is_known = _dtype(dtype.name) == dtype
    except ValueError:
        is_known = False
    if is_known:
        return str(dtype.name)
    raise UnsuitableState(f"{path} is an array of {dtype!r}: expected numbers in the byte order of this machine")


def _dtype(name: str) -> "np.dtype[Any]":
    """Raises ValueError."""
    import ml_dtypes
    import numpy as np

    own = getattr(ml_dtypes, name, None)
    try:
        dtype = np.dtype(name if own is None else own)
    except TypeError as error:
        raise ValueError(f"no dtype of numpy or ml_dtypes has the name {name}") from error
    if own is None and dtype.kind not in _NUMBERS:
        raise ValueError(f"{name} has no numbers")
    return dtype


def _part(array: "np.ndarray[Any, Any]", is_save: bool) -> Part:
    import numpy as np

    def copy(memory: mmap.mmap, offset: int) -> bytes:
        if not array.size:
            return b""
        content = np.frombuffer(memory, np.uint8, array.nbytes, offset)
        target = content.view(array.dtype).reshape(array.shape)
        if is_save:
            np.copyto(target, array)
        else:
            np.copyto(array, target)
        return block_sums(content)

    return Part(array.nbytes, copy)


def block_sums(content: "np.ndarray[Any, Any]") -> bytes:
    """Of bytes: see Part."""
    import numpy as np

    words, of_block = content.size // 8, BLOCK_BYTES // 8
    full = words // of_block * of_block
    whole = content[: words * 8].view(np.int64)
    sums: bytes = whole[:full].reshape(-1, of_block).sum(axis=1, dtype=np.int64).tobytes()
    if words:
        sums += whole[full:].sum(dtype=np.int64).tobytes()
    rest: bytes = content[words * 8 :].tobytes()
    return sums + rest


# Load -------------------------------------------------------------------------------------------------------------


def _unpack(structure: bytes) -> tuple[_Loaded, Sequence[Part]]:
    import numpy as np

    if not structure.startswith(FORMAT):
        raise WrongLibraryError("the snapshot was saved with understudy_torch: load it with understudy_torch.snapshot")
    content = json.loads(structure[len(FORMAT) :])
    leaves: list[Any] = []
    parts: list[Part] = []
    for leaf in content["leaves"]:
        if "value" in leaf:
            leaves.append(_read_value(leaf["value"]))
            continue
        dtype, shards = _dtype(leaf["dtype"]), {}
        for index in leaf["indices"]:
            bounds = tuple((start, stop) for start, stop in index)
            shards[bounds] = np.empty([stop - start for start, stop in bounds], dtype)
            parts.append(_part(shards[bounds], is_save=False))
        leaves.append(_Array(leaf["kind"], dtype, tuple(leaf["shape"]), shards, leaf.get("key", "")))
    return _Loaded(content["tree"], [leaf["path"] for leaf in content["leaves"]], leaves), parts


def _read_value(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "int":
        return int(content, 16)
    if kind == "float":
        return float.fromhex(content)
    if kind == "complex":
        return complex(*map(float.fromhex, content))
    return base64.b64decode(content)


def _plain(loaded: _Loaded, node: Any, path: str) -> Any:
    """The state without `like`. Raises ValueError."""
    ((kind, content),) = node.items()
    if kind == "leaf":
        leaf = loaded.leaves[content]
        return _without_like(leaf, loaded.paths[content]) if isinstance(leaf, _Array) else leaf
    if kind == "none":
        return None
    if kind == "dict":
        items = [(_read_value(key), item) for key, item in content]
        return {key: _plain(loaded, item, f"{path}[{key!r}]") for key, item in items}
    if kind == "other":
        raise ValueError(f"{path} was saved as a {content}: pass a state of the same structure, snapshot.load(like=…)")
    items = [_plain(loaded, item, f"{path}[{at}]") for at, item in enumerate(content)]
    return items if kind == "list" else tuple(items)


def _without_like(array: _Array, path: str) -> Any:
    import jax

    whole = _whole(array, path)
    if array.key:
        return jax.random.wrap_key_data(whole, impl=array.key)
    return whole[()] if array.kind == "scalar" else whole


def _whole(array: _Array, path: str) -> "np.ndarray[Any, Any]":
    """Its numbers. Raises ValueError."""
    whole = _region(array, tuple((0, length) for length in array.shape))
    if whole is None:
        raise ValueError(f"{path}: {_NOT_ALL}. Pass a state with the same shardings, snapshot.load(like=…)")
    return whole


def _restored(loaded: _Loaded, like: Any) -> Any:
    """The state with the structure and the shardings of `like`. Raises ValueError."""
    import jax

    found, treedef = jax.tree_util.tree_flatten_with_path(like)
    paths = [_name(path) for path, _ in found]
    if paths != loaded.paths:
        raise ValueError(_difference(loaded.paths, paths))
    leaves = [_like(leaf, beside, path) for leaf, (_, beside), path in zip(loaded.leaves, found, paths)]
    return jax.tree_util.tree_unflatten(treedef, leaves)


def _difference(saved: list[str], like: list[str]) -> str:
    hint = "pass a state with the structure of the saved one"
    for path in saved:
        if path not in like:
            return f"snapshot.load(like=…): {path} was saved, and `like` has no such leaf: {hint}"
    for path in like:
        if path not in saved:
            return f"snapshot.load(like=…): `like` has {path}, which was not saved: {hint}"
    return f"snapshot.load(like=…): `like` has the leaves in another order: {hint}"


def _like(leaf: Any, like: Any, path: str) -> Any:
    import jax

    if not isinstance(leaf, _Array):
        return leaf
    if leaf.kind != "jax":
        return _without_like(leaf, path)
    if leaf.key:
        is_key = isinstance(like, jax.Array) and jax.numpy.issubdtype(like.dtype, jax.dtypes.prng_key)
        if not is_key or jax.random.key_impl(like) != leaf.key:
            raise ValueError(
                f"{path} was saved as PRNG keys of {leaf.key}: snapshot.load(like=…) needs such keys there"
            )
        return jax.random.wrap_key_data(_on_devices(leaf, jax.random.key_data(like), path), impl=leaf.key)
    return _on_devices(leaf, like, path)


def _on_devices(array: _Array, like: Any, path: str) -> Any:
    """A jax.Array with the sharding of `like`; a numpy array if `like` has none."""
    import jax

    shape, dtype = getattr(like, "shape", None), getattr(like, "dtype", None)
    if shape != array.shape or dtype != array.dtype:
        raise ValueError(
            f"{path} was saved with the shape {array.shape} and the dtype {array.dtype}, and `like` has {shape} and "
            f"{dtype} there: the model has changed. Restore from storage"
        )
    sharding = getattr(like, "sharding", None)
    if sharding is None:
        return _whole(array, path)
    if not getattr(like, "committed", True):  # jit may move such an array to other devices: it stays so
        return jax.numpy.asarray(_whole(array, path))
    devices = sharding.addressable_devices_indices_map(array.shape)
    shards = {device: _region(array, _index(slices, array.shape)) for device, slices in devices.items()}
    if any(shard is None for shard in shards.values()):
        raise ValueError(
            f"{path} was saved with other shards than `like` has, and {_NOT_ALL}: the mesh or the sharding has "
            "changed. Restore from storage"
        )
    placed = [
        jax.device_put(shard, jax.sharding.SingleDeviceSharding(device, memory_kind=sharding.memory_kind))
        for device, shard in shards.items()
    ]
    return jax.make_array_from_single_device_arrays(array.shape, sharding, placed)


def _region(array: _Array, wanted: Index) -> "Optional[np.ndarray[Any, Any]]":
    """This part of the array. None if the shards do not cover it."""
    import numpy as np

    if wanted in array.shards:
        return array.shards[wanted]
    found = np.empty([stop - start for start, stop in wanted], array.dtype)
    covered = 0
    for index, shard in array.shards.items():  # which do not overlap
        both = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(index, wanted)]
        if any(start >= stop for start, stop in both):
            continue
        source = tuple(slice(start - a, stop - a) for (start, stop), (a, _) in zip(both, index))
        target = tuple(slice(start - c, stop - c) for (start, stop), (c, _) in zip(both, wanted))
        found[target] = shard[source]
        covered += found[target].size
    return found if covered == found.size else None
