"""A transformer that is sharded with FSDP2, with snapshots and checkpoints of torch.distributed.checkpoint.

On GPUs it uses NCCL and bfloat16, otherwise gloo. The default size of the model fits any machine; trainingjob.yaml has
the arguments for 8 GPUs a pod.

- Every step is a function of its number and of the number of ranks. So with the same number of ranks, a run with
  interruptions ends with the same result as a run without.
- With `spec.snapshots`, each step is saved in the memory of the pods too. A round restores the newest such snapshot; if
  there is none, the newest checkpoint in FOLDER.
- Each round of the job writes to a folder of its own, named after its token. A round starts from the newest checkpoint
  of the newest older round that has a checkpoint.
- SIGTERM: the ranks agree to stop after the step, all save, and exit with 143.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

try:
    from understudy_torch import step as report_step
    from understudy_torch.dcp import SnapshotReader, SnapshotWriter
except ImportError:  # without Understudy, only the checkpoints in FOLDER
    SnapshotReader = SnapshotWriter = None

    def report_step(step: int, total: int | None = None) -> None:
        """Does nothing: Understudy is not installed."""


EXIT_SIGTERM = 128 + signal.SIGTERM
TOKENS = 256


class Model(nn.Module):
    """Predicts the previous token at each position. Returns the mean loss."""

    def __init__(self, width: int, layers: int, context: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(TOKENS, width), nn.Embedding(context, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.out = nn.Linear(width, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, tokens.device)
        x = self.token(tokens) + self.position(torch.arange(length, device=tokens.device))
        for layer in self.layers:
            x = layer(x, src_mask=mask.to(x.dtype), is_causal=True)
        wanted = tokens.roll(1, 1)
        wanted[:, 0] = 0
        return nn.functional.cross_entropy(self.out(x).flatten(0, 1).float(), wanted.flatten())


class Training:
    def __init__(self, args: argparse.Namespace) -> None:
        self._args, self._rank, self._size = args, dist.get_rank(), dist.get_world_size()
        on_gpu = torch.cuda.is_available()
        self._device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        self._token = os.environ.get("UNDERSTUDY_ROUND", "0.0.0")
        self._folder: Path = args.folder.absolute()
        self._own = self._folder / ".".join(f"{int(part):010d}" for part in self._token.split("."))
        torch.manual_seed(1)
        mesh = dist.init_device_mesh(self._device.type, (self._size,))
        with self._device:
            model = Model(args.width, args.layers, args.context)
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if on_gpu else MixedPrecisionPolicy()
        for layer in model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        self._model = fully_shard(model, mesh=mesh, mp_policy=policy)
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        self._step = 0
        self._is_asked_to_end = False

    def run(self) -> int:
        """Returns the exit code."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        self._restore()
        while self._step < self._args.steps:
            started = time.monotonic()
            loss, ends = self._train()
            report_step(self._step, self._args.steps)
            if SnapshotWriter is not None:
                checkpoint.save(self._state(), storage_writer=SnapshotWriter(self._step))
            if self._rank == 0 and self._step % self._args.log_every == 0:
                print(f"step {self._step} loss {loss!r}", flush=True)
            if ends or self._step % self._args.checkpoint_every == 0 or self._step == self._args.steps:
                self._save()
            if ends:
                return EXIT_SIGTERM
            time.sleep(max(0.0, started + self._args.min_step_seconds - time.monotonic()))
        return 0

    def _train(self) -> tuple[float, bool]:
        """One step: the mean loss of all ranks, and whether one of them is asked to end."""
        self._step += 1
        draw = torch.Generator().manual_seed(self._step * self._size + self._rank)
        shape = (self._args.batch_size, self._args.context)
        loss = self._model(torch.randint(TOKENS, shape, generator=draw).to(self._device))
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        both = torch.stack([loss.detach().float(), torch.tensor(float(self._is_asked_to_end), device=self._device)])
        dist.all_reduce(both)
        return both[0].item() / self._size, both[1].item() > 0

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._model, self._optimizer)
        return {"model": model, "optimizer": optimizer, "step": torch.tensor(self._step)}

    def _restore(self) -> None:
        found: list[Path | None] = [self._newest() if self._rank == 0 else None]
        dist.broadcast_object_list(found, src=0, device=self._device)  # a folder may change between two looks
        path, source = found[0], "nothing"
        storage = None if path is None else checkpoint.FileSystemReader(path)
        reader: Any = storage
        if SnapshotReader is not None:
            reader = SnapshotReader(storage or checkpoint.FileSystemReader(self._folder))
            source = "a snapshot" if reader.step is not None else source
        if source == "nothing" and path is not None:
            source = str(path)
        if source != "nothing":
            state = self._state()
            checkpoint.load(state, storage_reader=reader)
            set_state_dict(
                self._model, self._optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
            )
            self._step = int(state["step"])
        if self._rank == 0:
            print(f"round {self._token} with {self._size} ranks restores {source}", flush=True)
            print(f"resumes at step {self._step}", flush=True)

    def _newest(self) -> Path | None:
        """The newest complete checkpoint of the newest round that has one: DCP writes `.metadata` last."""
        for folder in sorted(self._folder.glob("*.*.*"), reverse=True):
            steps = sorted(int(path.parent.name) for path in folder.glob("*/.metadata"))
            if folder.name <= self._own.name and steps:
                return folder / str(steps[-1])
        return None

    def _save(self) -> None:
        checkpoint.save(self._state(), checkpoint_id=self._own / str(self._step))
        if self._rank == 0:
            self._remove_old()

    def _remove_old(self) -> None:
        """Keep two checkpoints of this round. Later rounds read these, so those of older rounds can go."""
        for folder in self._folder.glob("*.*.*"):
            if folder.name < self._own.name:
                shutil.rmtree(folder, ignore_errors=True)
        for path in sorted(self._own.iterdir(), key=lambda path: int(path.name))[:-2]:
            shutil.rmtree(path, ignore_errors=True)

    def _on_sigterm(self, _number: int, _frame: object) -> None:
        self._is_asked_to_end = True


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="for checkpoints; on storage that all nodes share")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--width", type=int, default=128, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--context", type=int, default=64, help="tokens of a sample")
    parser.add_argument("--batch-size", type=int, default=4, help="samples of each rank a step")
    parser.add_argument("--checkpoint-every", type=int, default=100, metavar="STEPS")
    parser.add_argument("--log-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--min-step-seconds", type=float, default=0.0, help="minimum duration of a step")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    code = Training(args).run()
    dist.barrier()  # until rank 0 has removed old checkpoints
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(code)  # at once: the next round waits until this process ends


if __name__ == "__main__":
    main()
