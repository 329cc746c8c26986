"""DeepSpeed ZeRO on the CPU, as its documentation: initialize, save_checkpoint and load_checkpoint.

deepspeed_train.py CHECKPOINT_FOLDER ZERO_STAGE
"""

import sys

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

STEPS = 100
SAVE_EVERY = 10


def main(folder, stage):
    deepspeed.init_distributed(dist_backend="gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
    config = {
        "train_micro_batch_size_per_gpu": 256,
        "zero_optimization": {"stage": int(stage)},
        "zero_allow_untested_optimizer": True,
    }
    engine, _, _, _ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3), config=config
    )
    loaded, state = engine.load_checkpoint(folder)
    first = state["step"] if loaded else 0
    if rank == 0:
        print(f"resumes at step {first}", flush=True)

    for step in range(first + 1, STEPS + 1):
        inputs = torch.randn(256, 256, generator=torch.Generator().manual_seed(step * world_size + rank))
        loss = nn.functional.mse_loss(engine(inputs), inputs.sin().roll(1, dims=1))
        engine.backward(loss)
        engine.step()
        if rank == 0:
            print(f"step {step} loss {loss.item()!r}", flush=True)
        if step % SAVE_EVERY == 0:
            engine.save_checkpoint(folder, client_state={"step": step})
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
