"""The cases of `make frameworks`: a script, its command, the options of `understudy local`, and the user's change."""

from __future__ import annotations

from dataclasses import dataclass

NOTHING = "nothing"
#: The modules that a fork server imports by default.
DEFAULT_MODULES = ("torch", "torch.distributed", "torch._dynamo", "numpy")


def preload(*modules: str) -> tuple[str, str]:
    return ("--preload", ",".join((*DEFAULT_MODULES, *modules)))


@dataclass(frozen=True)
class Case:
    """name: in the table. packages: whose versions the table has. arguments: of the script, after its folder.

    command: words before the script; `{bin}` is the folder of programs of the frameworks' environment.
    save_every: steps from one checkpoint to the next. within: how much a loss may differ, relative.
    changed: what a user has to change in the command or in the script. learns: the test waits until the fork servers
    have learned the modules of the script, as in a job that has run for a minute. is_launcher: the command starts the
    script in a process of its own. under_open_mpi: the undisturbed run has the variables of Open MPI, because the
    framework does not know those of torchrun.
    """

    name: str
    packages: tuple[str, ...]
    script: str
    arguments: tuple[str, ...] = ()
    command: tuple[str, ...] = ("{bin}/python",)
    options: tuple[str, ...] = ()
    save_every: int = 10
    within: float = 1e-6
    changed: str = NOTHING
    learns: bool = False
    is_launcher: bool = False
    under_open_mpi: bool = False


CASES = (
    Case("DistributedDataParallel", ("torch",), "ddp.py", save_every=8),
    Case("DataLoader with workers, fork", ("torch",), "dataloader.py", ("fork",)),
    Case("DataLoader with workers, spawn", ("torch",), "dataloader.py", ("spawn",)),
    Case("FSDP2 with torch.distributed.checkpoint", ("torch",), "fsdp2.py"),
    Case(
        "FSDP2, examples/fsdp with snapshots",
        ("torch",),
        "../../../examples/fsdp/train.py",
        ("--steps=100", "--checkpoint-every=10", "--log-every=1"),
        options=("--snapshots", "64Mi"),
        changed="snapshots",
    ),
    Case("HF Trainer", ("transformers",), "hf_trainer.py", learns=True),
    Case(
        "HF Trainer, preloaded",
        ("transformers",),
        "hf_trainer.py",
        options=preload("transformers.trainer", "transformers.models.gpt2.modeling_gpt2"),
        changed="preload: transformers.trainer, and the model's module",
    ),
    Case("Accelerate", ("accelerate",), "accelerate_train.py"),
    Case(
        "Accelerate, by `accelerate launch`",
        ("accelerate",),
        "accelerate_train.py",
        command=("{bin}/accelerate", "launch"),
        is_launcher=True,
    ),
    Case(
        "Accelerate, by `accelerate launch --multi_gpu`",
        ("accelerate",),
        "accelerate_train.py",
        command=(
            "{bin}/accelerate",
            "launch",
            "--multi_gpu",
            "--num_processes=2",
            "--num_machines=2",
            "--machine_rank=0",
        ),
    ),
    Case("Lightning, ddp", ("pytorch-lightning",), "lightning_train.py", ("ddp",)),
    Case(
        "Lightning, ddp, preloaded",
        ("pytorch-lightning",),
        "lightning_train.py",
        ("ddp",),
        options=preload("pytorch_lightning"),
        changed="preload: pytorch_lightning",
    ),
    Case("DeepSpeed, ZeRO-2", ("deepspeed",), "deepspeed_train.py", ("2",)),
    Case("JAX", ("jax",), "jax_train.py", under_open_mpi=True),
    Case(
        "JAX, preloaded",
        ("jax",),
        "jax_train.py",
        options=("--preload", "jax,optax,orbax.checkpoint"),
        changed="preload: jax, optax, orbax.checkpoint",
        under_open_mpi=True,
    ),
    Case(
        "JAX, examples/jax",
        ("jax",),
        "../../../examples/jax/train.py",
        (
            "--steps=100",
            "--batch-size=512",
            "--checkpoint-every=10",
            "--log-every=1",
            "--compilation-cache={bin}/../jax_cache",
        ),
        options=("--preload", "jax,optax,orbax.checkpoint"),
        changed="preload: jax, optax, orbax.checkpoint; a compilation cache",
        under_open_mpi=True,
    ),
)
