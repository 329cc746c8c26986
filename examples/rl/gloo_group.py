"""A gloo process group for one update, apart from torch's default group: both sides use it. All calls block."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=20)


class GlooGroup:
    def __init__(self, address: str, port: int, rank: int, world_size: int, name: str) -> None:
        # Rank 0 serves the store, on the port that it has chosen for this group alone.
        self._store = dist.TCPStore(address, port, world_size, rank == 0, TIMEOUT, wait_for_workers=False)
        self._group = dist.ProcessGroupGloo(dist.PrefixStore(name, self._store), rank, world_size, TIMEOUT)

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Broadcasts from rank 0 to all."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._group.broadcast([tensor], options).wait()
