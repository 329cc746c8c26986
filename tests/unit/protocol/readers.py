"""The reader of the standard library, and the one that is in a hurry: no test may tell them apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from understudy_protocol import compiled, wire

Reader = Callable[[Any, dict[str, type[Any]]], Any]
READERS: tuple[Reader, ...] = (wire.decode, compiled.decode)
