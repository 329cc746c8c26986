"""A small network, trained with JAX on several processes, so that a fault costs only the steps since a checkpoint.

The script calls jax.distributed.initialize() without arguments. Under Understudy it joins the processes of the round;
`--alone` trains with one process, without any cluster.

- Every step is a function of its number: the global batch depends only on the step, and each process takes its share.
  So a run that was interrupted any number of times ends with the loss of an uninterrupted one, to float tolerance.
- With `spec.snapshots`, each step is saved in the memory of the pods. A round restores the newest such snapshot; if
  there is none, the checkpoint.
- Checkpoints are those of Orbax. Each round of the job writes to a folder of its own, named after its token. A round
  starts from the newest checkpoint of the newest older round that has a checkpoint.
- SIGTERM: the processes agree on a step through JAX, save a checkpoint after it, and exit with 143.
- Compiled functions are kept in `--compilation-cache`, so a restart compiles nothing.
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

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

snapshot: Any
try:
    from understudy_jax import snapshot  # in the memory of the pods: a fault of a worker costs no step that was saved
    from understudy_torch import step as report_step  # the progress: needs no torch
except ImportError:
    snapshot = None

    def report_step(step: int, total: int | None = None) -> None:
        """Does nothing: Understudy is not installed."""


WIDTH, HIDDEN = 256, 1024
EXIT_SIGTERM = 128 + signal.SIGTERM
State = dict[str, Any]


def predict(parameters: State, inputs: jax.Array) -> jax.Array:
    return jax.nn.gelu(inputs @ parameters["up"]) @ parameters["down"]


class Training:
    def __init__(self, batch_size: int) -> None:
        mesh = Mesh(jax.devices(), ("data",))
        self._by_sample = NamedSharding(mesh, PartitionSpec("data"))
        self._batch_size, optimizer = batch_size, optax.adamw(1e-3)

        def initial() -> State:
            up, down = jax.random.split(jax.random.key(0))
            parameters = {
                "up": jax.random.normal(up, (WIDTH, HIDDEN)) / 16,
                "down": jax.random.normal(down, (HIDDEN, WIDTH)) / 32,
            }
            return {"parameters": parameters, "optimizer": optimizer.init(parameters)}

        def train_step(state: State, inputs: jax.Array, targets: jax.Array) -> tuple[State, jax.Array]:
            def loss_of(parameters: State) -> jax.Array:
                return jnp.mean((predict(parameters, inputs) - targets) ** 2)

            loss, gradients = jax.value_and_grad(loss_of)(state["parameters"])
            updates, optimizer_state = optimizer.update(gradients, state["optimizer"], state["parameters"])
            return {"parameters": optax.apply_updates(state["parameters"], updates), "optimizer": optimizer_state}, loss

        self.state = jax.jit(initial, out_shardings=NamedSharding(mesh, PartitionSpec()))()
        self._train_step = jax.jit(train_step, donate_argnums=0)

    def step(self, number: int) -> float:
        """Returns the loss."""
        global_batch = np.random.default_rng(number).standard_normal((self._batch_size, WIDTH), dtype=np.float32)
        local_batch = np.split(global_batch, jax.process_count())[jax.process_index()]
        inputs = jax.make_array_from_process_local_data(self._by_sample, local_batch)
        targets = jax.make_array_from_process_local_data(self._by_sample, np.roll(np.sin(local_batch), 1, axis=1))
        self.state, loss = self._train_step(self.state, inputs, targets)
        return float(loss)


class Checkpoints:
    """The checkpoints of a job, in a folder for each round."""

    def __init__(self, folder: Path, token: str) -> None:
        self._folder, self._own = folder, folder / folder_of(token)
        self._manager: ocp.CheckpointManager | None = None

    def restore(self, state: State) -> tuple[int, State]:
        """The step of the newest checkpoint and its state; 0 and `state` if there is none. All processes call it.

        Process 0 looks for it, because a folder may change between the looks of two processes.
        """
        found = self._newest() if jax.process_index() == 0 else ""
        shared = multihost_utils.broadcast_one_to_all(np.frombuffer(found.ljust(80).encode(), np.uint8))
        name, _, step = bytes(shared).decode().strip().partition("/")
        if not step:
            return 0, state
        with ocp.CheckpointManager(self._folder / name) as manager:
            return int(step), manager.restore(int(step), args=ocp.args.StandardRestore(state))

    def save(self, step: int, state: State) -> None:
        """Returns when the state is copied; Orbax writes it in the background."""
        if self._manager is None:
            self._manager = ocp.CheckpointManager(self._own, options=ocp.CheckpointManagerOptions(max_to_keep=2))
        has_saved = self._manager.latest_step() is not None
        self._manager.save(step, args=ocp.args.StandardSave(state), force=True)  # waits until the last one is complete
        if has_saved and jax.process_index() == 0:
            self._remove_older_rounds()

    def finish(self) -> None:
        if self._manager is not None:
            self._manager.wait_until_finished()

    def _remove_older_rounds(self) -> None:
        """Later rounds read the checkpoints of this round."""
        for folder in self._folder.glob("*.*.*"):
            if folder.name < self._own.name:
                shutil.rmtree(folder, ignore_errors=True)

    def _newest(self) -> str:
        """ROUND/STEP: the newest finished checkpoint of the newest round that has one; "" if there is none."""
        for folder in sorted(self._folder.glob("*.*.*"), reverse=True):
            steps = [int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()]
            if folder.name <= self._own.name and steps:
                return f"{folder.name}/{max(steps)}"
        return ""


def folder_of(token: str) -> str:
    """The folder name of a round token (epoch.term.round). Names sort in the order of the rounds."""
    return ".".join(f"{int(part):010d}" for part in token.split("."))


def train(args: argparse.Namespace) -> int:
    """Returns the exit code."""
    token = os.environ.get("UNDERSTUDY_ROUND", "0.0.0")
    training, checkpoints = Training(args.batch_size), Checkpoints(args.checkpoint_dir.absolute(), token)
    # All processes get a snapshot of the same step, or all get None.
    restored = None if snapshot is None else snapshot.load(like={"step": 0, "state": training.state})
    if restored is not None:
        first, training.state = restored["step"], restored["state"]
    else:
        first, training.state = checkpoints.restore(training.state)
    log(f"round {token} with {jax.process_count()} processes")
    log(f"resumes at step {first}")
    for step in range(first + 1, args.steps + 1):
        started = time.monotonic()
        loss = training.step(step)
        if snapshot is not None:
            snapshot.save(step, {"step": step, "state": training.state})
        report_step(step, args.steps)
        if step % args.log_every == 0 or step == args.steps:
            log(f"step {step} loss {loss!r}")
        is_stopped = not args.alone and multihost_utils.reached_preemption_sync_point(step)
        if is_stopped or step % args.checkpoint_every == 0 or step == args.steps:
            checkpoints.save(step, training.state)
        if is_stopped:
            checkpoints.finish()
            log(f"SIGTERM: saved step {step}")
            return EXIT_SIGTERM
        time.sleep(max(0.0, started + args.min_step_seconds - time.monotonic()))
    checkpoints.finish()
    return 0


def log(line: str) -> None:
    if jax.process_index() == 0:
        print(line, flush=True)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "checkpoint_dir", type=Path, metavar="FOLDER", help="for checkpoints; on storage that all nodes share"
    )
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=504, help="samples a step, over all processes together")
    parser.add_argument("--checkpoint-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--compilation-cache", type=Path, help="a folder of the node; default: nothing is kept")
    parser.add_argument("--log-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--min-step-seconds", type=float, default=0.0, help="minimum duration of a step")
    parser.add_argument("--alone", action="store_true", help="train with one process, without a cluster")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    if args.compilation_cache is not None:
        jax.config.update("jax_compilation_cache_dir", str(args.compilation_cache.absolute()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if not args.alone:
        jax.distributed.initialize()
    code = train(args)
    sys.stdout.flush()
    if not args.alone:
        jax.distributed.shutdown()
    sys.exit(code)


if __name__ == "__main__":
    main()
