"""The trainer imports it in the user's image: Python 3.9's syntax, and aiohttp only in modules that call a server."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import understudy_rollout

SOURCES = sorted(Path(understudy_rollout.__file__).parent.rglob("*.py"))
FOLDER = Path(understudy_rollout.__file__).parent


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.relative_to(FOLDER).as_posix())
def test_the_syntax_is_python_3_9s(source: Path) -> None:
    tree = ast.parse(source.read_text(), feature_version=(3, 9))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    roots = {name.partition(".")[0] for name in imported} - {"understudy_rollout", "aiohttp", "multidict"}
    assert roots <= set(sys.stdlib_module_names)
    newer = {"timeout", "TaskGroup", "Runner"} & {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "asyncio"
    }
    assert not newer, "these are of Python 3.11"
    assert not any(isinstance(node, ast.Match) for node in ast.walk(tree))
    annotations: list[ast.expr | None] = [
        x.annotation for x in ast.walk(tree) if isinstance(x, ast.arg | ast.AnnAssign)
    ]
    annotations += [x.returns for x in ast.walk(tree) if isinstance(x, ast.FunctionDef | ast.AsyncFunctionDef)]
    unions = [x for note in annotations if note for x in ast.walk(note) if isinstance(x, ast.BitOr)]
    assert not unions, "3.9 evaluates these, and cannot"
