"""The trainer: updates its rollout servers again and again, and goes on after an update that failed.

It prints a line for each update. A real trainer would restart its job after a failure, as Understudy does by default.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import uuid
from collections.abc import Sequence
from pathlib import Path

from gloo_group import GlooGroup
from rollout import fill, model
from tiny_engine import TinyEngine
from torch import nn

from understudy_rollout import Group, Replica, Tensor, Timeouts, WeightUpdate, in_thread
from understudy_rollout.gateway import Gateway

PATIENCE = Timeouts(build_group=30, transfer=30, undo=5)


class GlooTrainer:
    """Rank 0 of every group: torch's calls block, so they run beside the event loop."""

    def __init__(self, trained: nn.Module) -> None:
        self._parameters = dict(trained.named_parameters())
        self._group: GlooGroup | None = None

    async def open_group(self, world_size: int) -> Group:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        return Group("127.0.0.1", port, world_size, uuid.uuid4().hex, "gloo")

    async def join_group(self, group: Group) -> None:
        self._group = await in_thread(GlooGroup, group.address, group.port, 0, group.world_size, group.name)

    async def send(self, group: Group, tensors: Sequence[Tensor]) -> None:
        assert self._group is not None
        for tensor in tensors:
            await in_thread(self._group.broadcast, self._parameters[tensor.name].detach())

    async def leave_group(self, group: Group) -> None:
        self._group = None  # gloo ends a broadcast that still waits: when a peer is gone, or after its timeout


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.3, help="seconds of training between updates")
    parser.add_argument("--die-in-update", type=int, default=0, help="after its first tensor")
    parser.add_argument("--engines", nargs="+", required=True, metavar="URL")
    parser.add_argument("--gateways", nargs="+", required=True, metavar="URL")
    parser.add_argument("--token-file", type=Path, required=True)
    chosen = parser.parse_args()
    token = chosen.token_file.read_text().strip()
    engines = [TinyEngine(url) for url in chosen.engines]
    gateways = [Gateway(url, token) for url in chosen.gateways]
    replicas = [
        Replica(f"rollout-{n}", engine, admission=gateway)
        for n, (engine, gateway) in enumerate(zip(engines, gateways, strict=True))
    ]
    trained = model()
    trainer = GlooTrainer(trained)
    tensors = [Tensor(name, "float32", tuple(value.shape)) for name, value in trained.named_parameters()]
    for step in range(1, chosen.updates + 1):
        fill(trained, step)  # what training would do
        try:
            async with WeightUpdate(replicas, trainer, version=str(step), timeouts=PATIENCE) as update:
                for tensor in tensors:
                    await update.transfer([tensor])
                    if step == chosen.die_in_update:
                        os._exit(1)
            outcome = "whole"
        except Exception as error:  # noqa: BLE001 (each update's outcome is told)
            outcome = f"failed: {error}"
        states = " ".join(f"{x.name}={x.weights.state.value}:{x.weights.version}" for x in replicas)
        print(f"update {step} {outcome} | {states}", flush=True)
        await asyncio.sleep(chosen.pause)
    for side in (*engines, *gateways):
        await side.server.close()


if __name__ == "__main__":
    asyncio.run(main())
