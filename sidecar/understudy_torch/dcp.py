"""torch.distributed.checkpoint in the memory of snapshots: a StorageWriter, and a StorageReader.

    dcp.save(state, storage_writer=SnapshotWriter(step))
    reader = SnapshotReader(FileSystemReader(folder))
    dcp.load(state, storage_reader=reader)  # reader.step: of the snapshot; None: it was read from the folder

Rules: each rank stores all items of its own plan, as they were before DCP assigned replicated tensors to one rank. So
each rank restores from its own memory alone, and the metadata that it needs are those of its own items. A snapshot fits
only the same rank of a world of the same size; for others the coordinator chooses storage, on all ranks at once, and
the given reader reads and reshards. If the shards have changed in a world of the same size, a load fails, because it
would fill only a part of a tensor. Objects that are no tensors are pickled by DCP, and unpickled by its load.

Source of the interfaces: the docstrings of torch.distributed.checkpoint.StorageWriter and StorageReader.
"""

import io
import os
from typing import Any, Optional, Union

from torch.distributed.checkpoint import Metadata, StorageReader, StorageWriter
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from understudy_protocol.snapshot_slots import whole_step
from understudy_torch import snapshot

CheckpointId = Union[str, "os.PathLike[str]", None]
_ITEMS = "torch.distributed.checkpoint"  # the key of a snapshot that a SnapshotWriter has stored


class SnapshotWriter(StorageWriter):  # type: ignore[misc]  # torch is not installed where types are checked
    """Stores a state as the snapshot of `step`. As with snapshot.save(), a state that cannot be stored leads to a
    message, and the training continues. `has_stored`: whether this rank has stored it.

    The planner must not cache its plans (enable_plan_caching): nothing is stored then.
    """

    def __init__(self, step: int) -> None:
        self.step, self.has_stored = step, False
        self._items: Optional[list[WriteItem]] = None  # None: the planner has not passed them

    def reset(self, checkpoint_id: CheckpointId = None) -> None:
        self.has_stored, self._items = False, None

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing: the memory is this worker's."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        if getattr(plan, "usable", True):  # since torch 2.7: without items if the planner has cached them
            self._items = list(plan.items)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[list[WriteResult]]":
        if self._items is None:
            snapshot.complain("a SnapshotWriter has stored nothing: its planner caches plans (enable_plan_caching)")
        else:
            items = [_stored(item, planner.resolve_data(item)) for item in self._items]
            self.has_stored = snapshot.save(self.step, {_ITEMS: items, "step": whole_step(self.step)})
        return _done([])

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Nothing: each rank has the metadata of its items."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: CheckpointId) -> bool:
        return False  # a path is no snapshot

    def storage_meta(self) -> Optional[StorageMeta]:
        return None


class SnapshotReader(StorageReader):  # type: ignore[misc]  # as above
    """Restores the snapshot that the coordinator has chosen for the round. If it has chosen none, `storage` is read.

    The first use of `step`, or the first load, waits for the choice, as snapshot.load() does. Raises the errors of
    snapshot.load(), and ValueError if the snapshot was not stored by a SnapshotWriter.
    """

    def __init__(self, storage: StorageReader) -> None:
        self._storage = storage
        self._restored: Optional[dict[tuple[str, Optional[tuple[int, ...]]], dict[str, Any]]] = None
        self._step: Optional[int] = None
        self._has_asked = False

    @property
    def step(self) -> Optional[int]:
        """Of the snapshot; None: there is none, and snapshot.reason() says why."""
        self._ask()
        return self._step

    def reset(self, checkpoint_id: CheckpointId = None) -> None:
        self._storage.reset(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        self._ask()
        return self._storage.read_metadata(*args, **kwargs) if self._restored is None else _metadata(self._restored)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self._restored is None:
            self._storage.set_up_storage_reader(metadata, is_coordinator, *args, **kwargs)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return self._storage.prepare_local_plan(plan) if self._restored is None else plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return self._storage.prepare_global_plan(plans) if self._restored is None else plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        if self._restored is None:
            return self._storage.read_data(plan, planner)
        for item in plan.items:
            index = item.storage_index
            found = self._restored[index.fqn, None if index.offset is None else tuple(index.offset)]
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(found["content"]))
                continue
            if tuple(item.lengths) != found["sizes"] or any(item.dest_offsets):
                raise ValueError(
                    f"{index.fqn} was saved with a shard of the shape {found['sizes']} at {found['offsets']}, and this "
                    "rank has another one: the mesh or the placements have changed. Restore from storage"
                )
            target = planner.resolve_tensor(item).detach()
            target.copy_(found["content"])
            planner.commit_tensor(item, target)
        return _done(None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: CheckpointId) -> bool:
        return False  # a path is no snapshot

    def _ask(self) -> None:
        if self._has_asked:
            return
        state = snapshot.load()
        if state is not None:
            if not isinstance(state, dict) or _ITEMS not in state:
                raise ValueError("the snapshot was stored by snapshot.save(): restore it with snapshot.load()")
            self._restored = {(item["name"], item["offsets"]): item for item in state[_ITEMS]}
            self._step = state["step"]
        self._has_asked = True  # not after an error: another call must not read storage on this rank alone


def _stored(item: WriteItem, content: Any) -> dict[str, Any]:
    """An item of a plan, of kinds that a snapshot may have. offsets: None for an object that is no tensor."""
    if item.type == WriteItemType.BYTE_IO:
        return {"name": item.index.fqn, "offsets": None, "content": content.getvalue()}
    data = item.tensor_data
    assert data is not None, "an item for a tensor describes it"
    offsets, sizes = tuple(data.chunk.offsets), tuple(data.chunk.sizes)
    return {"name": item.index.fqn, "offsets": offsets, "sizes": sizes, "whole": tuple(data.size), "content": content}


def _metadata(items: "dict[tuple[str, Optional[tuple[int, ...]]], dict[str, Any]]") -> Metadata:
    """Of the items of this rank."""
    import torch

    found: dict[str, Any] = {}
    for (name, offsets), item in items.items():
        if offsets is None:
            found[name] = BytesStorageMetadata()
            continue
        chunk = ChunkStorageMetadata(torch.Size(offsets), torch.Size(item["sizes"]))
        if name in found:
            found[name].chunks.append(chunk)
        else:
            properties = TensorProperties.create_from_tensor(item["content"])
            found[name] = TensorStorageMetadata(properties, torch.Size(item["whole"]), [chunk])
    return Metadata(found, storage_meta=StorageMeta())


def _done(value: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(value)
    return future
