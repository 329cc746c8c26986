"""JAX on several processes, as its documentation: jax.distributed, data parallelism by sharding, and Orbax.

jax_train.py CHECKPOINT_FOLDER
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

STEPS = 100
SAVE_EVERY = 10
BATCH = 512


def predict(parameters, inputs):
    return jax.nn.gelu(inputs @ parameters["up"]) @ parameters["down"]


def main(folder):
    jax.distributed.initialize()
    mesh = Mesh(jax.devices(), ("data",))
    replicated, by_sample = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    optimizer = optax.adamw(1e-3)

    @jax.jit
    def initial():
        up, down = jax.random.split(jax.random.key(0))
        parameters = {
            "up": jax.random.normal(up, (256, 1024)) / 16,
            "down": jax.random.normal(down, (1024, 256)) / 32,
        }
        return {"parameters": parameters, "optimizer": optimizer.init(parameters)}

    @jax.jit
    def train_step(state, inputs, targets):
        def loss_of(parameters):
            return jnp.mean((predict(parameters, inputs) - targets) ** 2)

        loss, gradients = jax.value_and_grad(loss_of)(state["parameters"])
        updates, optimizer_state = optimizer.update(gradients, state["optimizer"], state["parameters"])
        return {"parameters": optax.apply_updates(state["parameters"], updates), "optimizer": optimizer_state}, loss

    state = jax.jit(initial, out_shardings=replicated)()
    checkpoints = ocp.CheckpointManager(folder, options=ocp.CheckpointManagerOptions(max_to_keep=3))
    first = checkpoints.latest_step() or 0
    if first:
        state = checkpoints.restore(first, args=ocp.args.StandardRestore(state))
    if jax.process_index() == 0:
        print(f"resumes at step {first}", flush=True)

    for step in range(first + 1, STEPS + 1):
        everything = np.random.default_rng(step).standard_normal((BATCH, 256), dtype=np.float32)
        mine = np.split(everything, jax.process_count())[jax.process_index()]
        inputs = jax.make_array_from_process_local_data(by_sample, mine)
        targets = jax.make_array_from_process_local_data(by_sample, np.roll(np.sin(mine), 1, axis=1))
        state, loss = train_step(state, inputs, targets)
        if jax.process_index() == 0:
            print(f"step {step} loss {float(loss)!r}", flush=True)
        if step % SAVE_EVERY == 0:
            checkpoints.save(step, args=ocp.args.StandardSave(state))
    checkpoints.wait_until_finished()
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
