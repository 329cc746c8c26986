"""The code blocks of docs/how-to/rl.md, to be run unchanged."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).resolve().parents[3] / "docs/how-to/rl.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = FENCE.findall(PAGE)


def block(kind: str, *words: str) -> str:
    """The one block of this kind that has all of these words."""
    found = [code for of_kind, code in BLOCKS if of_kind == kind and all(word in code for word in words)]
    assert len(found) == 1, f"{kind} with {words}: {len(found)}"
    return str(found[0])


async def executed(code: str, **given: Any) -> dict[str, Any]:
    """Run it as the body of a coroutine; returns the names that it has defined."""
    body = textwrap.indent(code, "    ")
    given = {**given, "__name__": "docs"}
    exec(f"async def block():\n{body}\n    return locals()", given)
    defined: dict[str, Any] = await given["block"]()
    return defined
