"""A small language model, trained with DistributedDataParallel so that a fault costs only the steps since a checkpoint.

It reads the `env://` contract (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT) that Understudy, torchrun and
others set; without it, it trains alone. Rank 0 prints, the others are silent.

- Every step is a function of its number: the global batch of a step depends only on the seed and the step, a rank
  takes its share of it, there is no dropout, and the initial model depends on the seed. So a run that was interrupted
  any number of times ends with the loss of an uninterrupted one, to float tolerance.
- A lost peer ends the process with exit code 1 at once (gloo reports the closed connection), a silent one after
  PEER_TIMEOUT. The process never restarts itself, because the launcher does.
- With `spec.snapshots`, each step is saved in the memory of the pods too. A round restores the newest such snapshot; if
  there is none, the checkpoint.
- SIGTERM: the ranks agree on a step, rank 0 saves it, and all exit with 143.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
import os
import signal
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TextIO

import torch
import torch.distributed as dist
from checkpoints import CheckpointStore, StaleRound
from corpus import generate_text
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel

snapshot: Any
try:
    # Snapshots in the memory of the pods: a fault of a worker costs no step that was saved there.
    from understudy_torch import snapshot
    from understudy_torch import (
        step as report_step,
    )  # reports the progress to Understudy, which detects hangs and the ends of recoveries by it
except ImportError:
    snapshot = None

    def report_step(step: int, total: int | None = None) -> None:
        """Replaces Understudy's step() if it is not installed."""


CONTEXT = 64
PEER_TIMEOUT = timedelta(seconds=60)
EXIT_SIGTERM = 128 + signal.SIGTERM


class Block(nn.Module):
    """One transformer layer: causal attention, then a two-layer perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.query_key_value(self.attention_norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.perceptron(x)


class CharacterModel(nn.Module):
    """A GPT over characters; returns the mean loss of predicting each next one."""

    def __init__(self, characters: int, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.character = nn.Embedding(characters, width)
        self.position = nn.Parameter(torch.empty(CONTEXT, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, characters))
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.06)

    def forward(self, windows: Tensor) -> Tensor:
        given, wanted = windows[:, :-1], windows[:, 1:]
        logits = self.out(self.blocks(self.character(given) + self.position))
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten())


class Corpus:
    """The text as numbers. Its last tenth is kept for the evaluation."""

    def __init__(self, text: str) -> None:
        alphabet = {character: number for number, character in enumerate(sorted(set(text)))}
        self.characters = len(alphabet)
        numbers = torch.tensor([alphabet[character] for character in text])
        cut = len(text) * 9 // 10
        self._training, self._held_out = numbers[:cut].unfold(0, CONTEXT + 1, 1), numbers[cut:]

    def batch(self, seed: int, step: int, size: int) -> Tensor:
        """The global batch of a step: the same on every rank, in every round."""
        digest = hashlib.sha256(f"{seed} {step}".encode()).digest()
        draw = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        return self._training[torch.randint(len(self._training), (size,), generator=draw)]

    def held_out(self) -> Tensor:
        return self._held_out.unfold(0, CONTEXT + 1, CONTEXT)


class Report:
    """Log for an outside observer: one JSON line per event, a file for each rank of each round."""

    def __init__(self, path: Path | None, token: str, rank: int) -> None:
        self._common = {"round": token, "host": socket.gethostname()}
        self._file: TextIO | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.with_name(f"{path.stem}.{token}.{rank}{path.suffix}").open("a", buffering=1)

    def write(self, event: str, step: int, loss: float | None) -> None:
        if self._file is not None:
            line = {"event": event, "step": step, "loss": loss, **self._common, "time": time.time()}
            self._file.write(json.dumps(line) + "\n")


class Trainer:
    """The training of one process, from joining its peers to the last step."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.token = os.environ.get("UNDERSTUDY_ROUND", "0.0.0")
        self.rank, self.world_size, self.device = join_peers()
        if args.batch_size < self.world_size:
            raise SystemExit(f"--batch-size {args.batch_size}: at least one window for each of {self.world_size} ranks")
        self.corpus = Corpus(args.corpus.read_text(encoding="utf-8") if args.corpus else generate_text())
        torch.manual_seed(args.seed)
        model = CharacterModel(self.corpus.characters).to(self.device)
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.5, fused=True)
        folder: Path | None = args.checkpoint_dir
        self.store = CheckpointStore(folder, self.token, dumps, self._loads) if folder else None
        self.report = Report(args.report, self.token, self.rank)
        self.step, self.loss = 0, math.nan
        self._sigterm = False

    def run(self) -> int:
        """Train to the last step and return the process's exit code."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        self._resume()
        stopped = finished = False
        while self.step < self.args.steps and not stopped and not finished:
            started = time.monotonic()
            stopped, finished = self._train_step()
            self._log()
            if snapshot is not None:
                snapshot.save(self.step, self._state())
            is_last = stopped or finished or self.step == self.args.steps
            if is_last or self.step % self.args.checkpoint_every == 0:
                self._save()
            if not is_last:
                time.sleep(max(0.0, started + self.args.min_step_seconds - time.monotonic()))
        if not stopped:
            self._evaluate()
        dist.barrier()  # no rank leaves before rank 0 is ready
        dist.destroy_process_group()
        return EXIT_SIGTERM if stopped else 0

    def _resume(self) -> None:
        """Rank 0 chooses the checkpoint, behind the fence, and sends its name to the others."""
        chosen: list[Path | None] = [None]
        if self.store is not None:
            if self.rank == 0:
                chosen = [self.store.begin()]
            dist.broadcast_object_list(chosen, src=0, device=self.device)
        state = None if snapshot is None else snapshot.load()  # of the same step on all ranks, or None on all
        source = "a snapshot" if state is not None else str(chosen[0])
        if state is None and self.store is not None and chosen[0] is not None:
            state = self.store.load(chosen[0])
        if state is not None:
            self.model.module.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.loss = state["step"], state["loss"]
        origin = f"resumed from step {self.step} ({source})" if state is not None else "starting at step 0"
        self._print(f"{origin} round={self.token} world_size={self.world_size}")
        self.report.write("resumed", self.step, None)

    def _train_step(self) -> tuple[bool, bool]:
        """Do one step. Returns whether it is the last one because a rank got SIGTERM, and because one sees --finish."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.args.lr, self.step, self.args.steps)
        batch = self.corpus.batch(self.args.seed, self.step, self.args.batch_size)
        loss = self.model(batch[self.rank :: self.world_size].to(self.device))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        # One small reduction for the mean loss and for both reasons to stop, so that all ranks stop at the same step.
        finish: Path | None = self.args.finish
        finishes = finish is not None and finish.exists()
        reasons = torch.tensor([float(self._sigterm), float(finishes)], device=self.device)
        shared = torch.cat([loss.detach().reshape(1) / self.world_size, reasons])
        dist.all_reduce(shared)
        self.loss, *ranks = shared.tolist()
        self.step += 1
        report_step(self.step, self.args.steps)
        return ranks[0] > 0, ranks[1] > 0

    def _log(self) -> None:
        self.report.write("step", self.step, self.loss)
        if self.step % self.args.log_every == 0:
            self._print(f"step={self.step}/{self.args.steps} loss={self.loss:.4f} round={self.token}")

    def _save(self) -> None:
        if self.rank != 0 or self.store is None:
            return
        self.store.save(self.step, self._state())
        self.report.write("saved", self.step, self.loss)

    def _state(self) -> dict[str, Any]:
        model, optimizer = self.model.module.state_dict(), self.optimizer.state_dict()
        return {"step": self.step, "loss": self.loss, "model": model, "optimizer": optimizer}

    def _evaluate(self) -> None:
        if self.rank != 0:
            return
        with torch.no_grad():
            eval_loss = self.model.module(self.corpus.held_out().to(self.device)).item()
        self._print(f"done step={self.step} loss={self.loss:.4f} eval_loss={eval_loss:.4f}")
        self.report.write("done", self.step, self.loss)

    def _loads(self, data: bytes) -> Any:
        return torch.load(io.BytesIO(data), map_location=self.device, weights_only=True)

    def _on_sigterm(self, _number: int, _frame: object) -> None:
        self._sigterm = True

    def _print(self, line: str) -> None:
        if self.rank == 0:
            print(line, flush=True)


def join_peers() -> tuple[int, int, torch.device]:
    """Enter the process group; without the environment's contract, a group of one."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    how: dict[str, Any] = {"init_method": "env://"}
    if "RANK" not in os.environ:
        how = {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("nccl" if cuda else "gloo", timeout=PEER_TIMEOUT, **how)
    return dist.get_rank(), dist.get_world_size(), device


def learning_rate(peak: float, step: int, steps: int, warmup: int = 50) -> float:
    """A linear start and a cosine end, as a function of the step alone."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (0.55 + 0.45 * math.cos(math.pi * step / steps))


def dumps(state: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch-size", type=int, default=12, help="windows a step, over all ranks together")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path, metavar="FILE", help="a text to learn instead of that of corpus.py")
    parser.add_argument("--checkpoint-dir", type=Path, help="a folder that all nodes share; none: no checkpoints")
    parser.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--log-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--min-step-seconds", type=float, default=0.0, help="a step takes at least so long")
    parser.add_argument("--float64", action="store_true", help="double precision: rounding hides no lost step")
    parser.add_argument("--finish", type=Path, metavar="FILE", help="once it exists, the next step is the last one")
    parser.add_argument("--report", type=Path, metavar="NAME.jsonl", help="log steps to NAME.ROUND.RANK.jsonl")
    return parser.parse_args()


def main() -> NoReturn:
    args = parse_args()
    if args.float64:
        torch.set_default_dtype(torch.float64)
    try:
        code = Trainer(args).run()
        # At once: all is saved, and the next round waits for this end. A normal exit could also abort (exit code -6):
        # gloo's threads outlive destroy_process_group, because DistributedDataParallel refers to the group. A thread
        # that releases the last reduced tensor needs the GIL, and Python ends it while the interpreter shuts down.
        sys.stdout.flush()
        os._exit(code)
    except StaleRound as error:
        reason = str(error)
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        reason = f"rank {os.environ.get('RANK', 0)} lost a peer: {str(error).partition('. ')[0]}"
    print(reason, file=sys.stderr, flush=True)
    os._exit(1)  # at once: there is nothing to clean up, and a cleanup could wait for a peer


if __name__ == "__main__":
    main()
