"""Each field of the coordinator's and of the member's state is written by one module."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from understudy_sidecar import membership

FOLDER = Path(membership.__file__).parent
CHANGES = {"add", "append", "clear", "discard", "extend", "pop", "remove", "setdefault", "update"}
#: Groups that have methods of these names.
CLASSES = {"fault_history", "nodes", "roster"}

COORDINATOR = """
def answer(state, member):
    quorum, state.now = state.quorum, 1.0
    quorum.check.responded.add(member.uid)
    quorum.until += 1.0
    del state.rollouts[3]
    state.log("answered")
    return state.round.number
"""


@pytest.mark.parametrize("state", ["state", "me"])
def test_each_field_is_written_by_one_module(state: str) -> None:
    modules: dict[str, set[str]] = defaultdict(set)
    for path in FOLDER.glob("*.py"):
        for field in writes(path.read_text(), state):
            modules[field].add(path.stem)
    assert len(modules) >= 15
    assert {field: written for field, written in modules.items() if len(written) > 1} == {}


def test_a_write_is_found_also_through_a_local_name_of_a_group() -> None:
    found = set(writes(COORDINATOR, "state"))
    assert found == {"now", "quorum.check.responded", "quorum.until", "rollouts"}


def writes(source: str, state: str) -> Iterator[str]:
    """The fields that a module writes, as paths from the state."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        names = {state: ""}
        nodes = list(ast.walk(function))
        for target, value in assignments(nodes):
            if isinstance(target, ast.Name) and (path := path_of(value, names)):
                names[target.id] = path
        for node in nodes:
            for target in written(node):
                path = path_of(target, names)
                if path and not isinstance(target, ast.Name) and path not in CLASSES:
                    yield path


def assignments(nodes: list[ast.AST]) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    yield from zip(target.elts, node.value.elts, strict=True)
                else:
                    yield target, node.value


def written(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            return [x for target in targets for x in (target.elts if isinstance(target, ast.Tuple) else [target])]
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            return [target]
        case ast.Call(func=ast.Attribute(attr=attr, value=value)) if attr in CHANGES:
            return [value] if isinstance(value, ast.Attribute) else []
    return []


def path_of(node: ast.expr, names: dict[str, str]) -> str:
    """The path of fields from the state; "" if the expression is no field of it."""
    fields: list[str] = []
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute):
            fields.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return ""
    return ".".join([*filter(None, [names[node.id]]), *reversed(fields)])
