"""The reader of the standard library, and the compiled one: both have to pass the same tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from understudy_protocol import compiled, wire

Reader = Callable[[Any, dict[str, type[Any]]], Any]
READERS: tuple[Reader, ...] = (wire.decode, compiled.decode)
