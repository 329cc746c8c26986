"""Lightning on two nodes, as its documentation: Trainer, ModelCheckpoint, and fit(ckpt_path="last").

lightning_train.py CHECKPOINT_FOLDER ddp|fsdp
"""

import sys

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))

    def training_step(self, batch, batch_index):
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.layers(inputs), targets)
        if self.global_rank == 0:
            print(f"step {self.global_step + 1} loss {loss.item()!r}", flush=True)
        return loss

    def on_train_start(self):
        if self.global_rank == 0:
            print(f"resumes at step {self.global_step}", flush=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main(folder, strategy):
    pl.seed_everything(0)
    inputs = torch.randn(2560, 256)
    loader = DataLoader(TensorDataset(inputs, inputs.sin().roll(1, dims=1)), batch_size=256, shuffle=True)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        num_nodes=2,
        strategy=strategy,
        max_epochs=20,
        callbacks=[ModelCheckpoint(dirpath=folder, every_n_epochs=2, save_last=True)],
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(Model(), loader, ckpt_path="last")


if __name__ == "__main__":
    main(*sys.argv[1:])
