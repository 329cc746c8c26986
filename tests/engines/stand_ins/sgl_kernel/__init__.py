"""In place of SGLang's kernels, which are for CUDA: as they register no operations, SGLang takes those of torch.

It imports some by name; what is called after all, fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name}: there are no kernels here")

    return absent
