"""tests/skips.py permits each skip that a test may make, also if this machine has what the test needs.

A skip that is not permitted fails only on the machines on which it happens.
"""

import ast
from collections.abc import Iterator

import pytest

from tests.skips import PERMITTED, PermittedSkip
from tests.unit.suite.sources import trees

CALLS = ("pytest.skip", "pytest.importorskip", "pytest.mark.skip", "pytest.mark.skipif", "pytest.mark.xfail")


def reasons(tree: ast.AST) -> Iterator[str]:
    """The reasons of a file's skips, with 3.10 in place of each value; "" if the code does not show it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (call := ast.unparse(node.func)) in CALLS:
            named = [keyword.value for keyword in node.keywords if keyword.arg in ("reason", "msg")]
            given = named or (node.args[:1] if call == "pytest.skip" else [])
            yield _text(given[0]) if given else ""


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_text(value) if isinstance(value, ast.Constant) else "3.10" for value in values)
    return ""


def is_permitted_in(path: str, reason: str, permitted: tuple[PermittedSkip, ...] = PERMITTED) -> bool:
    return any(
        skip.matches(reason) and (skip.test.startswith(f"{path}::") or path.startswith(skip.test)) for skip in permitted
    )


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("pytest.skip('no GPU here')", ["no GPU here"]),
        ("pytest.skip(f'no Python {version} here')", ["no Python 3.10 here"]),
        ("@pytest.mark.skipif(not possible(), reason='no right')\ndef test_it(): pass", ["no right"]),
        ("needs = pytest.mark.skipif(True, reason='no ' + it)", [""]),
        ("torch = pytest.importorskip('torch')", [""]),
        ("'pytest.skip()'; list.skip('x')", []),
    ],
)
def test_the_skips_of_a_file_are_found(source: str, found: list[str]) -> None:
    assert list(reasons(ast.parse(source))) == found


def test_a_skip_is_permitted_in_a_file_or_a_folder() -> None:
    permitted = (PermittedSkip("tests/unit/a/test_x.py::test_it", "no GPU"), PermittedSkip("tests/unit/b/", "no right"))
    assert is_permitted_in("tests/unit/a/test_x.py", "no GPU", permitted)
    assert not is_permitted_in("tests/unit/a/test_y.py", "no GPU", permitted)
    assert not is_permitted_in("tests/unit/a/test_x.py", "no right", permitted)
    assert is_permitted_in("tests/unit/b/test_y.py", "no right", permitted)


def test_every_skip_is_one_that_the_list_permits() -> None:
    found = {(f"tests/{path}", reason) for path, tree in trees(".", containing="pytest") for reason in reasons(tree)}
    assert len(found) >= 4
    assert {(path, reason) for path, reason in found if not is_permitted_in(path, reason)} == set()
