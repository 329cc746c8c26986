"""Accelerate, as its example by_feature/checkpointing.py: save_state, load_state and skip_first_batches.

accelerate_train.py OUTPUT_FOLDER
"""

import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 5
SAVE_EVERY = 10  # steps


def main(folder):
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    set_seed(0)
    inputs = torch.randn(10240, 256)
    data = TensorDataset(inputs, inputs.sin().roll(1, dims=1))
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(data, batch_size=256, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    step = 0
    saved = sorted(folder.glob("step_*"), key=os.path.getctime)
    if saved:
        accelerator.load_state(saved[-1])
        step = int(saved[-1].name.removeprefix("step_"))
    accelerator.print(f"resumes at step {step}", flush=True)

    for epoch in range(step // len(loader), EPOCHS):
        loader.set_epoch(epoch)
        done = step - epoch * len(loader)
        for batch_inputs, targets in accelerator.skip_first_batches(loader, done) if done else loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch_inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            accelerator.print(f"step {step} loss {loss.item()!r}", flush=True)
            if step % SAVE_EVERY == 0:
                accelerator.save_state(folder / f"step_{step}")
    accelerator.end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
