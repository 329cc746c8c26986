"""A weight transfer backend for vLLM on machines without a GPU: its NCCL backend, with gloo instead of NCCL.

vLLM loads it as a plugin (`vllm.general_plugins`). Only the collective differs from its own `nccl_engine.py`: the
layers' life cycle, on which updates depend, is vLLM's.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

BACKEND = "gloo"
TIMEOUT = timedelta(seconds=20)


class Group:
    def __init__(self, address: str, port: int, rank: int, world_size: int) -> None:
        self._store = dist.TCPStore(address, port, world_size, rank == 0, TIMEOUT, wait_for_workers=False)
        self._group = dist.ProcessGroupGloo(dist.PrefixStore("weights", self._store), rank, world_size, TIMEOUT)

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Broadcasts from rank 0 to all."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._group.broadcast([tensor], options).wait()


@dataclass
class InitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    master_address: str
    master_port: int
    rank_offset: int
    world_size: int


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


class GlooWeightTransferEngine(WeightTransferEngine):  # type: ignore[misc]
    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._group: Group | None = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        rank = init_info.rank_offset + self.parallel_config.rank
        self._group = Group(init_info.master_address, init_info.master_port, rank, init_info.world_size)

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def receive_weights(self, update_info: UpdateInfo) -> None:
        if self._group is None:
            raise RuntimeError("weight transfer not initialized. Call init_transfer_engine() first.")
        for name, dtype, shape in zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True):
            weight = torch.empty(shape, dtype=getattr(torch, dtype), device=self.device)
            self._group.broadcast(weight)
            self.model.load_weights([(name, weight)])

    def shutdown(self) -> None:
        self._group = None


def register() -> None:
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, GlooWeightTransferEngine)
