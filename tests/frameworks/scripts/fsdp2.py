"""FSDP2 with torch.distributed.checkpoint, as PyTorch's tutorials of fully_shard and of DCP.

fsdp2.py CHECKPOINT_FOLDER
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS = 100
SAVE_EVERY = 10


class AppState(Stateful):
    """Model and optimizer, for dcp.save and dcp.load."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state_dict):
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state_dict["model"],
            optim_state_dict=state_dict["optimizer"],
        )


def newest_step(folder):
    """The step of the newest complete checkpoint: DCP writes the metadata last."""
    return max((int(path.parent.name) for path in folder.glob("*/.metadata")), default=0)


def main(folder):
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world_size,))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 256))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    first = newest_step(folder)
    if first:
        dcp.load({"app": AppState(model, optimizer)}, checkpoint_id=folder / str(first))
    if rank == 0:
        print(f"resumes at step {first}", flush=True)

    for step in range(first + 1, STEPS + 1):
        inputs = torch.randn(256, 256, generator=torch.Generator().manual_seed(step * world_size + rank))
        loss = nn.functional.mse_loss(model(inputs), inputs.sin().roll(1, dims=1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} loss {loss.item()!r}", flush=True)
        if step % SAVE_EVERY == 0:
            dcp.save({"app": AppState(model, optimizer)}, checkpoint_id=folder / str(step))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
