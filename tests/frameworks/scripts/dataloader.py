"""DistributedDataParallel with the workers of a DataLoader, as the documentation of torch.utils.data.

dataloader.py CHECKPOINT_FOLDER fork|spawn
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS = 10


class Curves(Dataset):
    """Each sample is computed by a worker of the DataLoader."""

    def __len__(self):
        return 5120

    def __getitem__(self, index):
        inputs = torch.randn(256, generator=torch.Generator().manual_seed(index))
        return inputs, inputs.sin().roll(1)


def main(folder, start_method):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = Curves()
    sampler = DistributedSampler(data, seed=0)
    loader = DataLoader(
        data,
        batch_size=256,
        sampler=sampler,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context=start_method,
    )
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    path = os.path.join(folder, "checkpoint.pt")
    first = 0
    if os.path.exists(path):
        checkpoint = torch.load(path)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        first = checkpoint["epoch"]
    step = first * len(loader)
    if rank == 0:
        print(f"resumes at step {step}", flush=True)

    for epoch in range(first, EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0:
                print(f"step {step} loss {loss.item()!r}", flush=True)
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
            torch.save(state, f"{path}.new")
            os.replace(f"{path}.new", path)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
