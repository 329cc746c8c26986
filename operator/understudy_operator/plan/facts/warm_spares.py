"""Facts of warm spares: the launcher in a pool's spec, and the progress of a claimed spare's adoption."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PoolLauncher:
    """The launcher of a pool's spares, as in the jobs that will claim them."""

    container: str = ""  # name of the trainer; "": the first
    nproc_per_node: int = 1
    zygote: bool = True
    preload: tuple[str, ...] | None = None  # None: the launcher's default
    warmup: tuple[str, ...] = ()


@dataclass(frozen=True)
class Adoption:
    """The results of this operator's attempts to send a claimed spare its job."""

    since: float  # the first attempt
    adopted: bool = False
    failure: str = ""  # of the newest attempt
