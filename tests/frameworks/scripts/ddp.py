"""DistributedDataParallel with snapshots, as PyTorch's tutorial "Fault-tolerant Distributed Training with torchrun".

ddp.py SNAPSHOT_FOLDER
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS = 25
SAVE_EVERY = 2  # epochs


class Trainer:
    def __init__(self, model, data, optimizer, snapshot_path):
        self.rank = dist.get_rank()
        self.data, self.optimizer, self.snapshot_path = data, optimizer, snapshot_path
        self.epochs_run = 0
        self.model = model
        if os.path.exists(snapshot_path):
            self.load_snapshot()
        if self.rank == 0:
            print(f"resumes at step {self.epochs_run * len(data)}", flush=True)
        self.model = DistributedDataParallel(model)

    def load_snapshot(self):
        snapshot = torch.load(self.snapshot_path)
        self.model.load_state_dict(snapshot["model"])
        self.optimizer.load_state_dict(snapshot["optimizer"])
        self.epochs_run = snapshot["epochs_run"]

    def save_snapshot(self, epochs_run):
        snapshot = {
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epochs_run": epochs_run,
        }
        torch.save(snapshot, f"{self.snapshot_path}.new")
        os.replace(f"{self.snapshot_path}.new", self.snapshot_path)

    def run_epoch(self, epoch):
        self.data.sampler.set_epoch(epoch)
        for number, (inputs, targets) in enumerate(self.data, start=epoch * len(self.data) + 1):
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(inputs), targets)
            loss.backward()
            self.optimizer.step()
            if self.rank == 0:
                print(f"step {number} loss {loss.item()!r}", flush=True)

    def train(self):
        for epoch in range(self.epochs_run, EPOCHS):
            self.run_epoch(epoch)
            if self.rank == 0 and (epoch + 1) % SAVE_EVERY == 0:
                self.save_snapshot(epoch + 1)


def main(folder):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs = torch.randn(2048, 256)
    data = TensorDataset(inputs, inputs.sin().roll(1, dims=1))
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(data, batch_size=256, sampler=DistributedSampler(data, seed=0))
    Trainer(model, loader, optimizer, os.path.join(folder, "snapshot.pt")).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
