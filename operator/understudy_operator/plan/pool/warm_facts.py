"""Facts of warm spares: what a pool's spec says of its launcher, and how far a claimed spare's adoption has come."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PoolLauncher:
    """What makes a pool's spares warm, as in the jobs that are to claim them."""

    container: str = ""  # of the trainer; "": the first
    nproc_per_node: int = 1
    zygote: bool = True
    preload: tuple[str, ...] | None = None  # None: the launcher's own
    warmup: tuple[str, ...] = ()


@dataclass(frozen=True)
class Adoption:
    """What this operator has heard of a claimed spare that it tells whose it is."""

    since: float  # the first attempt
    adopted: bool = False
    failure: str = ""  # of the newest attempt
