"""The trainer: updates its rollout servers again and again, and continues after an update that failed.

It prints a line for each update. In a TrainingJob with `rollouts` (trainingjob.yaml) it finds its servers by itself,
and need not handle failures: after one that may not be retried the job restarts.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from gloo_group import GlooGroup
from rollout import fill, model
from tiny_engine import TinyEngine
from torch import nn

from understudy_rollout import Group, Replica, Tensor, Timeouts, WeightUpdate, in_thread
from understudy_rollout.gateway import Gateway
from understudy_rollout.replicas import replicas_of_this_job, until_up
from understudy_torch import step as report_step


class GlooTrainer:
    """Rank 0 of every group: torch's calls block, so they run in a thread."""

    def __init__(self, trained: nn.Module, address: str) -> None:
        self._address = address  # of this machine, where the others connect
        self._parameters = dict(trained.named_parameters())
        self._group: GlooGroup | None = None

    async def open_group(self, world_size: int) -> Group:
        with socket.create_server((self._address, 0)) as free:
            port = free.getsockname()[1]
        return Group(self._address, port, world_size, uuid.uuid4().hex, "gloo")

    async def join_group(self, group: Group) -> None:
        self._group = await in_thread(GlooGroup, group.address, group.port, 0, group.world_size, group.name)

    async def send(self, group: Group, tensors: Sequence[Tensor]) -> None:
        assert self._group is not None
        for tensor in tensors:
            await in_thread(self._group.broadcast, self._parameters[tensor.name].detach())

    async def leave_group(self, group: Group | None) -> None:
        self._group = None  # gloo ends a broadcast that still waits: when a peer is gone, or after its timeout


def given_replicas(chosen: argparse.Namespace) -> list[Replica]:
    token = chosen.token_file.read_text().strip()
    gateways = [Gateway(url, token) for url in chosen.gateways]
    return [Replica(f"rollout-{n}", TinyEngine(gateway), admission=gateway) for n, gateway in enumerate(gateways)]


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.3, help="seconds of training between updates")
    parser.add_argument("--paced", action="store_true", help="instead of the pause, wait for a line on standard input")
    parser.add_argument("--die-in-update", type=int, default=0, help="after its first tensor")
    parser.add_argument("--stop-in-update", type=int, default=0, help="after its first tensor, until SIGCONT")
    parser.add_argument("--pause-in-transfer", type=float, default=0.0, help="seconds after each tensor")
    parser.add_argument("--transfer-timeout", type=float, default=30.0, help="seconds that a transfer may take")
    parser.add_argument("--gateways", nargs="+", metavar="URL", help="if unset: those of this TrainingJob")
    parser.add_argument("--token-file", type=Path)
    chosen = parser.parse_args()
    replicas = given_replicas(chosen) if chosen.gateways else replicas_of_this_job(TinyEngine)
    timeouts = Timeouts(build_group=30, transfer=chosen.transfer_timeout, undo=5)
    trained = model()
    address = "127.0.0.1" if chosen.gateways else socket.gethostbyname(socket.gethostname())
    trainer = GlooTrainer(trained, address)
    tensors = [Tensor(name, "float32", tuple(value.shape)) for name, value in trained.named_parameters()]
    for step in range(1, chosen.updates + 1):
        fill(trained, step)  # a training would do this
        if not chosen.gateways:
            await until_up(replicas)
        try:
            async with WeightUpdate(replicas, trainer, version=str(step), timeouts=timeouts) as update:
                for tensor in tensors:
                    await update.transfer([tensor])
                    await asyncio.sleep(chosen.pause_in_transfer)
                    if step == chosen.die_in_update:
                        os._exit(1)
                    if step == chosen.stop_in_update and tensor is tensors[0]:
                        os.kill(os.getpid(), signal.SIGSTOP)
            outcome = "whole"
        except Exception as error:  # noqa: BLE001 (each update's result is printed)
            outcome = f"failed: {error}"
        states = " ".join(f"{x.name}={x.weights.state.value}:{x.weights.version}" for x in replicas)
        print(f"update {step} {outcome} | {states}", flush=True)
        report_step(step, chosen.updates)
        await (in_thread(sys.stdin.readline) if chosen.paced else asyncio.sleep(chosen.pause))


if __name__ == "__main__":
    asyncio.run(main())
