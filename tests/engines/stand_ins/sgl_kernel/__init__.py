"""Replaces SGLang's kernels, which are for CUDA: because it registers no operations, SGLang uses those of torch.

SGLang imports some by name; a call of one of them fails.
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
