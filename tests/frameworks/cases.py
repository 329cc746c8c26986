"""The cases of `make frameworks`: a script, its command, the options of `understudy local`, and what a user has to change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NOTHING = "nothing"


@dataclass(frozen=True)
class Case:
    """name: in the table. packages: whose versions the table has. arguments: of the script, after its folder.

    command: words before the script; `{bin}` is the folder of programs of the frameworks' environment.
    save_every: steps from one checkpoint to the next. within: how much a loss may differ, relative.
    changed: what a user has to change in the command or in the script.
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
    environment: Mapping[str, str] = field(default_factory=dict)


CASES = (
    Case("DistributedDataParallel", ("torch",), "ddp.py", save_every=8),
    Case("DataLoader with workers, fork", ("torch",), "dataloader.py", ("fork",)),
    Case("DataLoader with workers, spawn", ("torch",), "dataloader.py", ("spawn",)),
    Case("FSDP2 with torch.distributed.checkpoint", ("torch",), "fsdp2.py"),
    Case("HF Trainer", ("transformers",), "hf_trainer.py"),
    Case("Accelerate", ("accelerate",), "accelerate_train.py"),
    Case(
        "Accelerate, by `accelerate launch`", ("accelerate",), "accelerate_train.py", command=("{bin}/accelerate", "launch")
    ),
    Case("Lightning, ddp", ("pytorch-lightning",), "lightning_train.py", ("ddp",)),
    Case("DeepSpeed, ZeRO-2", ("deepspeed",), "deepspeed_train.py", ("2",)),
    Case("JAX", ("jax",), "jax_train.py"),
)
